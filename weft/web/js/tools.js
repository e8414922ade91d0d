// Conversations with tools: the tools go into the prompt by the model's chat template, and its
// answer becomes content, reasoning and calls. Fetched only where tools are offered.

import { Grammar } from "./grammar.js";
import { matchingOf } from "./forced.js";
import { shown } from "./options.js";
import { WeftError, soundly } from "./program.js";
import { schemaInto } from "./schema.js";
import { StreamDecoder } from "./text.js";
import { read, readable } from "./toolcalls.js";
import { continued, fitted } from "./writing.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Piece} Piece */

const FIRST = 0xdc00; // signs of marks in a text: lone surrogates, which decoding never gives
const MARK = 256; // letters of the grammar after the bytes
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
  if (choice === "required") return names;
  const name = choice?.type === "function" ? choice.function?.name : undefined;
  if (names.includes(name)) return [name];
  throw new WeftError(`toolChoice is ${name ?? shown(choice)}; expected "auto", "none", "required" `
    + `or {type: "function", function: {name}} with one of ${names.join(", ")}`);
}

/** Messages as templates take them. @param {import("./model.js").Message[]} messages */
export const plain = (messages) => messages.map(({ tool_calls: calls, ...message }) => {
  const content = message.content ?? "";
  if (!Array.isArray(calls)) return { ...message, content };
  const all = calls.map((call) => {
    const given = call.function?.arguments;
    if (typeof given !== "string") return call;
    let made;
    try {
      made = JSON.parse(given);
    } catch {
      made = given;
    }
    return { ...call, function: { ...call.function, arguments: made } };
  });
  return { ...message, content, tool_calls: all };
});

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
  if (how.schema !== undefined || how.responseFormat !== undefined || how.stop?.length) {
    throw new WeftError("tools do not go together with schema, responseFormat or stop: give one");
  }
  const known = schemas(tools);
  const wanted = needed(toolChoice, Object.keys(known));
  const { calls } = await model.chatData();
  const form = readable(calls, model.manifest.name);
  const most = how.maxNewTokens ?? Infinity;
  const { ids, left, images } = await fitted(model, messages, slide ? most : 0,
    { ...variables, tools });
  const prompt = /** @type {any} */ (model.tokenizer).decode(ids.slice(-16), false);
  const opened = Boolean(form.thinking && prompt.trimEnd().endsWith(form.thinking[0].trimEnd()));
  const shape = wanted.length ? await forced(model, form, known, wanted, opened) : null;
  if (left) yield { text: "", ids: [], finish: null, left };
  const pieces = continued(model, ids, { ...how, images }, shape);
  yield* meant(model, form, known, opened, pieces);
}

/**
 * The pieces of an answer, with what they mean.
 * @param {Model} model @param {import("./toolcalls.js").Form} form
 * @param {Record<string, any>} known @param {boolean} opened
 * @param {AsyncGenerator<Piece, void>} pieces @returns {AsyncGenerator<Piece, void>}
 */
async function* meant(model, form, known, opened, pieces) {
  const marks = Object.entries(form.marks ?? {});
  const signs = Object.fromEntries(marks.map(([mark], n) =>
    [mark, String.fromCharCode(FIRST + n)]));
  const byId = new Map(marks.map(([mark, id]) => [id, signs[mark]]));
  const signed = { ...form, signs };
  const show = (/** @type {string} */ text) => text.replace(/[\udc00-\udcff]/gu, (sign) =>
    marks[sign.charCodeAt(0) - FIRST]?.[0] ?? sign);
  const stream = () => new StreamDecoder((part) => model.decode(part));
  let [text, decoder, said] = ["", stream(), { content: 0, reasoning: 0 }];
  for await (const piece of pieces) {
    for (const id of piece.ids) {
      const sign = byId.get(id);
      if (sign === undefined) text += decoder.push(id);
      else [text, decoder] = [text + decoder.flush() + sign, stream()];
    }
    if (piece.finish) text += decoder.flush();
    const now = read(signed, text, known, opened, piece.finish !== null);
    const content = show(now.content.slice(said.content));
    const reasoning = show(now.reasoning.slice(said.reasoning));
    said = { content: now.content.length, reasoning: now.reasoning.length };
    const toolCalls = !piece.finish ? [] : now.calls.map(({ name, arguments: given }) => ({
      id: fresh(), type: /** @type {"function"} */ ("function"),
      function: { name, arguments: show(given) } }));
    const finish = toolCalls.length && piece.finish === "eos" ? "tool_calls" : piece.finish;
    yield { ...piece, text: content, finish, ...reasoning && { reasoning },
      ...toolCalls.length && { toolCalls } };
  }
}

/**
 * The form of an answer that calls some of the tools.
 * @param {Model} model @param {import("./toolcalls.js").Form} about
 * @param {Record<string, any>} known @param {string[]} wanted @param {boolean} opened
 */
function forced(model, { form, marks = {} }, known, wanted, opened) {
  if (!form) {
    throw new WeftError("calls cannot be asked for: the model's chat template writes none that a "
      + "page could ask for");
  }
  const g = new Grammar();
  const names = Object.keys(marks).sort((a, b) => b.length - a.length);
  const cuts = new RegExp(`(weftcall[12]|${names.map((name) =>
    name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|") || "(?!)"})`);
  const letters = g.bytes([[48, 57], [65, 90], [97, 122]]);
  const literal = (/** @type {string} */ text) => g.then(...text.split(cuts).map((part) => {
    if (/^weftcall[12]$/.test(part)) return g.times(letters, 9, 9);
    const at = names.indexOf(part);
    return at < 0 ? g.literal(part) : g.bytes([[MARK + at, MARK + at]]);
  }));
  const call = g.either(...wanted.map((name) => g.then(literal(name), literal(form.between),
    schemaInto(g, { type: "object", ...known[name] }, name))));
  const more = form.joint === null ? g.literal("")
    : g.times(g.then(literal(form.joint), call), 0);
  const thought = opened ? thinking(g, form.closing, names, literal) : g.literal("");
  const of = g.then(thought, literal(form.before), call, more, literal(form.after));
  return matchingOf(model, soundly("chat.json", () => ({ grammar: g, of })),
    names.map((name) => marks[name]));
}

/**
 * Reasoning that the prompt has begun, up to its end.
 * @param {Grammar} g @param {string} closing @param {string[]} marks
 * @param {(text: string) => number} literal
 */
function thinking(g, closing, marks, literal) {
  if (!marks.includes(closing)) {
    throw new WeftError("calls cannot be asked for: the prompt begins reasoning, and no token ends "
      + "it; turn reasoning off by variables");
  }
  const space = g.times(g.bytes([[9, 10], [13, 13], [32, 32]]), 0, 4);
  return g.then(g.times(g.bytes([[0, 255]]), 0), literal(closing), space);
}
