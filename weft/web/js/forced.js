// Answers that must have a form: a JSON schema's, fetched only where one is asked for.

import { shown } from "./options.js";
import { WeftError } from "./program.js";
import { schemaGrammar } from "./schema.js";
import { Matching, Vocabulary, tokenBytes } from "./vocabulary.js";

/** @typedef {import("./model.js").Model} Model */

/** Vocabularies by the model that has them: they take tenths of a second. */
const known = new WeakMap();

/**
 * The form of an answer: JSON that satisfies a schema.
 * @param {Model} model @param {any} schema @returns {Promise<Matching>}
 */
export const matching = async (model, schema) => matchingOf(model, schemaGrammar(schema));

/**
 * @param {Model} model @param {{grammar: import("./grammar.js").Grammar, of: number}} form
 * @param {number[]} [marks] ids of tokens that are letters of the grammar
 */
export async function matchingOf(model, { grammar, of }, marks = []) {
  const { vocab, eos } = model.manifest.model;
  if (!known.has(model)) {
    const tokens = await model.folder.parsed("tokenizer.json", (json) =>
      tokenBytes(json, /** @type {any} */ (model.tokenizer), vocab, eos));
    known.set(model, { tokens, vocabulary: new Vocabulary(tokens) });
  }
  const { tokens, vocabulary } = known.get(model);
  return new Matching(grammar, of, vocabulary, tokens, eos, marks);
}

/**
 * The schema of `schema`, or of OpenAI's response_format; undefined where any text may come.
 * @param {import("./model.js").GenerateOptions} options @returns {any}
 */
export function schemaOf({ schema, responseFormat }) {
  if (responseFormat === undefined) return schema;
  if (schema !== undefined) throw new WeftError("give schema or responseFormat, not both");
  const { type, json_schema: about } = responseFormat;
  if (type === "text") return undefined;
  if (type === "json_object") return { type: "object" };
  if (type === "json_schema" && about?.schema !== undefined) return about.schema;
  throw new WeftError(`responseFormat is of the type ${shown(type)}; expected `
    + '{type: "json_schema", json_schema: {schema}}, {type: "json_object"} or {type: "text"}');
}
