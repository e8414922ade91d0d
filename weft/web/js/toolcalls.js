// What an answer with tools means: content, reasoning and calls, in the forms that
// weft/serve/toolcalls reads. It is read again whole as it grows; what may still change is held
// back.

import { WeftError } from "./program.js";
import { after, objectAt, objectBefore } from "./toolcalls_json.js";
import { gemma, harmony } from "./toolcalls_marked.js";

/** @typedef {{name: string, arguments: string}} Call */
/** @typedef {{content: string, reasoning: string, calls: Call[]}} Said */
/** @typedef {{format: string, thinking?: [string, string] | null, opening?: string | null,
 *   closing?: string, ends?: string[], marks?: Record<string, number>, form?: any,
 *   signs?: any}} Form of the calls of a model, as chat.json has it */
/** @typedef {Record<string, any>} Tools the schemas of parameters by the tool's name */

const SPACE = /\s/;

/** @param {string} text @returns {any} what JSON says; undefined where it is none */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {any} schema @returns {string[]} the types that it names, "string" last */
function kinds(schema) {
  if (typeof schema !== "object" || schema === null) return [];
  const inner = [...schema.anyOf ?? [], ...schema.oneOf ?? []].map(({ type }) => type);
  const all = [...[schema.type ?? []].flat(), ...inner, ...schema.nullable ? ["null"] : []]
    .filter((type) => typeof type === "string");
  return [...all.filter((type) => type !== "string"), ...all.filter((type) => type === "string")];
}

/** A text as the type of value that its schema names. @param {string} text @param {any} schema */
function typed(text, schema) {
  const fits = /** @type {Record<string, (value: any) => boolean>} */ ({
    integer: Number.isInteger, number: (v) => typeof v === "number", array: Array.isArray,
    object: (v) => typeof v === "object" && v !== null && !Array.isArray(v),
  });
  /** @type {Record<string, boolean>} */
  const words = { true: true, 1: true, false: false, 0: false };
  for (const kind of kinds(schema)) {
    if (kind === "string") return text;
    if (kind === "null" && /^\s*(null|None)\s*$/.test(text)) return null;
    const word = text.trim().toLowerCase();
    if (kind === "boolean" && Object.hasOwn(words, word)) return words[word];
    const value = parsed(text);
    if (value !== undefined && fits[kind]?.(value)) return value;
  }
  return text;
}

/**
 * <function=NAME><parameter=KEY>VALUE</parameter>…</function>.
 * @param {string} text @param {Tools} tools
 */
function functionOf(text, tools) {
  const whole = text.trim();
  const head = /^<function=([^>]*)>/.exec(whole);
  const name = head?.[1].trim();
  if (!head || !name) return null;
  const schema = tools[name] ?? {};
  /** @type {Record<string, any>} */
  const given = {};
  for (const part of whole.slice(head[0].length).split("<parameter=").slice(1)) {
    const close = part.indexOf(">");
    if (close < 0) return null;
    const key = part.slice(0, close).trim();
    const value = part.slice(close + 1).split("</parameter>")[0].replace(/^\n/, "")
      .replace(/\n$/, "");
    const own = schema.properties?.[key];
    const ref = /^[^#]*#\/(\$defs|definitions)\/(.*)$/s.exec(own?.$ref ?? "");
    given[key] = typed(value, own?.$ref === undefined ? own : ref && schema[ref[1]]?.[ref[2]]);
  }
  return { name, arguments: JSON.stringify(given) };
}

/** @typedef {(text: string, form: any, tools: Tools) =>
 *   {calls: Call[], end: number, rest?: string}} Body
 *   reads what follows an opening mark: `end` -1 where it goes on; no calls where it is text;
 *   `rest` what is text after calls */

/** @type {Record<string, Body>} */
const BODIES = {
  hermes(text, { closing }) {
    const { call, end } = objectBefore(text, closing);
    return { calls: call ? [call] : [], end };
  },
  "qwen-xml"(text, { closing }, tools) {
    const at = text.indexOf(closing);
    const call = at < 0 ? null : functionOf(text.slice(0, at), tools);
    return { calls: call ? [call] : [], end: at < 0 ? -1 : at + closing.length };
  },
  gemma4: (text, form) => gemmaOf(text, form, '<|"|>'),
  functiongemma: (text, form) => gemmaOf(text, form, "<escape>"),
  mistral(text, { signs }) {
    const begin = text.search(/[{[]/);
    if (text[begin] === "[" && !text.slice(0, begin).trim()) return listed(text, begin + 1);
    const brace = text.indexOf("{");
    if (brace < 0) return { calls: [], end: -1 };
    const name = text.slice(0, brace).split(signs?.["[CALL_ID]"] ?? "[CALL_ID]")[0]
      .split(signs?.["[ARGS]"] ?? "[ARGS]")[0].trim();
    if (!name || SPACE.test(name)) return { calls: [], end: brace + 1 };
    const end = after(text, brace);
    const given = text.slice(brace, end < 0 ? text.length : end);
    return { calls: [{ name, arguments: given }], end };
  },
};

/**
 * Objects of JSON up to a closing bracket; anything else ends the list and is text.
 * @param {string} text @param {number} at @returns {ReturnType<Body>}
 */
function listed(text, at) {
  /** @type {Call[]} */
  const calls = [];
  for (let from = at; ;) {
    let n = from;
    while (n < text.length && (text[n] === "," || SPACE.test(text[n]))) n++;
    if (n >= text.length) return { calls, end: -1, rest: text.slice(from) };
    if (text[n] !== "{") {
      return { calls, end: n + 1, rest: text[n] === "]" ? "" : text.slice(from, n + 1) };
    }
    const { call, end } = objectAt(text, n, true);
    if (!call) return { calls, end, rest: text.slice(from, end < 0 ? text.length : end) };
    calls.push(call);
    if (end < 0) return { calls, end };
    from = end;
  }
}

/** The forms of calls that a page reads. */
export const READ = [...Object.keys(BODIES), "llama", "llama-json", "harmony"];

/** @type {(text: string, form: any, quote: string) => ReturnType<Body>} */
function gemmaOf(text, { closing, signs }, quote) {
  const at = text.indexOf(closing);
  const call = at < 0 ? null : gemma(spelt(text.slice(0, at), signs), quote);
  return { calls: call ? [call] : [], end: at < 0 ? -1 : at + closing.length };
}

/** Writes the marks of a text as signs. @param {any} signs @returns {(text: string) => string} */
export function signer(signs) {
  const marked = Object.entries(signs ?? {}).sort(([a], [b]) => b.length - a.length);
  return (text) => marked.reduce((made, [mark, one]) => made.replaceAll(mark, one), text);
}

/** A text with its marks spelt. @param {string} text @param {any} signs */
const spelt = (text, signs) => Object.entries(signs ?? {}).reduce(
  (made, [mark, one]) => made.replaceAll(one, mark), text);

/**
 * A whole answer of Llama: calls alone, or text.
 * @param {string} text @param {any} form @param {boolean} ended @returns {Said}
 */
function llama(text, { signs }, ended) {
  const tag = signs?.["<|python_tag|>"] ?? "<|python_tag|>";
  const start = text.trimStart();
  const body = start.startsWith(tag) ? start.slice(tag.length).trimStart() : start;
  /** @type {Call[]} */
  const calls = [];
  if (!ended && (!body || body[0] === "{" || tag.startsWith(start))) {
    return { content: "", reasoning: "", calls };
  }
  let [at, before] = [0, ""];
  while (body[at] === "{") {
    const { call, end } = objectAt(body, at, false);
    if (!call) {
      const content = calls.length ? before + body.slice(at) : text;
      return { content, reasoning: "", calls };
    }
    calls.push(call);
    at = end < 0 ? body.length : end;
    const next = /^\s*;?\s*/.exec(body.slice(at))?.[0] ?? "";
    [at, before] = [at + next.length, next.trim()];
  }
  return { content: calls.length ? body.slice(at) : text, reasoning: "", calls };
}

/**
 * Reads an answer so far, or a whole one.
 * @param {Form} form with `signs`, the marks as the text has them @param {string} text
 * @param {Tools} tools @param {boolean} opened whether the prompt has begun the reasoning
 * @param {boolean} ended @returns {Said}
 */
export function read(form, text, tools, opened, ended) {
  if (form.format.startsWith("llama")) return llama(text, form, ended);
  const { thinking, opening, ends = [], signs } = form;
  const sign = signer(signs);
  if (form.format === "harmony") {
    const said = harmony(text, sign, (part) => spelt(part, signs), cut, ended);
    return ended ? said : { ...said, content: said.content.trimEnd(),
      reasoning: said.reasoning.trimEnd() };
  }
  let [rest, reasoning, thought] = [text, "", false];
  if (thinking) {
    const [begin, close] = thinking.map(sign);
    const start = text.trimStart();
    if (opened || start.startsWith(begin)) {
      thought = true;
      const body = opened ? text : start.slice(begin.length);
      const at = body.indexOf(close);
      reasoning = at < 0 ? body : body.slice(0, at);
      rest = at < 0 ? "" : body.slice(at + close.length).trimStart();
      if (at < 0 && !ended) reasoning = cut(reasoning, [close]);
      reasoning = reasoning.trim();
    } else if (!ended && begin.startsWith(start)) rest = "";
  }
  const marks = [...opening ? [sign(opening)] : [], ...ends.map(sign)];
  const body = BODIES[form.format];
  /** @type {Call[]} */
  const calls = [];
  let [content, fresh] = ["", thought]; // where space at the beginning goes
  const say = (/** @type {string} */ part) => {
    const said = fresh ? part.trimStart() : part;
    content += said;
    fresh &&= !said;
  };
  while (rest) {
    const found = marks.map((mark) => [rest.indexOf(mark), mark]).filter(([at]) => at !== -1)
      .sort(([a], [b]) => Number(a) - Number(b))[0];
    if (!found) {
      say(ended ? rest : cut(rest, marks));
      break;
    }
    const [at, mark] = [Number(found[0]), String(found[1])];
    say(rest.slice(0, at));
    rest = rest.slice(at + mark.length);
    if (!opening || mark !== sign(opening)) continue;
    const made = body(rest, { ...form, closing: sign(form.closing ?? ""), signs }, tools);
    if (made.end < 0 && !ended) break;
    const end = made.end < 0 ? rest.length : made.end;
    if (!made.calls.length) {
      say(mark + rest.slice(0, end));
      rest = rest.slice(end);
      continue;
    }
    calls.push(...made.calls);
    [content, fresh] = [content.trimEnd(), true];
    rest = rest.slice(end);
    if (made.rest) say(made.rest);
  }
  return { content: ended ? content : content.trimEnd(), reasoning, calls };
}

/**
 * A text without what may be the beginning of a mark.
 * @param {string} text @param {string[]} marks
 */
export function cut(text, marks) {
  const most = Math.max(0, ...marks.map((mark) => mark.length - 1));
  for (let n = Math.max(0, text.length - most); n < text.length; n++) {
    if (marks.some((mark) => mark.startsWith(text.slice(n)))) return text.slice(0, n);
  }
  return text;
}

/** @param {Form | undefined} form @param {string} model its name @returns {Form} */
export function readable(form, model) {
  if (form && READ.includes(form.format)) return form;
  throw new WeftError(`${model} writes calls of tools in the form ${form?.format ?? "unknown"}, `
    + `which a page does not read: it reads ${READ.join(", ")}`);
}
