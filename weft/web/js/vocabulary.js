// The tokens that a grammar allows: the bytes of each token, as weft/models/grammar/vocabulary.py
// has them, in a tree by which all tokens are tried at once.

import { DEAD, UNKNOWN } from "./grammar.js";
import { WeftError } from "./program.js";

const MOST_MASKS = 256; // of 19 KB for 150,000 tokens

/** @typedef {{type: string} & Record<string, any>} Step of a tokenizer's decoder */

/** @param {Step | null | undefined} decoder @returns {Step[]} */
const steps = (decoder) => (!decoder ? []
  : decoder.type === "Sequence" ? decoder.decoders.flatMap(steps) : [decoder]);

/** The byte of each letter in byte-level BPE (GPT-2's encoder.py, 2019). */
function letters() {
  const plain = (/** @type {number} */ b) =>
    (b > 0x20 && b < 0x7f) || (b > 0xa0 && b < 0x100 && b !== 0xad);
  const found = new Map();
  let next = 256;
  for (let b = 0; b < 256; b++) found.set(String.fromCharCode(plain(b) ? b : next++), b);
  return found;
}

/** @param {Step} step @returns {[string, string][]} what it replaces by what */
function replaced(step) {
  if (step.type === "Metaspace") return [[step.replacement ?? "▁", " "]];
  if (step.type !== "Replace") return [];
  const old = step.pattern.String;
  if (old === undefined) {
    throw new WeftError("structured output needs tokens that have bytes; this tokenizer's decoder "
      + "replaces a pattern");
  }
  return [[old, step.content]];
}

/** @param {any} decoder @returns {(token: string) => Uint8Array} the bytes of a token's spelling */
function speller(decoder) {
  const all = steps(decoder);
  const kinds = all.map(({ type }) => type);
  const utf8 = new TextEncoder();
  if (kinds.includes("ByteLevel")) {
    const known = letters();
    return (token) => Uint8Array.from(Array.from(token).flatMap((c) =>
      known.get(c) ?? [...utf8.encode(c)]));
  }
  const expected = ["Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"];
  const fuse = kinds.indexOf("Fuse");
  const before = fuse < 0 ? all : all.slice(0, fuse);
  const plain = kinds.some((kind) => kind === "Replace" || kind === "Metaspace");
  if (!plain || kinds.some((kind) => !expected.includes(kind))
    || before.some(({ type }) => type === "Strip")) {
    throw new WeftError("structured output needs tokens that have bytes; this tokenizer's decoder "
      + `is ${kinds.join(", ") || "none"}; ask without a schema or forced tools`);
  }
  const changes = before.flatMap(replaced);
  const fallback = kinds.includes("ByteFallback");
  return (token) => {
    const byte = fallback && /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (byte) return Uint8Array.of(parseInt(byte[1], 16));
    return utf8.encode(changes.reduce((text, [old, by]) => text.replaceAll(old, by), token));
  };
}

/**
 * The bytes of each id below `vocab`; none where no text has the token.
 * @param {any} json a tokenizer.json @param {import("./tokenizer.js").Tokenizer} tokenizer of it
 * @param {number} vocab @param {number[]} eos ids that end a text @returns {(Uint8Array | null)[]}
 */
export function tokenBytes(json, tokenizer, vocab, eos) {
  const spell = speller(json.decoder);
  const added = new Map((json.added_tokens ?? []).map((/** @type {any} */ t) => [t.content, t]));
  const utf8 = new TextEncoder();
  /** @type {(Uint8Array | null)[]} */
  const found = new Array(vocab).fill(null);
  for (const [id, text] of tokenizer.tokens) {
    if (id < vocab && !added.has(text)) found[id] = spell(text);
  }
  for (const { id, content, special } of added.values()) {
    if (id < vocab) found[id] = special ? null : utf8.encode(content);
  }
  for (const id of eos) found[id] = null;
  return found;
}

/** All tokens in a tree of bytes, depth first: a node's tokens stand before those under it. */
export class Vocabulary {
  /** @param {(Uint8Array | null)[]} tokens by id */
  constructor(tokens) {
    this.size = tokens.length;
    /** @type {[string, number][]} */
    const spelled = tokens.flatMap((bytes, id) => (bytes?.length
      ? [/** @type {[string, number]} */ ([String.fromCharCode(...bytes), id])] : []));
    spelled.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    this.ids = Int32Array.from(spelled, ([, id]) => id);
    const count = spelled.reduce((sum, [text]) => sum + text.length, 0);
    const [byte, depth, begin] = [
      new Uint8Array(count), new Uint16Array(count), new Int32Array(count + 1)];
    const next = new Int32Array(count);
    let [nodes, last] = [0, ""];
    /** @type {number[]} */
    const path = [];
    spelled.forEach(([text], n) => {
      let same = 0;
      while (same < last.length && text[same] === last[same]) same++;
      if (same < last.length) this.close(path, same, next, nodes);
      for (let d = same; d < text.length; d++) {
        [byte[nodes], depth[nodes], begin[nodes]] = [text.charCodeAt(d), d, n];
        path.push(nodes++);
      }
      last = text;
    });
    this.close(path, 0, next, nodes);
    begin[nodes] = spelled.length;
    this.nodes = nodes;
    this.byte = byte.slice(0, nodes);
    this.depth = depth.slice(0, nodes);
    this.begin = begin.slice(0, nodes + 1);
    this.next = next.slice(0, nodes);
    this.deepest = this.depth.reduce((a, b) => Math.max(a, b), 0);
  }

  /**
   * Says of open nodes but the first ones what comes after them.
   * @param {number[]} path @param {number} kept @param {Int32Array} next @param {number} at
   */
  close(path, kept, next, at) {
    while (path.length > kept) next[/** @type {number} */ (path.pop())] = at;
  }

  /**
   * A bit for each token whose bytes lead from a state to another.
   * @param {import("./grammar.js").Grammar} grammar @param {number} from
   */
  mask(grammar, from) {
    const mask = new Uint32Array((this.size + 31) >> 5);
    const states = new Int32Array(this.deepest + 2);
    const { byte, depth, begin, next, ids, nodes } = this;
    const { rows } = grammar;
    states[0] = from;
    for (let at = 0; at < nodes;) {
      let state = rows[states[depth[at]]][byte[at]];
      if (state === UNKNOWN) state = grammar.step(states[depth[at]], byte[at]);
      if (state === DEAD) {
        at = next[at];
        continue;
      }
      states[depth[at] + 1] = state;
      // tokens that end in this node come before those of the first node under it
      const stop = next[at] > at + 1 ? begin[at + 1] : begin[next[at]];
      for (let n = begin[at]; n < stop; n++) mask[ids[n] >> 5] |= 1 << (ids[n] & 31);
      at++;
    }
    return mask;
  }
}

/** An answer under a grammar, token by token. */
export class Matching {
  /**
   * @param {import("./grammar.js").Grammar} grammar @param {number} of an expression of it
   * @param {Vocabulary} vocabulary @param {(Uint8Array | null)[]} tokens @param {number[]} eos
   * @param {number[]} [marks] ids of tokens that are the grammar's letters from 256 on
   */
  constructor(grammar, of, vocabulary, tokens, eos, marks = []) {
    this.marks = marks;
    this.grammar = grammar;
    this.vocabulary = vocabulary;
    this.tokens = tokens;
    this.eos = eos;
    this.state = grammar.start(of);
    /** @type {Map<number, Uint32Array>} by state */
    this.masks = new Map();
  }

  /** True if only the end of the text may follow. */
  get ended() {
    return this.grammar.ended(this.state);
  }

  /** True if the text so far is whole. */
  get whole() {
    return this.grammar.states[this.state].whole;
  }

  /** @returns {(id: number) => boolean} whether a token may come next */
  allowed() {
    const state = this.grammar.bounded(this.state);
    if (state !== this.state || this.masks.size > MOST_MASKS) this.masks.clear();
    this.state = state;
    const mask = this.masks.get(state) ?? this.mask(state);
    this.masks.set(state, mask);
    return (id) => (mask[id >> 5] >>> (id & 31) & 1) === 1;
  }

  /** @param {number} state @returns {Uint32Array} a bit for each token that may come */
  mask(state) {
    const mask = this.vocabulary.mask(this.grammar, state);
    const put = (/** @type {number} */ id, /** @type {boolean} */ may) => {
      mask[id >> 5] = (mask[id >> 5] & ~(1 << (id & 31))) | (Number(may) << (id & 31));
    };
    this.marks.forEach((id, n) => put(id, this.grammar.step(state, 256 + n) !== DEAD));
    if (this.whole) for (const id of this.eos) put(id, true);
    if (mask.some(Boolean)) return mask;
    throw new WeftError("the schema allows no next token: it asks for text that no token spells");
  }

  /** Goes on by a token that was allowed. @param {number} id */
  accept(id) {
    const mark = this.marks.indexOf(id);
    const letters = mark < 0 ? this.tokens[id] ?? [] : [256 + mark];
    for (const byte of letters) this.state = this.grammar.step(this.state, byte);
  }
}
