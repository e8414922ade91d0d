// Grammars of bytes: expressions, and the states of the automaton that reads them, made when first
// needed. A state is a set of stacks; each stack begins with the bytes that may come next.

import { WeftError } from "./program.js";

/**
 * @typedef {[number, number]} Range of bytes, both ends within; from 256 on tokens without text
 * @typedef {{kind: "empty" | "never"} | {kind: "bytes", ranges: Range[]}
 *   | {kind: "then", first: number, rest: number} | {kind: "either", of: number[]}
 *   | {kind: "times", of: number, least: number, most: number} | {kind: "named", name: string}}
 *   Expression its parts are expressions by number
 */

export const [EMPTY, NEVER] = [0, 1];
const END = 0; // the stack with nothing on it
export const UNKNOWN = -1;
const [MOST_STACKS, MOST_STATES] = [2_000, 20_000];
const LETTERS = 320; // the bytes, and tokens that are letters of their own
export const DEAD = 0; // the state that nothing leads out of

/** Expressions, each kept once, and what they do with bytes. */
export class Grammar {
  constructor() {
    /** @type {Expression[]} */
    this.all = [{ kind: "empty" }, { kind: "never" }];
    /** @type {Map<string, number>} */
    this.known = new Map();
    /** @type {Map<string, number>} what names stand for */
    this.names = new Map();
    /** @type {{head: number, rest: number}[]} */
    this.stacks = [{ head: EMPTY, rest: END }];
    /** @type {Map<number, number[]>} stacks that begin with bytes, by a stack that leads there */
    this.opened = new Map();
    /** @type {boolean[]} by expression: whether some text satisfies it */
    this.fruitful = [];
    /** @type {{stacks: number[], whole: boolean}[]} */
    this.states = [];
    /** @type {Int32Array[]} by state and byte, the next state */
    this.rows = [];
    /** @type {Map<string, number>} */
    this.numbers = new Map();
    this.state([]); // DEAD
  }

  forget() {
    this.states.length = this.rows.length = 0;
    this.numbers.clear();
    this.state([]);
  }

  /** @param {Expression} made @param {string} key what tells it from others @returns {number} */
  kept(made, key) {
    const found = this.known.get(key);
    if (found !== undefined) return found;
    this.known.set(key, this.all.length);
    return this.all.push(made) - 1;
  }

  /** One byte of some. @param {Range[]} ranges */
  bytes(ranges) {
    return ranges.length ? this.kept({ kind: "bytes", ranges }, `b${ranges.join()}`) : NEVER;
  }

  /** One after the other. @param {number[]} parts @returns {number} */
  then(...parts) {
    return parts.reduceRight((rest, first) => {
      if (first === NEVER || rest === NEVER) return NEVER;
      if (first === EMPTY) return rest;
      if (rest === EMPTY) return first;
      return this.kept({ kind: "then", first, rest }, `t${first},${rest}`);
    }, EMPTY);
  }

  /** Any one of them. @param {number[]} parts @returns {number} */
  either(...parts) {
    const of = [...new Set(parts)].filter((part) => part !== NEVER).sort((a, b) => a - b);
    if (of.length < 2) return of[0] ?? NEVER;
    return this.kept({ kind: "either", of }, `e${of}`);
  }

  /** @param {number} of what is repeated; never empty @param {number} least @param {number} most */
  times(of, least, most = Infinity) {
    if (least > most || (of === NEVER && least)) return NEVER;
    if (most === 0 || of === NEVER) return EMPTY;
    return this.kept({ kind: "times", of, least, most }, `r${of},${least},${most}`);
  }

  /** @param {string | Uint8Array} text */
  literal(text) {
    const data = typeof text === "string" ? new TextEncoder().encode(text) : text;
    return this.then(...Array.from(data, (byte) => this.bytes([[byte, byte]])));
  }

  /** What a name stands for, which is said with `define`. @param {string} name */
  named(name) {
    return this.kept({ kind: "named", name }, `n${name}`);
  }

  /** @param {string} name @param {number} made */
  define(name, made) {
    this.names.set(name, made);
    this.fruitful = []; // what was found so far knew less
    this.opened.clear();
    this.forget();
  }

  /** Whether some text satisfies an expression, once all names are defined. @param {number} of */
  possible(of) {
    if (this.fruitful.length < this.all.length) {
      const now = this.all.map(({ kind }) => kind === "empty" || kind === "bytes");
      for (let changed = true; changed;) {
        changed = false;
        this.all.forEach((each, n) => {
          if (now[n] || !this.holds(each, now)) return;
          changed = now[n] = true;
        });
      }
      this.fruitful = now;
    }
    return this.fruitful[of];
  }

  /** @param {Expression} each @param {boolean[]} now what was found possible so far */
  holds(each, now) {
    if (each.kind === "then") return now[each.first] && now[each.rest];
    if (each.kind === "either") return each.of.some((part) => now[part]);
    if (each.kind === "times") return !each.least || now[each.of];
    return each.kind === "named" && now[this.names.get(each.name) ?? NEVER];
  }

  /** @param {number} head @param {number} rest @returns {number} the stack with `head` on `rest` */
  push(head, rest) {
    if (head === EMPTY) return rest;
    const key = `s${head},${rest}`;
    const found = this.known.get(key);
    if (found !== undefined) return found;
    this.known.set(key, this.stacks.length);
    return this.stacks.push({ head, rest }) - 1;
  }

  /** The stacks that begin with bytes, or the end, to which one leads. @param {number} stack */
  open(stack) {
    const known = this.opened.get(stack);
    if (known) return known;
    const [found, seen, left] = [new Set(), new Set([stack]), [stack]];
    const go = (/** @type {number} */ next) => {
      if (seen.has(next)) return;
      seen.add(next);
      left.push(next);
    };
    while (left.length) {
      const at = /** @type {number} */ (left.pop());
      const { head, rest } = this.stacks[at];
      const each = this.all[head];
      if (at === END || each.kind === "bytes") found.add(at);
      else if (each.kind === "then") go(this.push(each.first, this.push(each.rest, rest)));
      else if (each.kind === "either") {
        for (const part of each.of) if (this.possible(part)) go(this.push(part, rest));
      } else if (each.kind === "times") {
        const { of, least, most } = each;
        if (!least) go(rest);
        const more = this.times(of, Math.max(least - 1, 0), most - 1);
        if (this.possible(of)) go(this.push(of, this.push(more, rest)));
      } else if (each.kind === "named") {
        go(this.push(/** @type {number} */ (this.names.get(each.name)), rest));
      }
    }
    const stacks = [...found];
    this.opened.set(stack, stacks);
    return stacks;
  }

  /** @param {Iterable<number>} stacks that begin with bytes, or the end @returns {number} */
  state(stacks) {
    const sorted = [...new Set(stacks)].sort((a, b) => a - b);
    if (sorted.length > MOST_STACKS) {
      throw new WeftError("the schema became too complex for this answer; simplify the schema");
    }
    const key = sorted.join();
    const found = this.numbers.get(key);
    if (found !== undefined) return found;
    this.numbers.set(key, this.states.length);
    const whole = sorted[0] === END;
    this.rows.push(new Int32Array(LETTERS).fill(UNKNOWN));
    return this.states.push({ stacks: sorted, whole }) - 1;
  }

  /** The state before any byte. @param {number} of an expression */
  start(of) {
    if (!this.possible(of)) throw new WeftError("no text satisfies the JSON schema");
    return this.state(this.open(this.push(of, END)));
  }

  /** @param {number} state @param {number} byte @returns {number} the state after it, or DEAD */
  step(state, byte) {
    const row = this.rows[state];
    if (row[byte] === UNKNOWN) this.fill(state);
    return row[byte];
  }

  /** Finds out to which state each byte leads. @param {number} state */
  fill(state) {
    const row = this.rows[state];
    const leads = this.states[state].stacks.flatMap((stack) => {
      const { head, rest } = this.stacks[stack];
      const each = this.all[head];
      return each.kind === "bytes" ? [{ ranges: each.ranges, to: this.open(rest) }] : [];
    });
    const ends = leads.flatMap(({ ranges }) => ranges.flatMap(([a, b]) => [a, b + 1]));
    const cuts = [...new Set([0, ...ends, LETTERS])].sort((a, b) => a - b);
    for (let n = 0; n + 1 < cuts.length; n++) {
      const at = cuts[n];
      const reached = leads.filter(({ ranges }) => ranges.some(([a, b]) => a <= at && at <= b));
      row.fill(this.state(reached.flatMap(({ to }) => to)), at, cuts[n + 1]);
    }
  }

  /** Whether a whole text satisfies an expression. @param {number} of @param {string} text */
  takes(of, text) {
    if (!this.possible(of)) return false;
    let state = this.start(of);
    for (const byte of new TextEncoder().encode(text)) state = this.step(state, byte);
    return this.states[state].whole;
  }

  /** True if only the end of the text may follow. @param {number} state */
  ended(state) {
    const { stacks, whole } = this.states[state];
    return whole && stacks.length === 1;
  }

  /**
   * The same state, where states had to be dropped since they have become too many.
   * @param {number} state
   */
  bounded(state) {
    if (this.states.length <= MOST_STATES) return state;
    const { stacks } = this.states[state];
    this.forget();
    return this.state(stacks);
  }
}
