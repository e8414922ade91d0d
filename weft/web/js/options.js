// The options of each call, checked before anything runs.

import { WeftError } from "./program.js";

/** @typedef {[fits: (value: any) => boolean, expected: string]} Rule */

const [LEAST, MOST] = [2 ** -126, 2 ** 126]; // of float32's normal numbers
/** @param {number} low @returns {Rule} */
export const count = (low) =>
  [(v) => Number.isSafeInteger(v) && v >= low, `a whole number from ${low} on`];
/** @type {Rule} */
const FUNCTION = [(v) => typeof v === "function", "a function"];
/** @type {Rule} */
export const BOOLEAN = [(v) => typeof v === "boolean", "true or false"];
/** @type {Rule} */
const OBJECT = [(v) => v !== null && typeof v === "object", "an object"];
/** @type {Rule} */
export const SIGNAL = [(v) => v instanceof AbortSignal, "an AbortSignal"];
/** @type {Rule} */
export const SEED = [
  (v) => (typeof v === "bigint" || Number.isSafeInteger(v)) && v >= 0 && v < 2n ** 64n,
  "a whole number from 0 to 2^64 - 1, a BigInt from 2^53 on",
];

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
export const EMBED = { signal: SIGNAL, progress: FUNCTION, onVector: FUNCTION };
/** @type {Record<string, Rule>} */
export const TRAIN = {
  steps: count(1),
  lr: [(v) => typeof v === "number" && v >= 0 && v <= 10, "a number from 0 to 10"],
  seed: SEED, signal: SIGNAL,
};

/** @param {any} value as a message shows it */
export const shown = (value) => (typeof value === "string" ? JSON.stringify(value)
  : typeof value === "bigint" ? `${value}n` : Array.isArray(value) ? `[${value}]` : String(value));

/**
 * The options of a call; a WeftError for one that is unknown or has another value than it may.
 * @template T @param {T} options @param {Record<string, Rule>} rules @param {string} call its name
 * @returns {T}
 */
export function allowed(options, rules, call) {
  if (!OBJECT[0](options)) throw new WeftError(`the options of ${call} are ${shown(options)}; `
    + "expected an object");
  for (const [name, value] of Object.entries(/** @type {any} */ (options))) {
    if (!Object.hasOwn(rules, name)) {
      throw new WeftError(`${call} has no option ${name}; it has ${Object.keys(rules).join(", ")}`);
    }
    const [fits, expected] = rules[name];
    if (value !== undefined && !fits(value)) {
      throw new WeftError(`${name} is ${shown(value)}; expected ${expected}`);
    }
  }
  return options;
}

/**
 * The texts, or the one text, that a call is given.
 * @template T @param {T} given @param {string} what its name @returns {T}
 */
export function texts(given, what) {
  const all = Array.isArray(given) ? given : [given];
  const odd = all.find((text) => typeof text !== "string");
  if (all.includes(odd)) throw new WeftError(`${what} has ${shown(odd)}; expected a text`);
  return given;
}

/**
 * Token ids that a call is given in place of a text.
 * @param {any} given @param {number} vocab how many there are @returns {number[]}
 */
export function idsOf(given, vocab) {
  if (!Array.isArray(given) && !ArrayBuffer.isView(given)) {
    throw new WeftError(`the prompt is ${shown(given)}; expected a text or a list of token ids`);
  }
  const ids = [.../** @type {any} */ (given)];
  const at = ids.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= vocab);
  if (at >= 0) {
    throw new WeftError(`id ${at} of the prompt is ${shown(ids[at])}; expected whole numbers from `
      + `0 to ${vocab - 1}`);
  }
  return ids;
}
