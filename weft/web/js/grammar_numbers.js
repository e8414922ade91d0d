// Numbers of JSON between bounds, digit by digit.

import { unsupported } from "./schema_flat.js";

/** @typedef {Pick<import("./grammar.js").Grammar, "bytes" | "then" | "either" | "times">
 *   & {literal: (text: string) => number}} Grammar or the languages, which have the same names */
/** @typedef {{text: string, open: boolean}} Bound a decimal that is not negative, and whether it is
 *   itself outside */

const WHOLE = 18; // digits before the point
const PRECISE = 15; // digits by which float64 tells all decimals apart

/** @param {Grammar} g @param {number} low @param {number} high */
const digit = (g, low = 0, high = 9) =>
  (low > high ? g.either() : g.bytes([[48 + low, 48 + high]]));

/** Any number. @param {Grammar} g @param {boolean} whole */
export function anyNumber(g, whole) {
  const first = digit(g, 1);
  const count = g.either(digit(g, 0, 0), g.then(first, g.times(digit(g), 0, WHOLE - 1)));
  const sign = g.either(g.literal("-"), g.literal(""));
  if (whole) return g.then(sign, count);
  const fraction = g.then(g.literal("."), g.times(digit(g), 1, 25));
  const power = g.then(g.bytes([[69, 69], [101, 101]]),
    g.either(g.literal(""), g.literal("+"), g.literal("-")),
    g.either(g.times(digit(g), 1, 2), g.then(digit(g, 1, 2), g.times(digit(g), 2, 2))));
  const none = g.literal("");
  return g.then(sign, g.either(g.then(count, g.either(fraction, none)),
    g.then(digit(g), g.either(fraction, none), power)));
}

/**
 * Digits between two texts of digits that are as long.
 * @param {Grammar} g @param {string} low @param {string} high @returns {number}
 */
function fixed(g, low, high) {
  if (low > high) return g.either();
  if (/^0*$/.test(low) && /^9*$/.test(high)) return g.times(digit(g), low.length, low.length);
  const [a, b, rest] = [Number(low[0]), Number(high[0]), low.length - 1];
  const [down, up] = [low.slice(1), high.slice(1)];
  if (a === b) return g.then(digit(g, a, a), fixed(g, down, up));
  return g.either(g.then(digit(g, a, a), fixed(g, down, "9".repeat(rest))),
    g.then(digit(g, a + 1, b - 1), fixed(g, "0".repeat(rest), "9".repeat(rest))),
    g.then(digit(g, b, b), fixed(g, "0".repeat(rest), up)));
}

/**
 * Whole numbers from one to another, neither negative.
 * @param {Grammar} g @param {bigint} low @param {bigint} high
 */
function count(g, low, high) {
  const parts = [];
  for (let size = 1; size <= String(high).length; size++) {
    const from = size === 1 ? 0n : 10n ** BigInt(size - 1);
    const [a, b] = [low > from ? low : from, 10n ** BigInt(size) - 1n];
    const to = high < b ? high : b;
    if (a <= to) parts.push(fixed(g, String(a), String(to)));
  }
  return g.either(...parts);
}

/** @param {Grammar} g @param {bigint} low @param {bigint} high whole numbers, of any sign */
function wholes(g, low, high) {
  const parts = [];
  if (high >= 0n) parts.push(count(g, low > 0n ? low : 0n, high));
  if (low < 0n) parts.push(g.then(g.literal("-"), count(g, high < 0n ? -high : 1n, -low)));
  return g.either(...parts);
}

/**
 * Digits after the point between two others, without zeros at their ends: `end` where there may
 * be none (more), `more` what one or more are.
 * @param {Grammar} g @param {Bound | null} low @param {Bound | null} high @param {number} most
 * @returns {{end: boolean, more: number}}
 */
function fraction(g, low, high, most) {
  const end = (!low || (low.text === "" && !low.open))
    && (!high || high.text !== "" || !high.open);
  if (most === 0) return { end, more: g.either() };
  if (!low && !high) return { end, more: g.times(digit(g), 1, most) };
  const [a, b] = [Number(low?.text[0] ?? 0), high ? Number(high.text[0] ?? 0) : 9];
  if (low && high && a > b) return { end: false, more: g.either() };
  const after = (/** @type {Bound | null} */ of) => of && { ...of, text: of.text.slice(1) };
  const begun = (/** @type {number} */ by, /** @type {Bound | null} */ from,
    /** @type {Bound | null} */ to) => {
    const next = fraction(g, from, to, most - 1);
    return g.then(digit(g, by, by), g.either(next.more, next.end ? g.literal("") : g.either()));
  };
  if (a === b && low && high) return { end, more: begun(a, after(low), after(high)) };
  const parts = [];
  if (low) parts.push(begun(a, after(low), null));
  if (high) parts.push(begun(b, null, after(high)));
  const [from, to] = [low ? a + 1 : 0, high ? b - 1 : 9];
  parts.push(g.then(digit(g, from, to), g.times(digit(g), 0, most - 1)));
  return { end, more: g.either(...parts) };
}

/** @param {Bound} bound @returns {[bigint, Bound]} before and after the point */
function parted({ text, open }) {
  const [before, after = ""] = text.split(".");
  return [BigInt(before), { text: after.replace(/0+$/, ""), open }];
}

/**
 * Decimals between two that are not negative; without `high` up to WHOLE digits.
 * @param {Grammar} g @param {Bound} low @param {Bound | null} high
 */
function decimals(g, low, high) {
  const [from, down] = parted(low);
  const [to, up] = high ? parted(high) : [10n ** BigInt(PRECISE - 1), null];
  const most = PRECISE - String(to).length;
  const all = (/** @type {number} */ before, /** @type {Bound | null} */ a,
    /** @type {Bound | null} */ b) => {
    const { end, more } = fraction(g, a, b, most);
    return g.then(before, g.either(g.then(g.literal("."), more),
      end ? g.literal("") : g.either()));
  };
  const one = (/** @type {bigint} */ n) => g.literal(String(n));
  if (from > to) return g.either();
  if (from === to) return all(one(from), down, up);
  const parts = [all(one(from), down, null)];
  if (to > from + 1n) parts.push(all(count(g, from + 1n, to - 1n), null, null));
  if (up) parts.push(all(one(to), null, up));
  return g.either(...parts);
}

/** @typedef {{at: number, open: boolean}} Limit a bound of a schema, and whether it is outside */

/** @param {any} plain @param {any} open @param {number} sign @returns {Limit | null} */
function nearer(plain, open, sign) {
  if (plain === undefined && open === undefined) return null;
  if (plain === undefined || (open !== undefined && sign * (open - plain) >= 0)) {
    return { at: open, open: true };
  }
  return { at: plain, open: false };
}

/**
 * Numbers between the bounds of a schema.
 * @param {Grammar} g @param {Record<string, any>} one @param {boolean} whole @param {string} where
 */
export function bounded(g, one, whole, where) {
  const low = nearer(one.minimum, one.exclusiveMinimum, 1);
  const high = nearer(one.maximum, one.exclusiveMaximum, -1);
  if (!whole) return decimal(g, low, high, where);
  const most = 10n ** BigInt(WHOLE) - 1n;
  const from = low ? BigInt(low.open ? Math.floor(low.at) + 1 : Math.ceil(low.at)) : -most;
  const to = high ? BigInt(high.open ? Math.ceil(high.at) - 1 : Math.floor(high.at)) : most;
  return from <= to ? wholes(g, from, to) : g.either();
}

/**
 * @param {Grammar} g @param {Limit | null} low @param {Limit | null} high @param {string} where
 */
function decimal(g, low, high, where) {
  const written = (/** @type {Limit | null} */ limit) => {
    if (!limit) return null;
    const text = String(Math.abs(limit.at));
    if (/e/.test(text) || text.replace(".", "").replace(/^0+/, "").length > PRECISE - 3) {
      throw unsupported(`the bound ${limit.at}`, where, "one of fewer digits");
    }
    return { text, open: limit.open };
  };
  const [down, up] = [written(low), written(high)];
  const parts = [];
  if (!high || high.at >= 0) {
    const zero = { text: "0", open: low?.at === 0 && low.open };
    parts.push(decimals(g, low && low.at > 0 && down ? down : zero, up));
  }
  if (!low || low.at < 0) {
    const near = high && high.at < 0 && up ? up : { text: "0", open: true };
    parts.push(g.then(g.literal("-"), decimals(g, near, down)));
  }
  return g.either(...parts);
}
