// Regular languages: sets of characters, one after the other, repeated, joined, met and left out.
// What may follow a character is a language again, so one is read character by character. A text
// stands between the marks START and END, to which ^ and $ of regular expressions belong.

import { EMPTY, NEVER } from "./grammar.js";
import { WeftError } from "./program.js";

/** @typedef {import("./grammar.js").Grammar} Grammar */
/** @typedef {import("./grammar.js").Range} Range of characters, both ends within */
/**
 * @typedef {{kind: "empty" | "never"} | {kind: "set", ranges: Range[]}
 *   | {kind: "then", first: number, rest: number} | {kind: "either" | "both", of: number[]}
 *   | {kind: "not", of: number} | {kind: "times", of: number, least: number, most: number}
 *   | {kind: "multiple", by: number, rest: number, places: number, left: number}} Node
 *   its parts are languages by number
 */

export const LAST = 0x10ffff;
const [START, END] = [LAST + 1, LAST + 2];
const MARKS = 3; // of each: so many ^ may stand together
const MOST = 20_000; // states of one language

/** @param {Range[]} ranges @returns {Range[]} the same characters, in order */
export function merged(ranges) {
  /** @type {Range[]} */
  const made = [];
  for (const [a, b] of [...ranges].sort(([x], [y]) => x - y)) {
    const last = made.at(-1);
    if (last && a <= last[1] + 1) last[1] = Math.max(last[1], b);
    else if (a <= b) made.push([a, b]);
  }
  return made;
}

/** @param {Range[]} ranges @returns {Range[]} the other characters */
export function others(ranges) {
  const all = merged(ranges);
  return /** @type {Range[]} */ ([...all, [LAST + 1, 0]].map(([a], n) =>
    [n ? all[n - 1][1] + 1 : 0, a - 1])).filter(([a, b]) => a <= b);
}

/** Languages, each kept once; EMPTY and NEVER are those of the grammar's. */
export class Languages {
  constructor() {
    /** @type {Node[]} */
    this.all = [{ kind: "empty" }, { kind: "never" }];
    /** @type {Map<string, number>} */
    this.known = new Map();
    /** @type {Map<number, Map<number, number>>} by language and character */
    this.followed = new Map();
    /** @type {Map<number, number[]>} */
    this.edges = new Map();
    /** @type {Map<string, number>} expressions of characters */
    this.written = new Map();
    this.any = this.times(this.bytes([[0, END]]), 0); // marks too
    this.texts = this.text(this.times(this.bytes([[0, LAST]]), 0));
  }

  /** @param {Node} made @param {string} key @returns {number} */
  kept(made, key) {
    const found = this.known.get(key);
    if (found !== undefined) return found;
    this.known.set(key, this.all.length);
    return this.all.push(made) - 1;
  }

  /** One character of some; named as the grammar's. @param {Range[]} given */
  bytes(given) {
    const ranges = merged(given);
    return ranges.length ? this.kept({ kind: "set", ranges }, `s${ranges.join()}`) : NEVER;
  }

  /** @param {string} text */
  literal(text) {
    return this.then(...Array.from(text, (c) => Number(c.codePointAt(0))).map((c) =>
      this.bytes([[c, c]])));
  }

  /** A whole text. @param {number} of what stands between the marks */
  text(of) {
    const marks = (/** @type {number} */ mark) =>
      this.times(this.bytes([[mark, mark]]), MARKS, MARKS);
    return this.then(marks(START), of, marks(END));
  }

  /** Texts in which a part is found, which may have marks. @param {number} part */
  found(part) {
    return this.then(this.any, part, this.any);
  }

  /** @param {"start" | "end"} which */
  mark(which) {
    const mark = which === "start" ? START : END;
    return this.bytes([[mark, mark]]);
  }

  /** @param {number[]} parts @returns {number} */
  then(...parts) {
    return parts.reduceRight((rest, first) => {
      if (first === NEVER || rest === NEVER) return NEVER;
      if (first === EMPTY) return rest;
      if (rest === EMPTY || (first === this.any && rest === first)) return first;
      const one = this.all[first];
      if (one.kind === "then") return this.then(one.first, this.then(one.rest, rest));
      return this.kept({ kind: "then", first, rest }, `t${first},${rest}`);
    }, EMPTY);
  }

  /** @param {number[]} parts @returns {number} */
  either(...parts) {
    const of = this.flat("either", parts, NEVER);
    if (of.includes(this.any)) return this.any;
    if (of.length < 2) return of[0] ?? NEVER;
    return this.kept({ kind: "either", of }, `e${of}`);
  }

  /** What is in each of them. @param {number[]} parts @returns {number} */
  both(...parts) {
    const of = this.flat("both", parts, this.any);
    if (of.includes(NEVER)) return NEVER;
    if (of.length < 2) return of[0] ?? this.any;
    return this.kept({ kind: "both", of }, `b${of}`);
  }

  /** @param {"either" | "both"} kind @param {number[]} parts @param {number} without */
  flat(kind, parts, without) {
    const inner = parts.flatMap((part) => {
      const one = this.all[part];
      return one.kind === kind ? one.of : [part];
    });
    return [...new Set(inner)].filter((part) => part !== without).sort((a, b) => a - b);
  }

  /** What is not in one. @param {number} of @returns {number} */
  not(of) {
    const one = this.all[of];
    if (of === NEVER) return this.any;
    if (of === this.any) return NEVER;
    return one.kind === "not" ? one.of : this.kept({ kind: "not", of }, `n${of}`);
  }

  /** @param {number} of @param {number} least @param {number} most @returns {number} */
  times(of, least, most = Infinity) {
    if (least > most || (of === NEVER && least)) return NEVER;
    if (most === 0 || of === NEVER || of === EMPTY) return EMPTY;
    if (least === 1 && most === 1) return of;
    const from = this.empty(of) ? 0 : least;
    return this.kept({ kind: "times", of, least: from, most }, `r${of},${from},${most}`);
  }

  /**
   * Decimals without sign and exponent that are multiples of `by` units.
   * @param {number} by @param {number} places of decimals that a unit has
   */
  multiple(by, places, rest = 0, left = -1) {
    return this.kept({ kind: "multiple", by, rest, places, left }, `m${[by, places, rest, left]}`);
  }

  /** Whether the empty text is in it. @param {number} of @returns {boolean} */
  empty(of) {
    const one = this.all[of];
    if (one.kind === "then") return this.empty(one.first) && this.empty(one.rest);
    if (one.kind === "either") return one.of.some((part) => this.empty(part));
    if (one.kind === "both") return one.of.every((part) => this.empty(part));
    if (one.kind === "not") return !this.empty(one.of);
    if (one.kind === "times") return one.least === 0;
    if (one.kind !== "multiple") return one.kind === "empty";
    let rest = one.rest;
    for (let n = one.left < 0 ? one.places : one.left; n; n--) rest = (rest * 10) % one.by;
    return rest === 0;
  }

  /** What may follow a character. @param {number} of @param {number} c @returns {number} */
  after(of, c) {
    let known = this.followed.get(of);
    if (!known) this.followed.set(of, known = new Map());
    let found = known.get(c);
    if (found === undefined) known.set(c, found = this.derived(this.all[of], c));
    return found;
  }

  /** @param {Node} one @param {number} c @returns {number} */
  derived(one, c) {
    const each = (/** @type {number[]} */ of) => of.map((part) => this.after(part, c));
    if (one.kind === "set") return one.ranges.some(([a, b]) => a <= c && c <= b) ? EMPTY : NEVER;
    if (one.kind === "then") {
      const first = this.then(this.after(one.first, c), one.rest);
      return this.empty(one.first) ? this.either(first, this.after(one.rest, c)) : first;
    }
    if (one.kind === "either") return this.either(...each(one.of));
    if (one.kind === "both") return this.both(...each(one.of));
    if (one.kind === "not") return this.not(this.after(one.of, c));
    if (one.kind === "times") {
      const { of, least, most } = one;
      return this.then(this.after(of, c), this.times(of, Math.max(least - 1, 0), most - 1));
    }
    if (one.kind !== "multiple") return NEVER;
    const { by, places, rest, left } = one;
    if (c === 46) return left < 0 ? this.multiple(by, places, rest, places) : NEVER;
    if (c < 48 || c > 57 || (left === 0 && c !== 48)) return NEVER;
    if (left === 0) return this.multiple(by, places, rest, 0);
    return this.multiple(by, places, (rest * 10 + c - 48) % by, Math.max(left - 1, -1));
  }

  /**
   * Where sets of characters begin that lead to different languages.
   * @param {number} of @returns {number[]}
   */
  cuts(of) {
    let found = this.edges.get(of);
    if (found) return found;
    const one = this.all[of];
    if (one.kind === "set") found = one.ranges.flatMap(([a, b]) => [a, b + 1]);
    else if (one.kind === "then") {
      found = [one.first, ...this.empty(one.first) ? [one.rest] : []].flatMap((n) => this.cuts(n));
    } else if (one.kind === "either" || one.kind === "both") {
      found = one.of.flatMap((n) => this.cuts(n));
    } else if (one.kind === "not" || one.kind === "times") found = this.cuts(one.of);
    else if (one.kind === "multiple") found = [46, ...Array.from({ length: 12 }, (_, n) => n + 47)];
    else found = [];
    found = [...new Set(found)].sort((a, b) => a - b);
    this.edges.set(of, found);
    return found;
  }

  /** @param {number} of @returns {Map<number, Range[]>} the languages after some characters */
  leads(of) {
    /** @type {Map<number, Range[]>} */
    const made = new Map();
    const cuts = [0, ...this.cuts(of).filter((cut) => cut > 0 && cut <= LAST), LAST + 1];
    for (let n = 0; n + 1 < cuts.length; n++) {
      const to = this.after(of, cuts[n]);
      if (to !== NEVER) made.set(to, [...made.get(to) ?? [], [cuts[n], cuts[n + 1] - 1]]);
    }
    return made;
  }

  /** @param {number} of a text's, from its beginning or from within */
  ended(of) {
    return this.empty(this.repeated(of, END));
  }

  /** What follows the marks before a text. @param {number} of */
  begun(of) {
    return this.repeated(of, START);
  }

  /** @param {number} of @param {number} mark */
  repeated(of, mark) {
    return Array(MARKS).fill(mark).reduce((at, c) => this.after(at, c), of);
  }

  /** @param {number} of @param {string} text @returns {boolean} */
  has(of, text) {
    return this.ended(Array.from(text).reduce((at, c) =>
      this.after(at, Number(c.codePointAt(0))), this.begun(of)));
  }

  /**
   * A language as an expression of a grammar.
   * @param {Grammar} g @param {number} of @returns {number}
   */
  spelled(g, of) {
    const name = (/** @type {number} */ state) => `text ${state}`;
    const first = this.begun(of);
    const [left, seen] = [[first], new Set([first])];
    for (let state = left.pop(); state !== undefined; state = left.pop()) {
      if (g.names.has(name(state))) continue;
      const parts = [...this.leads(state)].map(([to, ranges]) => {
        if (!seen.has(to)) left.push(to);
        seen.add(to);
        const key = ranges.join();
        const one = this.written.get(key) ?? characters(g, ranges);
        this.written.set(key, one);
        return g.then(one, g.named(name(to)));
      });
      if (seen.size > MOST) {
        throw new WeftError("patterns or multipleOf of the JSON schema become too large; simplify");
      }
      g.define(name(state), g.either(this.ended(state) ? EMPTY : NEVER, ...parts));
    }
    return g.named(name(first));
  }
}

/** @type {Record<number, string>} the characters that JSON writes with a letter */
const LETTERS = { 8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\" };

/**
 * Some characters as JSON's texts have them, each in one spelling.
 * @param {Grammar} g @param {Range[]} ranges @returns {number}
 */
export function characters(g, ranges) {
  const parts = ranges.flatMap(([a, b]) => {
    const made = [];
    for (let c = a; c <= Math.min(b, 92); c++) {
      if (c >= 32 && !LETTERS[c]) continue;
      made.push(g.literal(`\\${LETTERS[c] ?? `u${c.toString(16).padStart(4, "0")}`}`));
    }
    const plain = [[32, 33], [35, 91], [93, LAST]].map(([from, to]) =>
      /** @type {Range} */ ([Math.max(a, from), Math.min(b, to)]));
    return [...made, encoded(g, plain)];
  });
  return g.either(...parts);
}

/**
 * Some characters as a text has them.
 * @param {Grammar} g @param {Range[]} ranges @returns {number}
 */
export function encoded(g, ranges) {
  const lengths = [[0, 0x7f], [0x80, 0x7ff], [0x800, 0xd7ff], [0xe000, 0xffff], [0x10000, LAST]];
  return g.either(...ranges.flatMap(([a, b]) => lengths.map(([from, to]) => {
    const [low, high] = [Math.max(a, from), Math.min(b, to)];
    return low <= high ? between(g, utf8(low), utf8(high)) : NEVER;
  })));
}

/** @param {number} c */
const utf8 = (c) => [...new TextEncoder().encode(String.fromCodePoint(c))];

/**
 * Characters of UTF-8 from one to another of as many bytes.
 * @param {Grammar} g @param {number[]} low @param {number[]} high @returns {number}
 */
function between(g, [a, ...low], [b, ...high]) {
  const one = (/** @type {number} */ x, /** @type {number} */ y) => g.bytes([[x, y]]);
  if (!low.length) return one(a, b);
  if (a === b) return g.then(one(a, a), between(g, low, high));
  const [least, most] = [low.map(() => 0x80), low.map(() => 0xbf)];
  const [from, to] = [low.some((c) => c > 0x80), high.some((c) => c < 0xbf)];
  return g.either(from ? g.then(one(a, a), between(g, low, most)) : NEVER,
    to ? g.then(one(b, b), between(g, least, high)) : NEVER,
    a + Number(from) <= b - Number(to)
      ? g.then(one(a + Number(from), b - Number(to)), between(g, least, most)) : NEVER);
}
