// Numbers and texts of JSON schemas, and names: what several keywords say at once is a language.

import { NEVER } from "./grammar.js";
import { anyNumber, bounded } from "./grammar_numbers.js";
import { LAST } from "./language.js";
import { FORMATS, pattern } from "./patterns.js";
import { WeftError } from "./program.js";
import { both, same, unsupported } from "./schema_flat.js";

/** @typedef {import("./grammar.js").Grammar} Grammar */
/** @typedef {import("./language.js").Languages} Languages */
/** @typedef {import("./schema_flat.js").One} One */

const FREE = ["binary", "path", "file-path", "directory-path", "password"]; // any text has them
const BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const ARRAYS = 400; // lists that are spelt out
const LARGEST = 10 ** 12 - 1; // multiples below are exact in float64, with three decimals too

/** @param {any} value @returns {string} its type in JSON */
export const typeOf = (value) => (value === null ? "null" : Array.isArray(value) ? "array"
  : typeof value === "object" ? "object" : typeof value);

/**
 * Lists of different items, where these are of a few values.
 * @param {import("./schema_flat.js").Flat} flat @param {One} one @param {number} most
 * @param {string} where @returns {any[][]}
 */
export function distinct(flat, one, most, where) {
  const [{ prefixItems, items = true } = { items: true }, ...more] = one.lists ?? [];
  const kinds = prefixItems || more.length ? [{}]
    : flat.alternatives(items, `${where}/items`, true);
  const values = kinds.flatMap(({ enum: listed, type, ...rest }) => {
    const all = listed ?? (type?.join() === "boolean" ? [false, true]
      : type?.join() === "null" ? [null] : [undefined]);
    return Object.keys(rest).length ? [undefined] : all.filter((/** @type {any} */ value) => !type
      || value === undefined || both([typeOf(value)], type).length
      || (Number.isInteger(value) && type.includes("integer")));
  }).filter((value, n, all) => all.findIndex((other) => same(value, other)) === n);
  /** @type {any[][]} */
  const made = [[]];
  for (let n = 0; n < made.length && made.length <= ARRAYS; n++) {
    if (made[n].length === Math.min(most, values.length)) break;
    for (const value of values) if (!made[n].includes(value)) made.push([...made[n], value]);
  }
  if (values.includes(undefined) || made.length > ARRAYS) {
    throw unsupported("uniqueItems", where, "items of up to five values (enum), maxItems, or an "
      + "object of booleans");
  }
  return made;
}

/**
 * @param {Grammar} g @param {Languages} l @param {One} one @param {boolean} whole
 * @param {string} where @returns {number} an expression of the grammar
 */
export function numbers(g, l, one, whole, where) {
  for (const name of BOUNDS.filter((each) => one[each] !== undefined)) {
    if (typeof one[name] !== "number") {
      throw new WeftError(`${where}/${name} of the JSON schema is ${JSON.stringify(one[name])}; `
        + "expected a number");
    }
  }
  const { multiples = [], except = [], fraction } = one;
  if (!multiples.length && !except.length && !fraction) {
    return BOUNDS.every((name) => one[name] === undefined) ? anyNumber(g, whole)
      : bounded(g, one, whole, where);
  }
  if (fraction && whole) return NEVER;
  const within = { ...one, minimum: Math.max(one.minimum ?? -LARGEST, -LARGEST),
    maximum: Math.min(one.maximum ?? LARGEST, LARGEST) };
  const parts = [l.text(bounded(l, whole || multiples.length ? within : one, whole, where))];
  for (const { by, no } of multiples) {
    const is = l.text(l.then(l.times(l.literal("-"), 0, 1), step(l, by, where)));
    parts.push(no ? l.not(is) : is);
  }
  const digit = l.bytes([[48, 57]]);
  for (const value of except) parts.push(l.not(l.text(spelled(l, value, where))));
  if (fraction) parts.push(l.found(l.then(l.literal("."), l.times(digit, 0), l.bytes([[49, 57]]))));
  return l.spelled(g, l.both(...parts));
}

/** Multiples, without a sign. @param {Languages} l @param {any} by @param {string} where */
function step(l, by, where) {
  if (typeof by !== "number" || !(by > 0)) {
    throw new WeftError(`${where}/multipleOf of the JSON schema is ${JSON.stringify(by)}; `
      + "expected more than 0");
  }
  const places = (String(by).split(".")[1] ?? "").length;
  if (/e/.test(String(by)) || !Number.isInteger(by * 2 ** places)) {
    throw unsupported(`multipleOf ${by} (readers that compute in binary disagree on its multiples)`,
      where, "an integer of that unit");
  }
  return l.multiple(Math.round(by * 10 ** places), places);
}

/**
 * A number in every spelling without exponent.
 * @param {Languages} l @param {number} value @param {string} where
 */
function spelled(l, value, where) {
  const text = String(Math.abs(value));
  if (/e/.test(text)) throw unsupported(`not of the number ${value}`, where, "one of fewer digits");
  const zeros = l.times(l.literal("0"), 0);
  const sign = value < 0 ? l.literal("-") : l.times(l.literal("-"), 0, value === 0 ? 1 : 0);
  return l.then(sign, l.literal(text), text.includes(".") ? zeros
    : l.times(l.then(l.literal("."), zeros), 0, 1));
}

/** @param {Languages} l @param {One} one @param {string} where @returns {number} a language */
export function strings(l, one, where) {
  const { minLength = 0, maxLength = Infinity, texts = [] } = one;
  const all = l.text(l.times(l.bytes([[0, LAST]]), minLength, maxLength));
  return l.both(all, ...texts.map((/** @type {any} */ { pattern: source, format, listed, no }) => {
    if (listed) {
      const of = l.either(...listed.map((/** @type {string} */ text) => l.text(l.literal(text))));
      return no ? l.not(of) : of;
    }
    if (source !== undefined) return no ? l.not(pattern(l, source, true)) : pattern(l, source);
    if (FREE.includes(format)) return l.any;
    if (Object.hasOwn(FORMATS, format)) return pattern(l, FORMATS[format]);
    throw unsupported(`the format ${JSON.stringify(format)}`, where, "a pattern, or a text with a "
      + "description");
  }));
}

/**
 * The texts that satisfy some schemas, as names do.
 * @param {import("./schema_flat.js").Flat} flat @param {Languages} l @param {any[]} schemas
 * @param {string} where
 */
export function named(flat, l, schemas, where) {
  return l.both(...schemas.map((schema) => l.either(...flat.alternatives(schema, where, true)
    .map((one) => {
      if (one.type && !one.type.includes("string")) return NEVER;
      const listed = one.enum?.filter((/** @type {any} */ value) => typeof value === "string");
      const texts = [...one.texts ?? [], ...listed ? [{ listed }] : []];
      return strings(l, { ...one, texts }, where);
    }))));
}
