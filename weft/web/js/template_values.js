// Python's values in a chat template. A text is a string, counted in code points; a list or
// a tuple an array; a dict a Map; None null; what is not there undefined; an iterator a Stream.

import { WeftError } from "./program.js";

export const MOST_TEXT = 2 ** 24; // characters

/** @param {string} why @returns {WeftError} */
export const fail = (why) => new WeftError(`the chat template failed on these messages: ${why}`);

/** A value that can be iterated once, like Python's iterators. */
export class Stream {
  /** @param {any[]} items */
  constructor(items) {
    this.items = items;
  }

  take() {
    const { items } = this;
    this.items = [];
    return items;
  }
}

/** A page's value as a template's. @param {any} value @returns {any} */
export function from(value) {
  if (Array.isArray(value)) return value.map(from);
  if (typeof value === "number") return whole(value);
  if (typeof value === "string" || typeof value === "boolean") return value;
  if (value === null || value === undefined) return value;
  if (typeof value !== "object") throw fail(`it was given a ${typeof value}`);
  return new Map(Object.entries(value).map(([key, inner]) => [key, from(inner)]));
}

/** @param {any} value @returns {number} Python writes others than whole numbers differently */
function whole(value) {
  if (!Number.isSafeInteger(value)) throw fail(`${value} is no whole number that a page can hold`);
  return value;
}

/** @param {any} value @returns {string} as Python's str */
export function text(value) {
  switch (typeof value) {
    case "string": return value;
    case "number": return String(value);
    case "undefined": return "";
    case "boolean": return value ? "True" : "False";
  }
  if (value === null) return "None";
  throw fail("it writes a list or a dict without tojson");
}

/** @param {any} value @returns {boolean} */
export function truth(value) {
  if (Array.isArray(value)) return value.length > 0;
  return value instanceof Map ? value.size > 0 : Boolean(value);
}

/** @param {any} value @returns {any[]} */
export function iterate(value) {
  if (Array.isArray(value)) return value;
  if (typeof value === "string" || value instanceof Map) {
    return Array.from(typeof value === "string" ? value : value.keys());
  }
  if (value instanceof Stream) return value.take();
  if (value === undefined) return [];
  throw fail("it goes through what has no items");
}

/** @param {any} value */
export function size(value) {
  if (value instanceof Stream) throw fail("an iterator has no length");
  return iterate(value).length;
}

/** @param {any} of @param {string} name @returns {any} */
export function attribute(of, name) {
  if (of === undefined) throw fail(`it looks for ${name} in what is not defined`);
  return of instanceof Map ? of.get(name) : undefined;
}

/** @param {any} of @param {any} key @returns {any} */
export function element(of, key) {
  if (of instanceof Map || of === undefined) return attribute(of, key);
  if (typeof key !== "number" || !(typeof of === "string" || Array.isArray(of))) return undefined;
  return iterate(of).at(key);
}

/** @param {any} of @param {any} start @param {any} stop @param {any} step */
export function slice(of, start, stop, step) {
  if (!(typeof of === "string" || Array.isArray(of))) throw fail("it slices what is no list");
  const items = iterate(of);
  const by = step ?? 1;
  if (!by) throw fail("a slice goes nowhere");
  const [low, high] = by > 0 ? [0, items.length] : [-1, items.length - 1];
  const end = (/** @type {any} */ at, /** @type {number} */ otherwise) =>
    (at === undefined || at === null ? otherwise
      : Math.min(Math.max(at < 0 ? at + items.length : at, low), high));
  const [from, to] = [end(start, by > 0 ? low : high), end(stop, by > 0 ? high : low)];
  const out = [];
  for (let at = from; by > 0 ? at < to : at > to; at += by) out.push(items[at]);
  return typeof of === "string" ? out.join("") : out;
}

/** @param {any} a @param {any} b @returns {boolean} */
export function equal(a, b) {
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, n) => equal(item, b[n]));
  }
  if (a instanceof Map && b instanceof Map) {
    return a.size === b.size
      && [...a].every(([key, item]) => b.has(key) && equal(item, b.get(key)));
  }
  return number(a) === number(b);
}

/** A truth value counts as 0 or 1. @param {any} value */
const number = (value) => (typeof value === "boolean" ? Number(value) : value);

/** @param {any} a @param {any} b @returns {number} below 0 where `a` is before `b` */
function order(a, b) {
  [a, b] = [number(a), number(b)];
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== "string" || typeof b !== "string") throw fail("it orders what has no order");
  const [left, right] = [Array.from(a), Array.from(b)];
  const at = left.findIndex((sign, n) => sign !== right[n]);
  if (at < 0 || at >= right.length) return left.length - right.length;
  return /** @type {number} */ (left[at].codePointAt(0))
    - /** @type {number} */ (right[at].codePointAt(0));
}

/** @param {any} item @param {any} of */
export function contains(item, of) {
  if (typeof of === "string") {
    if (typeof item !== "string") throw fail("it looks in a text for what is no text");
    return of.includes(item);
  }
  return of instanceof Map ? of.has(item) : iterate(of).some((each) => equal(each, item));
}

/** @type {Record<string, (a: any, b: any) => boolean>} */
export const OPERATORS = {
  eq: equal,
  ne: (a, b) => !equal(a, b),
  lt: (a, b) => order(a, b) < 0,
  lteq: (a, b) => order(a, b) <= 0,
  gt: (a, b) => order(a, b) > 0,
  gteq: (a, b) => order(a, b) >= 0,
  in: contains,
  notin: (a, b) => !contains(a, b),
};

/** @param {string} operator @param {any} a @param {any} b */
export const compared = (operator, a, b) => OPERATORS[operator](a, b);

/** @param {any} a @param {any} b */
export function sum(a, b) {
  if (typeof a === "string" && typeof b === "string") return joined("", [a, b]);
  if (Array.isArray(a) && Array.isArray(b)) return [...a, ...b];
  [a, b] = [number(a), number(b)];
  if (typeof a === "number" && typeof b === "number") return whole(a + b);
  throw fail("it adds what cannot be added");
}

/** @param {any} a @param {any} b */
export function times(a, b) {
  [a, b] = [number(a), number(b)];
  if (typeof a === "string" && typeof b === "number" && b >= 0 && a.length * b <= MOST_TEXT) {
    return a.repeat(b);
  }
  if (typeof a === "number" && typeof b === "number") return whole(a * b);
  throw fail("it multiplies what cannot be multiplied");
}

/** Quotient and remainder as Python has them. @param {any} a @param {any} b */
export function divided(a, b) {
  const [over, under] = [number(a), number(b)];
  if (typeof over !== "number" || typeof under !== "number" || !under) {
    throw fail("it divides by zero, or what is no number");
  }
  const quotient = Math.floor(over / under);
  return [quotient, over - quotient * under];
}

/**
 * Arguments by place, for parameters of these names.
 * @param {string} name @param {string[]} params @param {any[]} args @param {Map<string, any>} named
 */
export function bound(name, params, args, named) {
  const given = [...args];
  for (const [key, value] of named) {
    const at = params.indexOf(key);
    if (at < 0 || at in given) throw fail(`${name} takes no ${key}`);
    given[at] = value;
  }
  return given;
}

// -- texts ----------------------------------------------------------------------------------------

export const SPACE = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000";

/** @param {string} from which ends: "l", "r" or both */
export const stripped = (from) => (/** @type {string} */ self, /** @type {any} */ signs) => {
  const signs_ = signs ?? null;
  const gone = (/** @type {string} */ c) =>
    (signs_ === null ? new RegExp(`[${SPACE}]`).test(c) : signs_.includes(c));
  const all = Array.from(self);
  let [start, stop] = [0, all.length];
  if (from !== "r") while (start < stop && gone(all[start])) start++;
  if (from !== "l") while (stop > start && gone(all[stop - 1])) stop--;
  return all.slice(start, stop).join("");
};

/** @param {string} self @param {any} separator @param {any} most of cuts */
function split(self, separator, most) {
  if (separator === undefined || separator === null) {
    if (most !== undefined) throw fail("it splits at white space a number of times");
    return self.split(new RegExp(`[${SPACE}]+`)).filter(Boolean);
  }
  if (!separator) throw fail("it splits at nothing");
  const parts = self.split(separator);
  if (most === undefined || most < 0 || parts.length <= most + 1) return parts;
  return [...parts.slice(0, most), parts.slice(most).join(separator)];
}

/** @param {string} self @param {string} separator @param {any} most */
function splitFromEnd(self, separator, most) {
  const parts = split(self, separator, undefined);
  if (most === undefined || most < 0 || parts.length <= most + 1) return parts;
  const first = parts.length - most;
  return [parts.slice(0, first).join(separator), ...parts.slice(first)];
}

/** @param {string} self @param {string} old @param {string} fresh @param {any} [most] */
export function replaced(self, old, fresh, most) {
  if (!old) throw fail("it replaces nothing");
  return joined(fresh, split(self, old, most ?? undefined));
}

/** @param {string} self */
export function capital(self) {
  const [first = ""] = Array.from(self);
  const [large = "", ...more] = Array.from(first.toUpperCase());
  const rest = self.toLowerCase().slice(first.toLowerCase().length);
  return large + more.join("").toLowerCase() + rest;
}

/** @param {string} between @param {string[]} items */
export function joined(between, items) {
  const most = items.reduce((size, item) => size + item.length + between.length, 0);
  if (most > MOST_TEXT) throw fail("it makes too long a text");
  return items.join(between);
}

/** @param {any} parts one text, or some */
const some = (parts, /** @type {(part: string) => boolean} */ test) =>
  (Array.isArray(parts) ? parts : [parts]).some(test);

/** The methods that may be called, by the kind of the value. */
export const METHODS = {
  /** @type {Record<string, (self: string, ...args: any[]) => any>} */
  text: {
    strip: stripped(""),
    lstrip: stripped("l"),
    rstrip: stripped("r"),
    split,
    rsplit: splitFromEnd,
    replace: replaced,
    upper: (self) => self.toUpperCase(),
    lower: (self) => self.toLowerCase(),
    capitalize: capital,
    startswith: (self, parts) => some(parts, (part) => self.startsWith(part)),
    endswith: (self, parts) => some(parts, (part) => self.endsWith(part)),
    find: (self, part) => {
      const at = self.indexOf(part);
      return at < 0 ? at : Array.from(self.slice(0, at)).length;
    },
    join: (self, items) => {
      const all = iterate(items);
      if (!all.every((item) => typeof item === "string")) throw fail("it joins what is no text");
      return joined(self, all);
    },
    removeprefix: (self, part) => (self.startsWith(part) ? self.slice(part.length) : self),
    removesuffix: (self, part) =>
      (part && self.endsWith(part) ? self.slice(0, -part.length) : self),
  },
  /** @type {Record<string, (self: Map<any, any>, ...args: any[]) => any>} */
  dict: {
    items: (self) => [...self],
    keys: (self) => [...self.keys()],
    values: (self) => [...self.values()],
    get: (self, key, otherwise = null) => (self.has(key) ? self.get(key) : otherwise),
  },
};
