// Conversations with tools: the tools go into the prompt by the model's chat template, and its
// answer becomes content, reasoning and calls. Fetched only where tools are offered.

import { schemaOf } from "./forced.js";
import { shown } from "./options.js";
import { WeftError } from "./program.js";
import { fitted } from "./talk.js";
import { StreamDecoder } from "./text.js";
import { read, readable } from "./toolcalls.js";
import { readGiven, shaped } from "./toolforms.js";
import { continued } from "./writing.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Piece} Piece */

const FIRST = 0xdc00; // signs of marks in a text: lone surrogates, which decoding never gives
const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/** @param {any[]} tools as OpenAI has them @returns {Record<string, any>} schemas by name */
function schemas(tools) {
  const found = tools.map((tool) => {
    const { name, parameters = {} } = tool?.function ?? {};
    if (tool?.type !== "function" || !/^[\w.-]+$/.test(name ?? "")) {
      throw new WeftError(`a tool is ${JSON.stringify(tool)?.slice(0, 60)}; expected {type: `
        + '"function", function: {name, description, parameters}} with letters, digits, _ - . in '
        + "the name");
    }
    return [name, parameters];
  });
  return Object.fromEntries(found);
}

/** @param {any} choice @param {string[]} names @returns {string[]} those of which one is needed */
function needed(choice, names) {
  if (choice === undefined || choice === "auto" || choice === "none") return [];
  if (choice === "required" && names.length) return names;
  const name = choice?.type === "function" ? choice.function?.name : undefined;
  if (names.includes(name)) return [name];
  throw new WeftError(`toolChoice is ${name ?? shown(choice)}; expected "auto", "none", "required" `
    + 'or {type: "function", function: {name}} with one of '
    + `${names.join(", ") || "the tools: there are none"}`);
}

/** @returns {string} an id for a call, as Mistral's templates want it */
function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => LETTERS[byte % LETTERS.length]).join("");
}

/**
 * The answer to a conversation in which the model may call tools.
 * @param {Model} model @param {import("./model.js").Message[]} messages
 * @param {import("./model.js").ChatOptions} options @returns {AsyncGenerator<Piece, void>}
 */
export async function* answered(model, messages, options) {
  const { tools = [], toolChoice, variables, slide, ...how } = options;
  const known = schemas(tools);
  const wanted = needed(toolChoice, Object.keys(known));
  const { calls } = await model.chatData();
  const form = tools.length ? readable(calls, model.manifest.name) : calls;
  const most = how.maxNewTokens ?? Infinity;
  const told = tools.length ? { ...variables, tools } : variables;
  const { ids, left, images } = await fitted(model, messages, slide ? most : 0, told);
  const tokenizer = /** @type {import("./tokenizer.js").Tokenizer} */ (model.tokenizer);
  const prompt = tokenizer.decode(ids.slice(-16), false);
  const opened = Boolean(form.thinking && prompt.trimEnd().endsWith(form.thinking[0].trimEnd()));
  const strict = tools.some((tool) => tool.function.strict === true);
  const shape = await shaped(model, form,
    { known, wanted, strict, schema: schemaOf(how), opened });
  if (left) yield { text: "", ids: [], finish: null, left };
  const text = new StreamDecoder((part) => tokenizer.decode(part, false));
  const pieces = continued(model, ids, { ...how, images }, shape?.matching ?? null, text);
  yield* meant(form, pieces, text, (signed, said, ended) =>
    (shape?.given ? readGiven(signed, shape.given, said, known, ended)
      : read(signed, said, known, opened, ended)));
}

/**
 * The pieces of an answer, with what they mean.
 * @param {import("./toolcalls.js").Form} form @param {AsyncGenerator<Piece, void>} pieces
 * @param {StreamDecoder} stream which has made the text of the pieces
 * @param {(form: any, text: string, ended: boolean) => import("./toolcalls.js").Said} reads
 * @returns {AsyncGenerator<Piece, void>}
 */
async function* meant(form, pieces, stream, reads) {
  const marks = Object.entries(form.marks ?? {});
  const signs = Object.fromEntries(marks.map(([mark], n) =>
    [mark, String.fromCharCode(FIRST + n)]));
  const byId = new Map(marks.map(([mark, id]) => [id, mark]));
  const signed = { ...form, signs };
  const show = (/** @type {string} */ text) => text.replace(/[\udc00-\udcff]/gu, (sign) =>
    marks[sign.charCodeAt(0) - FIRST]?.[0] ?? sign);
  /** @type {[mark: string, at: number][]} marks that are tokens, and where the text has them */
  const found = [];
  let [text, said] = ["", { content: 0, reasoning: 0 }];
  for await (const piece of pieces) {
    text += piece.text;
    for (const id of piece.ids) {
      const mark = byId.get(id);
      if (mark !== undefined) found.push([mark, stream.start]);
    }
    const now = reads(signed, hidden(text, found, signs, piece.finish !== null),
      piece.finish !== null);
    const content = show(now.content.slice(said.content));
    const reasoning = show(now.reasoning.slice(said.reasoning));
    said = { content: now.content.length, reasoning: now.reasoning.length };
    const toolCalls = !piece.finish ? [] : now.calls.map(({ name, arguments: given }) => ({
      id: fresh(), type: /** @type {"function"} */ ("function"),
      function: { name: show(name), arguments: show(given) } }));
    const finish = toolCalls.length && piece.finish === "eos" ? "tool_calls" : piece.finish;
    yield { ...piece, text: content, finish, ...reasoning && { reasoning },
      ...toolCalls.length && { toolCalls } };
  }
}

/**
 * A text in which marks that are tokens are signs (weft/serve/toolcalls/marks.py).
 * @param {string} text @param {[mark: string, at: number][]} found
 * @param {Record<string, string>} signs @param {boolean} ended if not, a mark may be cut
 */
function hidden(text, found, signs, ended) {
  let [made, done] = ["", 0];
  for (const [mark, at] of found) {
    if (at < done) continue;
    if (!text.startsWith(mark, at)) {
      if (!ended && text.length < at + mark.length) return made + text.slice(done, at);
      continue;
    }
    made += text.slice(done, at) + signs[mark];
    done = at + mark.length;
  }
  return made + text.slice(done);
}
