// The player's grammars on cases from stdin: {js, tokens: [base64], cases: [{schema, texts, walks}]}
// -> for each {error} or {taken: [bool], walked: [[text, whole]]}; and the bytes of the tokens of
// tokenizers: [{json, vocab}], {error} where they have none.
import { readFileSync } from "node:fs";

const { js, tokens, cases, tokenizers } = JSON.parse(readFileSync(0, "utf8"));
const { schemaGrammar } = await import(`${js}/schema.js`);
const { Matching, Vocabulary, tokenBytes } = await import(`${js}/vocabulary.js`);
const { Tokenizer } = await import(`${js}/tokenizer.js`);

const bytes = [...tokens.map((text) => Uint8Array.from(Buffer.from(text, "base64"))), null];
const eos = bytes.length - 1;
const vocabulary = new Vocabulary(bytes);
let seed = 1;
const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
const CLOSING = [...'"}]'].map((c) => c.charCodeAt(0));

function walk(schema, most) {
  const { grammar, of } = schemaGrammar(schema);
  const matching = new Matching(grammar, of, vocabulary, bytes, [eos]);
  const out = [];
  for (let n = 0; n < most && !matching.ended; n++) {
    const allowed = matching.allowed();
    const all = bytes.flatMap((_, id) => (allowed(id) ? [id] : []));
    const near = all.filter((id) => id === eos || CLOSING.includes(bytes[id][0]));
    const among = near.length && random() < 0.3 ? near : all;
    const id = among[Math.floor(random() * among.length)];
    if (id === eos) break;
    matching.accept(id);
    out.push(...bytes[id]);
  }
  return [Buffer.from(out).toString("base64"), matching.whole];
}

const results = cases.map(({ schema, texts = [], walks = 0, most = 400 }) => {
  try {
    const { grammar, of } = schemaGrammar(schema);
    return {
      taken: texts.map((text) => grammar.takes(of, text)),
      walked: Array.from({ length: walks }, () => walk(schema, most)),
    };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
});
const spelled = tokenizers.map(({ json, vocab }) => {
  try {
    const found = tokenBytes(json, new Tokenizer(json), vocab, []);
    return found.map((each) => each && Buffer.from(each).toString("base64"));
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
});
console.log(JSON.stringify({ results, spelled }));
