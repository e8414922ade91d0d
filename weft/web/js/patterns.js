// Regular expressions of JSON schemas as languages. Where JavaScript's and Python's readers differ,
// a narrow language has what all of them match, and a wide one what any of them does.

import { EMPTY } from "./grammar.js";
import { LAST, others } from "./language.js";
import { WeftError } from "./program.js";

/** @typedef {import("./language.js").Languages} Languages */
/** @typedef {import("./grammar.js").Range} Range */

const YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
const DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
  + "|02-(?:0[1-9]|1[0-9]|2[0-8])";
const FOURS = "(?:0[48]|[2468][048]|[13579][26])";
const DATE = `(?:${YEAR}-(?:${DAY})|(?:[0-9]{2}${FOURS}|${FOURS}00)-02-29)`;
const HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
const TIME = `${HOUR}:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-]${HOUR})`;
const POINTER = "(?:/(?:[^/~]|~[01])*)*";
const PATH = "[A-Za-z0-9._~/-]|%[0-9A-F]{2}";
const QUERY = `(?:${PATH}|[!$&'()*+,;=:@?])*`;
const BYTE = "[A-Za-z0-9+/]";
const ATOM = "[A-Za-z0-9_ ,:;=@%]|\\\\[dws.]|\\.|\\[[A-Za-z0-9_]{1,20}\\]";
const HOST = "(?:[A-Za-z](?:-?[A-Za-z0-9]){0,30}(?:\\.[A-Za-z](?:-?[A-Za-z0-9]){0,30}){0,3})";
const OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const H = "[0-9a-fA-F]{1,4}";
const N = "[0-9]{1,9}";
const CLOCK = `T(?:${N}H(?:${N}M(?:${N}S)?)?|${N}M(?:${N}S)?|${N}S)`;
/** @type {Record<string, string>} */
export const FORMATS = {
  "date": `^${DATE}$`, "time": `^${TIME}$`, "date-time": `^${DATE}T${TIME}$`,
  "json-pointer": `^${POINTER}$`,
  "relative-json-pointer": `^(?:0|[1-9][0-9]{0,8})(?:#|${POINTER})$`,
  "uri-reference": `^(?:${PATH})*(?:\\?${QUERY})?(?:#${QUERY})?$`,
  "uri-template": `^(?:${PATH}|\\{[A-Za-z0-9_]+\\})*$`,
  "regex": `^\\^?(?:(?:${ATOM})[*+?]?)*\\$?$`,
  "byte": `^(?:${BYTE}{4})*(?:${BYTE}{2}==|${BYTE}{3}=)?$`,
  "uuid": "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
  "ipv4": `^(?:${OCTET}\\.){3}${OCTET}$`,
  "ipv6": `^(?:(?:${H}:){7}${H}|(?:${H}:){1,7}:|${[1, 2, 3, 4, 5, 6].map((n) =>
    `(?:${H}:){1,${7 - n}}(?::${H}){${n}}`).join("|")}|:(?:(?::${H}){1,7}|:))$`,
  "hostname": `^${HOST}$`,
  "email": `^[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@${HOST}$`,
  "uri": `^[A-Za-z][A-Za-z0-9+.-]*:(?://${HOST}(?::[0-9]{1,5})?(?:/(?:${PATH})*)?|[A-Za-z0-9]`
    + `(?:${PATH}|[:@])*)(?:\\?${QUERY})?(?:#${QUERY})?$`,
  "duration": `^P(?:(?:${N}Y(?:${N}M(?:${N}D)?)?|${N}M(?:${N}D)?|${N}D)(?:${CLOCK})?|${CLOCK}`
    + `|${N}W)$`,
};
for (const [wider, name] of [["idn-email", "email"], ["idn-hostname", "hostname"], ["iri", "uri"],
  ["iri-reference", "uri-reference"]]) FORMATS[wider] = FORMATS[name];

/** How pydantic (2.12, 2.13) begins the pattern of a Decimal. */
const DECIMAL = "^(?!^[-+.]*$)[+-]?0*";
/** @type {[RegExp, string][]} what of it is read otherwise, so that pydantic takes what comes */
const PLAINER = [
  [/0\*/g, ""], // makes a grammar many times larger: digits are zeros too
  [/(\\d\{0,\d+\})\|/, "$1$|0?"], // lacks a $, so that any text would do
  [/\\\.\\d\{0/, "\\.\\d{1"], // "0." has too many digits where none may stand before the point
];
/** @type {Record<string, number>} */
const CONTROLS = { n: 10, r: 13, t: 9, f: 12, v: 11 };
/** @type {Range[]} */
export const SPACES = [[9, 13], [28, 32], [0x85, 0x85], [0xa0, 0xa0], [0x1680, 0x1680],
  [0x2000, 0x200a], [0x2028, 0x2029], [0x202f, 0x202f], [0x205f, 0x205f], [0x3000, 0x3000],
  [0xfeff, 0xfeff]];
/** @type {Record<string, Range[]>} */
const LEAST = {
  d: [[48, 57]], w: [[48, 57], [65, 90], [95, 95], [97, 122]], s: [[9, 13], [32, 32]],
};
/** @type {Record<string, Range[]>} */
const KNOWN = {};

/** Characters with a property of Unicode's. @param {string} said as \p writes it */
function property(said) {
  if (KNOWN[said]) return KNOWN[said];
  const runs = new RegExp(`[${said}]+`, "gu");
  /** @type {Range[]} */
  const made = [];
  for (let at = 0; at <= LAST; at += 0x800) {
    if (at === 0xd800) continue;
    const text = Array.from({ length: 0x800 }, (_, n) => String.fromCodePoint(at + n)).join("");
    for (const [run] of text.matchAll(runs)) {
      const all = Array.from(run);
      made.push([Number(run.codePointAt(0)), Number(all[all.length - 1].codePointAt(0))]);
    }
  }
  return KNOWN[said] = made;
}

/** @param {string} kind of \d, \w and \s @param {boolean} wide @returns {Range[]} */
function members(kind, wide) {
  if (!wide) return LEAST[kind];
  return kind === "s" ? SPACES : property(kind === "d" ? "\\p{Nd}" : "\\p{L}\\p{N}\\p{M}_");
}

/**
 * The texts in which a regular expression finds something.
 * @param {Languages} l @param {string} source @param {boolean} [wide] @returns {number}
 */
export function pattern(l, source, wide = false) {
  const read = wide || !source.startsWith(DECIMAL) ? source
    : PLAINER.reduce((text, [of, by]) => text.replace(of, by), source);
  return new Reading(l, read, wide).whole();
}

/**
 * A language, or what makes one of all that follows: that must come, or not, before it is read.
 * @typedef {number | ((rest: number) => number)} Part
 */

/** @param {Languages} l @param {Part} part @param {number} rest @returns {number} */
const follow = (l, part, rest) => (typeof part === "number" ? l.then(part, rest) : part(rest));

class Reading {
  /** @param {Languages} l @param {string} source @param {boolean} wide */
  constructor(l, source, wide) {
    this.l = l;
    this.wide = wide;
    this.at = 0;
    this.source = source;
    this.left = Array.from(source);
    // ^ and $ are characters of the texts (language.js), so what stands before and after an (?= or
    // (?! must tell them apart
    this.begun = false; // ^ stands directly before
    this.looked = false; // after an (?= or (?!, or within
    this.closed = false; // after a $
  }

  /** @param {string} what @returns {never} */
  refuse(what) {
    throw new WeftError(`the pattern ${JSON.stringify(this.source.slice(0, 60))} has ${what}, `
      + "which JSON schema's readers understand differently or a page does not read; write it in "
      + "another way");
  }

  get next() {
    return this.left[this.at];
  }

  take() {
    return this.left[this.at++] ?? this.refuse("an end too early");
  }

  /** @param {string} text whether it comes next; it is taken then */
  comes(text) {
    const found = this.left.slice(this.at, this.at + text.length).join("") === text;
    if (found) this.at += text.length;
    return found;
  }

  /** The texts that have it. */
  whole() {
    const { l } = this;
    const made = this.alternatives();
    if (this.at < this.left.length) this.refuse("a ) without (");
    return typeof made === "number" ? l.found(made) : l.then(l.any, made(l.any));
  }

  /** @returns {Part} */
  alternatives() {
    const { l, begun, looked, closed } = this;
    const before = { looked, closed };
    /** @type {Part[][]} */
    const all = [];
    do {
      /** @type {Part[]} */
      const parts = [];
      Object.assign(this, { begun, looked, closed });
      while (this.at < this.left.length && this.next !== "|" && this.next !== ")") {
        parts.push(this.repeated());
      }
      all.push(parts);
      before.looked ||= this.looked;
      before.closed ||= this.closed;
    } while (this.comes("|"));
    Object.assign(this, before);
    const made = (/** @type {number} */ rest) => l.either(...all.map((parts) =>
      parts.reduceRight((/** @type {number} */ after, part) => follow(l, part, after), rest)));
    return all.flat().every((part) => typeof part === "number") ? made(EMPTY) : made;
  }

  /** @returns {Part} */
  repeated() {
    const of = this.part();
    const rest = this.left.slice(this.at, this.at + 24).join("");
    const [said, low, comma, high] = /^[*+?]|^\{(\d+)(,?)(\d*)\}/.exec(rest) ?? [];
    if (rest.startsWith("{,")) this.refuse("{,n}");
    if (!said) return of;
    if (typeof of !== "number") return this.refuse("a repetition of (?= or (?!");
    this.begun = false;
    this.at += said.length;
    this.comes("?"); // a lazy one finds the same texts
    if (/^([*+]|\{\d)/.test(this.left.slice(this.at, this.at + 2).join(""))) {
      this.refuse("a repetition that is repeated");
    }
    const least = low ? Number(low) : said === "+" ? 1 : 0;
    const open = low ? comma : said !== "?";
    const most = high ? Number(high) : open ? Infinity : Math.max(least, Number(!low));
    if (least > 10_000 || (most > 10_000 && most < Infinity)) this.refuse("more than 10,000 times");
    return this.l.times(of, least, most);
  }

  /** @returns {Part} */
  part() {
    const { l, begun } = this;
    const c = this.take();
    this.begun = c === "^";
    if (c === "^" && this.looked) return begun ? EMPTY : this.refuse("a ^ after (?= or (?!");
    if (c === "^") return l.mark("start");
    if (c === "$") { // Python's also matches before a last line's end
      this.closed = true;
      return this.wide ? l.then(l.times(l.literal("\n"), 0, 1), l.mark("end")) : l.mark("end");
    }
    if (c === "(") return this.group(begun);
    if ("*+?".includes(c)) this.refuse(`a ${c} after nothing`);
    if (c === ".") {
      return l.bytes(others(this.wide ? [[10, 10]] : [[10, 10], [13, 13], [0x2028, 0x2029]]));
    }
    if (c === "[") return this.set();
    return l.bytes(c === "\\" ? this.escape(false) : [one(c)]);
  }

  /** @param {boolean} begun whether ^ stands directly before @returns {Part} */
  group(begun) {
    this.begun = begun;
    if (this.comes("?=")) return this.ahead(begun, false);
    if (this.comes("?!")) return this.ahead(begun, true);
    if (this.comes("?")) {
      const rest = this.left.slice(this.at, this.at + 60).join("");
      const name = /^(:|P?<[A-Za-z_]\w*>)/.exec(rest);
      if (!name) this.refuse(`(?${rest.slice(0, 2)}`);
      this.at += name[0].length;
    }
    const made = this.inside();
    this.begun = false;
    return made;
  }

  inside() {
    const made = this.alternatives();
    if (!this.comes(")")) this.refuse("a ( without )");
    return made;
  }

  /**
   * What must, or must not, come next; it is not taken.
   * @param {boolean} begun @param {boolean} no @returns {Part}
   */
  ahead(begun, no) {
    const { l } = this;
    if (this.closed) this.refuse("(?= or (?! after a $");
    this.looked = true;
    this.wide = this.wide !== no;
    const here = follow(l, this.inside(), l.any);
    this.wide = this.wide !== no;
    this.closed = false;
    this.begun = begun;
    const within = l.begun(l.texts); // not between the characters of ^ or of $
    return (rest) => l.both(within, no ? l.not(here) : here, rest);
  }

  /** What \ and a letter mean. @param {boolean} inside a class of which others are meant
   *  @returns {Range[]} */
  escape(inside) {
    const c = this.take();
    if ("dws".includes(c)) return members(c, this.wide !== inside);
    if ("DWS".includes(c)) return others(members(c.toLowerCase(), this.wide === inside));
    if (Object.hasOwn(CONTROLS, c)) return [[CONTROLS[c], CONTROLS[c]]];
    const rest = this.left.slice(this.at, this.at + 60).join("");
    const digits = c === "x" ? 2 : c === "u" ? 4 : Infinity;
    const code = RegExp(`^[0-9a-fA-F]{${Math.min(digits, 9)}}`).exec(digits < 9 ? rest : "");
    if (code) {
      this.at += code[0].length;
      return [one(String.fromCharCode(parseInt(code[0], 16)))];
    }
    const named = /^[pP]$/.test(c) && /^\{\w+(=\w+)?\}/.exec(rest);
    if (named) {
      this.at += named[0].length;
      try {
        return c === "p" ? property(`\\p${named[0]}`) : others(property(`\\p${named[0]}`));
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
        this.refuse(`\\${c}${named[0]}`);
      }
    }
    if (/[A-Za-z0-9]/.test(c)) this.refuse(`\\${c}`);
    return [one(c)];
  }

  set() {
    const without = this.comes("^");
    /** @type {Range[]} */
    const all = [];
    if (this.next === "]") this.refuse("a class that is empty or begins with ]");
    while (!this.comes("]")) {
      const from = this.member(without);
      const to = this.next === "-" && this.left[this.at + 1] !== "]" && this.comes("-")
        ? this.member(without) : null;
      if (!to) all.push(...from);
      else if (!single(from) || !single(to) || from[0][0] > to[0][0]) {
        this.refuse("a range that is none");
      } else all.push([from[0][0], to[0][0]]);
    }
    return this.l.bytes(without ? others(all) : all);
  }

  /** @param {boolean} without @returns {Range[]} */
  member(without) {
    const c = this.take();
    if (c !== "\\") return [one(c)];
    return this.comes("b") ? [[8, 8]] : this.escape(without);
  }
}

/** @param {string} c @returns {Range} */
function one(c) {
  const code = Number(c.codePointAt(0));
  return [code, code];
}

/** @param {Range[]} ranges */
const single = (ranges) => ranges.length === 1 && ranges[0][0] === ranges[0][1];
