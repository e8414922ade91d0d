// Filters and tests of chat templates, as jinja2 has them: what weft/web/chat.py lets through.

import {
  OPERATORS, SPACE, Stream, capital, contains, divided, element, equal, fail, iterate, joined,
  replaced, size, stripped, text, truth,
} from "./template_values.js";

/** @param {any} value @param {any} ascii @param {any} indent as Python's json.dumps */
function json(value, ascii, indent) {
  const made = written(value, indent ?? null, "\n");
  if (!truth(ascii)) return made;
  return made.replace(/[^\0-\x7f]/g, (c) =>
    `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * @param {any} value @param {number | null} indent @param {string} before what a line begins with
 * @returns {string}
 */
function written(value, indent, before) {
  const list = Array.isArray(value);
  if (!list && !(value instanceof Map)) {
    if (value !== null && !["string", "number", "boolean"].includes(typeof value)) {
      throw fail("tojson of what JSON cannot hold");
    }
    return JSON.stringify(value);
  }
  const inner = indent === null ? before : before + " ".repeat(indent);
  const items = list ? value.map((item) => written(item, indent, inner))
    : Array.from(value, ([key, item]) => {
      if (typeof key !== "string") throw fail("tojson of a key that is no text");
      return `${JSON.stringify(key)}: ${written(item, indent, inner)}`;
    });
  const [open, close] = list ? "[]" : "{}";
  if (!items.length) return open + close;
  if (indent === null) return open + items.join(", ") + close;
  return open + inner + items.join(`,${inner}`) + before + close;
}

/** @param {any} of @param {string} path names or numbers with dots between */
const along = (of, path) => String(path).split(".").reduce((/** @type {any} */ now, part) =>
  element(now, /^\d+$/.test(part) ? Number(part) : part), of);

/** @param {any} name @param {any} known filters or tests @param {any[]} args given to it */
function chosen(name, known, args) {
  if (!Object.hasOwn(known, name)) throw fail(`this player does not know ${name}`);
  return (/** @type {any} */ value) => known[name][0](value, ...args);
}

/**
 * Keeps the items for which a test holds, or fails.
 * @param {boolean} wanted @param {boolean} named whether the first argument is an item's attribute
 */
const kept = (wanted, named) => (/** @type {any} */ value, /** @type {any[]} */ ...args) => {
  const path = named ? args.shift() : null;
  const [name, ...rest] = args;
  const holds = name === undefined ? truth : chosen(name, TESTS, rest);
  return new Stream(iterate(value).filter((item) =>
    holds(path === null ? item : along(item, path)) === wanted));
};

const count = [size];

/** Filters: what they do, and their parameters' names. @type {Record<string, any[]>} */
export const FILTERS = {
  capitalize: [(/** @type {any} */ v) => capital(text(v))],
  count,
  default: [(/** @type {any} */ v, other = "", empty = false) =>
    (v === undefined || (truth(empty) && !truth(v)) ? other : v), "default_value", "boolean"],
  first: [(/** @type {any} */ v) => iterate(v)[0]],
  items: [(/** @type {any} */ v) => {
    if (v !== undefined && !(v instanceof Map)) throw fail("items of what is no dict");
    return new Stream(v ? [...v] : []);
  }],
  join: [(/** @type {any} */ v, between = "", /** @type {any} */ path = null) => {
    const items = path === null ? iterate(v) : iterate(v).map((item) => along(item, path));
    return joined(text(between), items.map(text));
  }, "d", "attribute"],
  last: [(/** @type {any} */ v) => {
    if (v instanceof Stream) throw fail("an iterator has no last item");
    return iterate(v).at(-1);
  }],
  length: count,
  list: [(/** @type {any} */ v) => [...iterate(v)]],
  lower: [(/** @type {any} */ v) => text(v).toLowerCase()],
  map: [(/** @type {any} */ v, /** @type {any} */ name, /** @type {any[]} */ ...args) =>
    new Stream(iterate(v).map(chosen(name, FILTERS, args)))],
  "map.attribute": [(/** @type {any} */ v, /** @type {any} */ path) =>
    new Stream(iterate(v).map((item) => along(item, path)))],
  reject: [kept(false, false)],
  rejectattr: [kept(false, true)],
  replace: [(/** @type {any} */ v, /** @type {any} */ old, /** @type {any} */ fresh,
    /** @type {any} */ most) => replaced(text(v), text(old), text(fresh), most),
  "old", "new", "count"],
  reverse: [(/** @type {any} */ v) => (typeof v === "string" ? Array.from(v).reverse().join("")
    : new Stream([...iterate(v)].reverse()))],
  select: [kept(true, false)],
  selectattr: [kept(true, true)],
  string: [text],
  title: [(/** @type {any} */ v) => text(v).split(new RegExp(`([-${SPACE}({[<]+)`)).map((part) => {
    const [first = "", ...rest] = Array.from(part);
    return first.toUpperCase() + rest.join("").toLowerCase();
  }).join("")],
  tojson: [json, "ensure_ascii", "indent"],
  trim: [(/** @type {any} */ v, /** @type {any} */ signs) => stripped("")(text(v), signs), "chars"],
  upper: [(/** @type {any} */ v) => text(v).toUpperCase()],
};
FILTERS.d = FILTERS.default;

const isText = (/** @type {any} */ v) => typeof v === "string";
const isList = (/** @type {any} */ v) => isText(v) || Array.isArray(v) || v instanceof Map;
const equals = [equal, "other"];

/** Tests, likewise. @type {Record<string, any[]>} */
export const TESTS = {
  boolean: [(/** @type {any} */ v) => typeof v === "boolean"],
  defined: [(/** @type {any} */ v) => v !== undefined],
  divisibleby: [(/** @type {any} */ v, /** @type {any} */ by) => divided(v, by)[1] === 0],
  eq: equals,
  equalto: equals,
  even: [(/** @type {any} */ v) => divided(v, 2)[1] === 0],
  false: [(/** @type {any} */ v) => v === false],
  in: [contains],
  integer: [(/** @type {any} */ v) => typeof v === "number"],
  iterable: [(/** @type {any} */ v) => v === undefined || isList(v) || v instanceof Stream],
  mapping: [(/** @type {any} */ v) => v instanceof Map],
  ne: [OPERATORS.ne],
  none: [(/** @type {any} */ v) => v === null],
  number: [(/** @type {any} */ v) => typeof v === "number" || typeof v === "boolean"],
  odd: [(/** @type {any} */ v) => divided(v, 2)[1] === 1],
  sequence: [(/** @type {any} */ v) => v === undefined || isList(v)],
  string: [isText],
  true: [(/** @type {any} */ v) => v === true],
  undefined: [(/** @type {any} */ v) => v === undefined],
};
TESTS["=="] = equals;
TESTS["!="] = TESTS.ne;

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August",
  "September", "October", "November", "December"];

/** A time as Python's strftime writes it. @param {any} pattern @param {Date} now */
export function timed(pattern, now) {
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [day, month] = [DAYS[now.getDay()], MONTHS[now.getMonth()]];
  /** @type {Record<string, string>} */
  const known = {
    a: day.slice(0, 3), A: day, b: month.slice(0, 3), B: month, d: two(now.getDate()),
    m: two(now.getMonth() + 1), y: two(now.getFullYear() % 100), Y: String(now.getFullYear()),
    H: two(now.getHours()), M: two(now.getMinutes()), S: two(now.getSeconds()), "%": "%",
  };
  return text(pattern).replace(/%(.)/g, (_, letter) => {
    if (!Object.hasOwn(known, letter)) throw fail(`this player does not know the time %${letter}`);
    return known[letter];
  });
}
