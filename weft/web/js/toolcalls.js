// What an answer with tools means: content, reasoning and calls, in the forms that
// weft/serve/toolcalls reads. It is read again whole as it grows; what may still change is held
// back.

import { WeftError } from "./program.js";

/** @typedef {{name: string, arguments: string}} Call */
/** @typedef {{content: string, reasoning: string, calls: Call[]}} Said */
/** @typedef {{format: string, thinking?: [string, string] | null, opening?: string | null,
 *   closing?: string, ends?: string[], marks?: Record<string, number>, form?: any,
 *   signs?: any}} Form of the calls of a model, as chat.json has it */
/** @typedef {Record<string, any>} Tools the schemas of parameters by the tool's name */

const NAMES = ["name", "tool_name", "function"];
const ARGUMENTS = ["arguments", "parameters", "args"];
const SPACE = /\s/;

/** The place after a value of JSON; -1 where it goes on. @param {string} text @param {number} at */
function after(text, at) {
  let [depth, quoted] = [0, false];
  for (let n = at; n < text.length; n++) {
    const c = text[n];
    if (quoted) {
      if (c === "\\") n++;
      else if (c === '"') quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === "{" || c === "[") depth++;
    else if (c === "}" || c === "]") depth--;
    else if (depth === 0 && (c === "," || SPACE.test(c))) return n;
    if (depth < 0) return n;
    if (depth === 0 && !quoted && /["}\]]/.test(c)) return n + 1;
  }
  return -1;
}

/** @param {string} text @returns {any} what JSON says; undefined where it is none */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * A call as an object of JSON from a bracket on; its last bracket may lack.
 * @param {string} text @param {number} at @param {boolean} bare whether it may lack arguments
 * @returns {{call: Call | null, end: number}} `end` is -1 where the object goes on
 */
function objectAt(text, at, bare) {
  let [name, given] = [/** @type {string | null} */ (null), /** @type {string | null} */ (null)];
  let n = at + 1;
  const made = (/** @type {number} */ end) => ({
    end, call: name && (bare || given !== null) ? { name, arguments: given ?? "{}" } : null });
  for (;;) {
    while (n < text.length && (text[n] === "," || SPACE.test(text[n]))) n++;
    if (n >= text.length) return made(-1);
    if (text[n] === "}") return made(n + 1);
    const stop = text[n] === '"' ? after(text, n) : -1;
    const colon = stop < 0 ? -1 : text.slice(stop).search(/\S/) + stop;
    if (stop < 0 || text[colon] !== ":") return made(-1);
    const from = text.slice(colon + 1).search(/\S/) + colon + 1;
    const end = from > colon ? after(text, from) : -1;
    const key = parsed(text.slice(n, stop));
    if (end < 0) return made(-1);
    const value = text.slice(from, end);
    const plain = parsed(value);
    if (NAMES.includes(key) && !name && typeof plain === "string") name = plain;
    if (ARGUMENTS.includes(key) && given === null) {
      given = plain === null ? "{}" : typeof plain === "string" && plain ? plain : value;
    }
    n = end;
  }
}

/**
 * The place of a mark outside of JSON's texts; -1 without one.
 * @param {string} text @param {string} mark
 */
function outside(text, mark) {
  let quoted = false;
  for (let n = 0; n < text.length; n++) {
    if (quoted && text[n] === "\\") n++;
    else if (!quoted && text.startsWith(mark, n)) return n;
    else if (text[n] === '"') quoted = !quoted;
  }
  return -1;
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
  const head = /^\s*<function=([^>]*)>/.exec(text);
  const name = head?.[1].trim();
  if (!head || !name) return null;
  const whole = tools[name] ?? {};
  /** @type {Record<string, any>} */
  const given = {};
  for (const part of text.slice(head[0].length).split("<parameter=").slice(1)) {
    const close = part.indexOf(">");
    if (close < 0) return null;
    const key = part.slice(0, close).trim();
    const value = part.slice(close + 1).split("</parameter>")[0].replace(/^\n/, "")
      .replace(/\n$/, "");
    const own = whole.properties?.[key];
    const ref = /^[^#]*#\/(\$defs|definitions)\/(.*)$/s.exec(own?.$ref ?? "");
    given[key] = typed(value, own?.$ref === undefined ? own : ref && whole[ref[1]]?.[ref[2]]);
  }
  return { name, arguments: JSON.stringify(given) };
}

/** @typedef {(text: string, form: any, tools: Tools) => {calls: Call[], end: number}} Body
 *   reads what follows an opening mark: `end` -1 where it goes on; no calls where it is text */

/** @type {Record<string, Body>} */
const BODIES = {
  hermes(text, { closing }) {
    const at = outside(text, closing);
    const found = objectAt(at < 0 ? text : text.slice(0, at), text.search(/\S/), true);
    const begun = text.trimStart().startsWith("{") && found.call;
    return { calls: begun ? [begun] : [], end: at < 0 ? -1 : at + closing.length };
  },
  "qwen-xml"(text, { closing }, tools) {
    const at = text.indexOf(closing);
    const call = at < 0 ? null : functionOf(text.slice(0, at), tools);
    return { calls: call ? [call] : [], end: at < 0 ? -1 : at + closing.length };
  },
  mistral(text, { signs }) {
    const begin = text.search(/[{[]/);
    if (begin < 0) return { calls: [], end: -1 };
    if (text[begin] === "{" || text.slice(0, begin).trim()) {
      const brace = text.indexOf("{");
      const [name] = text.slice(0, brace < 0 ? text.length : brace)
        .split(signs?.["[CALL_ID]"] ?? "[CALL_ID]")[0].split(signs?.["[ARGS]"] ?? "[ARGS]");
      const end = brace < 0 ? -1 : after(text, brace);
      const fits = name.trim() && !SPACE.test(name.trim()) && brace >= 0;
      return { end, calls: fits && end >= 0
        ? [{ name: name.trim(), arguments: text.slice(brace, end) }] : [] };
    }
    const calls = [];
    let at = begin + 1;
    for (;;) {
      while (at < text.length && (text[at] === "," || SPACE.test(text[at]))) at++;
      if (text[at] !== "{") return { calls, end: at >= text.length ? -1 : at + 1 };
      const { call, end } = objectAt(text, at, true);
      if (call) calls.push(call);
      if (end < 0) return { calls, end };
      at = end;
    }
  },
};
/** The forms of calls that a page reads. */
export const READ = [...Object.keys(BODIES), "llama", "llama-json"];

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
  let at = 0;
  while (body[at] === "{") {
    const { call, end } = objectAt(body, at, false);
    if (!call) break;
    calls.push(call);
    at = end < 0 ? body.length : end;
    const next = /^\s*;?\s*/.exec(body.slice(at));
    at += next ? next[0].length : 0;
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
  const sign = (/** @type {string} */ mark) => signs?.[mark] ?? mark;
  let [rest, reasoning] = [text, ""];
  if (thinking) {
    const [begin, close] = thinking.map(sign);
    const start = text.trimStart();
    if (opened || start.startsWith(begin)) {
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
  let content = "";
  while (rest) {
    const found = marks.map((mark) => [rest.indexOf(mark), mark]).filter(([at]) => at !== -1)
      .sort(([a], [b]) => Number(a) - Number(b))[0];
    if (!found) {
      content += ended ? rest : cut(rest, marks);
      break;
    }
    const [at, mark] = [Number(found[0]), String(found[1])];
    content += rest.slice(0, at);
    rest = rest.slice(at + mark.length);
    if (!opening || mark !== sign(opening)) continue;
    const made = body(rest, { ...form, closing: sign(form.closing ?? ""), signs }, tools);
    if (made.end < 0 && !ended) break;
    const end = made.end < 0 ? rest.length : made.end;
    if (!made.calls.length) {
      content += mark + rest.slice(0, end);
      rest = rest.slice(end);
      continue;
    }
    calls.push(...made.calls);
    content = content.trimEnd();
    rest = rest.slice(end).trimStart();
  }
  return { content: ended ? content : content.trimEnd(), reasoning, calls };
}

/**
 * A text without what may be the beginning of a mark.
 * @param {string} text @param {string[]} marks
 */
function cut(text, marks) {
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
