// The options of each call, checked before anything runs.

import { WeftError } from "./program.js";

const PROMPT = "the prompt";

/** @typedef {[fits: (value: any) => boolean, expected: string]} Rule */

const [LEAST, MOST] = [2 ** -126, 2 ** 126]; // of float32's normal numbers
/** @param {number} low @returns {Rule} */
export const count = (low) =>
  [(v) => Number.isSafeInteger(v) && v >= low, `a whole number from ${low} on`];
/** @type {Rule} */
export const FUNCTION = [(v) => typeof v === "function", "a function"];
/** @type {Rule} */
export const BOOLEAN = [(v) => typeof v === "boolean", "true or false"];
/** @type {Rule} */
export const OBJECT = [(v) => v !== null && typeof v === "object", "an object"];
/** @type {Rule} */
export const TEXT = [(v) => typeof v === "string", "a text"];
/** @type {Rule} */
export const TEXTS = [(v) => Array.isArray(v) && v.every(TEXT[0]), "a list of texts"];
/** @type {Rule} */
export const FOLDER = [(v) => (TEXT[0](v) && v.trim() !== "") || v instanceof URL,
  'the address of what weft export web wrote, such as "./model/"'];
/** @type {Rule} */
export const SIGNAL = [(v) => v instanceof AbortSignal, "an AbortSignal"];
/** @type {Rule} */
export const SEED = [
  (v) => (typeof v === "bigint" || Number.isSafeInteger(v)) && v >= 0 && v < 2n ** 64n,
  "a whole number from 0 to 2^64 - 1, a BigInt from 2^53 on",
];

/** What trains, of a folder's kinds. @param {string[]} [kinds] @returns {Rule} */
export const oneOf = (kinds = []) => [(v) => kinds.includes(v),
  kinds.join(" or ") || "a folder that was exported with --train"];

/** @type {Record<string, Rule>} */
export const GENERATE = {
  maxNewTokens: count(0),
  temperature: [(v) => typeof v === "number" && v >= 0 && v < Infinity, "a number from 0 on"],
  topK: count(0),
  topP: [(v) => typeof v === "number" && v > 0 && v <= 1, "a number above 0, at most 1"],
  repetitionPenalty: [
    (v) => typeof v === "number" && v >= LEAST && v <= MOST, "a number from 2^-126 to 2^126"],
  seed: SEED,
  images: [(v) => Array.isArray(v) && v.every((x) => x instanceof Uint8ClampedArray),
    "a list of pictures, as RGBA pixels"],
  stop: [(v) => [v].flat().every((s) => typeof s === "string" && s),
    "a text that is not empty, or a list of such texts"],
  schema: [(v) => v === true || (OBJECT[0](v) && !Array.isArray(v)), "a JSON schema: an object"],
  responseFormat: OBJECT,
  signal: SIGNAL,
};
/** @type {Record<string, Rule>} */
export const CHAT = {
  ...GENERATE, variables: OBJECT, slide: BOOLEAN,
  tools: [(v) => Array.isArray(v), "a list of tools"],
  toolChoice: [(v) => typeof v === "string" || OBJECT[0](v), "a text or an object"],
};
const named = (/** @type {any} */ v) => OBJECT[0](v)
  && Object.values(v).every((text) => typeof text === "string");
/** @type {Record<string, Rule>} of a folder's files */
export const ACCESS = {
  fetch: FUNCTION, headers: [named, "an object of texts by their header's name"],
  address: [(v) => FUNCTION[0](v) || named(v),
    "a function from a file's name to its address, or an object of addresses by name"],
};
/** @type {Record<string, Rule>} of where a model plays */
export const PLACED = {
  target: [(v) => ["auto", "webgpu", "wasm"].includes(v), '"auto", "webgpu" or "wasm"'],
  powerPreference: [(v) => ["high-performance", "low-power"].includes(v),
    '"high-performance" or "low-power"'],
  threads: count(1), signal: SIGNAL, progress: FUNCTION, note: FUNCTION,
};
/** @type {Record<string, Rule>} of a page, whose model lives in a worker */
export const PAGE = { ...PLACED, ...ACCESS };
/** @type {Record<string, Rule>} */
export const LOAD = { ...PAGE, gpu: OBJECT, Worker: FUNCTION };
/** @type {Record<string, Rule>} */
export const EMBED = { signal: SIGNAL, progress: FUNCTION };
/** @type {Record<string, Rule>} */
export const TRAIN = {
  steps: count(1),
  lr: [(v) => typeof v === "number" && v >= 0 && v <= 10, "a number from 0 to 10"],
  seed: SEED, signal: SIGNAL,
};

/** @param {any} value as a message shows it @returns {string} */
export function shown(value) {
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "function") return "a function";
  if (!OBJECT[0](value) && !TEXT[0](value)) return String(value);
  const kind = Object.getPrototypeOf(value)?.constructor?.name;
  if (OBJECT[0](value) && !["Object", "Array"].includes(kind)) return `of the type ${kind}`;
  try {
    return JSON.stringify(value).slice(0, 60);
  } catch {
    return `of the type ${kind}`; // it leads to itself, or holds a BigInt
  }
}

/**
 * What a call is given; a WeftError if it is not what it may be.
 * @template T @param {T} given @param {Rule} rule @param {string} what @returns {T}
 */
export function fit(given, [fits, expected], what) {
  if (fits(given)) return given;
  throw new WeftError(`${what} is ${shown(given)}; expected ${expected}`);
}

/**
 * The address of a folder, with a slash before what signs it (?…).
 * @param {string | URL} folder @param {string} call @param {string} [base] @returns {string}
 */
export function addressOf(folder, call, base) {
  if (!URL.canParse(folder, base)) {
    throw new WeftError(`the folder of ${call} is ${shown(folder)}, which is not an address`);
  }
  const url = new URL(folder, base);
  url.hash = "";
  url.pathname = url.pathname.replace(/\/?$/, "/");
  return url.href;
}

/**
 * The options of a call; a WeftError for one that is unknown or has another value than it may.
 * @template T @param {T} options @param {Record<string, Rule>} rules @param {string} call its name
 * @returns {T}
 */
export function allowed(options, rules, call) {
  if (!OBJECT[0](options) || Array.isArray(options)) {
    throw new WeftError(`the options of ${call} are ${shown(options)}; expected an object`);
  }
  for (const [name, value] of Object.entries(/** @type {any} */ (options))) {
    if (!Object.hasOwn(rules, name)) {
      throw new WeftError(`${call} has no option ${name}; it has `
        + `${Object.keys(rules).join(", ") || "none"}`);
    }
    if (value !== undefined) fit(value, rules[name], name);
  }
  return options;
}

/**
 * Token ids that a call is given in place of a text.
 * @param {any} given @param {number} vocab how many there are @param {string} [what] its name
 * @returns {number[]}
 */
export function idsOf(given, vocab, what = PROMPT) {
  fit(given, [(v) => Array.isArray(v) || (ArrayBuffer.isView(v) && !(v instanceof DataView)),
    `${what === PROMPT ? "a text or " : ""}a list of token ids`], what);
  if (given[0]?.role !== undefined) {
    throw new WeftError(`${what} is a conversation: give it to chat`);
  }
  const ids = [...given];
  const at = ids.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= vocab);
  if (at >= 0) {
    throw new WeftError(`id ${at} of ${what} is ${shown(ids[at])}; expected whole numbers from `
      + `0 to ${vocab - 1}`);
  }
  return ids;
}
