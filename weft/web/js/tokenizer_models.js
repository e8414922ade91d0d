// A tokenizer's model: the ids of one word. Vocabulary and merges are those of tokenizer.json.

import { WeftError } from "./program.js";

/** @typedef {(word: string) => number[]} Model */

/** @param {any} model @returns {{ids: Map<string, number>, encode: Model}} */
export function tokenModel(model) {
  const ids = new Map(model.type === "Unigram"
    ? model.vocab.map((/** @type {any} */ [token], /** @type {number} */ id) => [token, id])
    : Object.entries(model.vocab));
  const kind = { BPE: bpe, Unigram: unigram, WordPiece: wordPiece, WordLevel: wordLevel }[
    /** @type {"BPE"} */ (model.type)];
  if (!kind) throw new WeftError(`this player does not know the tokenizer's model ${model.type}`);
  return { ids, encode: kind(model, ids) };
}

/**
 * The ids of a text's bytes, if the vocabulary has them all.
 * @param {string} text @param {Map<string, number>} ids
 */
function bytesOf(text, ids) {
  const found = Array.from(new TextEncoder().encode(text), (b) =>
    ids.get(`<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`));
  return found.includes(undefined) ? null : /** @type {number[]} */ (found);
}

/** @param {any} model @param {Map<string, number>} ids @returns {Model} */
function wordLevel(model, ids) {
  return (word) => [ids.get(word) ?? ids.get(model.unk_token)].filter((id) => id !== undefined);
}

/** @param {any} model @param {Map<string, number>} ids @returns {Model} */
function wordPiece(model, ids) {
  const unknown = /** @type {number} */ (ids.get(model.unk_token));
  return (word) => {
    const letters = Array.from(word);
    if (letters.length > model.max_input_chars_per_word) return [unknown];
    const out = [];
    for (let at = 0; at < letters.length;) {
      let end = letters.length;
      const before = at ? model.continuing_subword_prefix : "";
      const known = () => ids.get(before + letters.slice(at, end).join(""));
      while (end > at && known() === undefined) end--;
      if (end === at) return [unknown];
      out.push(/** @type {number} */ (known()));
      at = end;
    }
    return out;
  };
}

/** @param {any} model @param {Map<string, number>} ids @returns {Model} */
function bpe(model, ids) {
  const before = model.continuing_subword_prefix ?? "";
  const after = model.end_of_word_suffix ?? "";
  const room = ids.size + 1;
  /** @type {Map<number, number>} */
  const ranks = new Map();
  const made = model.merges.map((/** @type {any} */ merge, /** @type {number} */ rank) => {
    const [a, b] = typeof merge === "string" ? merge.split(" ") : merge;
    const [left, right] = [ids.get(a), ids.get(b)];
    if (left === undefined || right === undefined) {
      throw new WeftError("tokenizer.json merges unknown tokens");
    }
    ranks.set(left * room + right, rank);
    return ids.get(a + b.slice(before.length));
  });
  return (word) => {
    const whole = model.ignore_merges ? ids.get(word) : undefined;
    if (whole !== undefined) return [whole];
    return merged(letters(word), (a, b) => ranks.get(a * room + b), made);
  };

  /** The ids of single letters. @param {string} word */
  function letters(word) {
    const unknown = ids.get(model.unk_token);
    /** @type {number[]} */
    const out = [];
    let waits = false; // an unknown letter, into which those after it may be fused
    Array.from(word).forEach((c, n, all) => {
      const letter = (n ? before : "") + c + (n + 1 === all.length ? after : "");
      const id = ids.get(letter);
      const bytes = id === undefined && model.byte_fallback ? bytesOf(letter, ids) : null;
      if (bytes) return out.push(...bytes);
      if (id === undefined && unknown === undefined) return;
      if (waits && (id !== undefined || !model.fuse_unk)) out.push(/** @type {number} */ (unknown));
      waits = id === undefined;
      if (id !== undefined) out.push(id);
    });
    if (waits) out.push(/** @type {number} */ (unknown));
    return out;
  }
}

/**
 * Merges pairs, the lowest rank first and of equal ones the leftmost.
 * @param {number[]} ids @param {(a: number, b: number) => number | undefined} rankOf
 * @param {number[]} made the id that a rank's merge makes
 */
function merged(ids, rankOf, made) {
  const size = ids.length;
  const next = ids.map((_, n) => n + 1);
  const prior = ids.map((_, n) => n - 1);
  const heap = new Heap();
  const offer = (/** @type {number} */ at) => {
    if (at < 0 || next[at] >= size) return;
    const rank = rankOf(ids[at], ids[next[at]]);
    if (rank !== undefined) heap.push(rank * size + at);
  };
  ids.forEach((_, n) => offer(n));
  for (let top = heap.pop(); top !== undefined; top = heap.pop()) {
    const [rank, at] = [Math.floor(top / size), top % size];
    const right = next[at];
    if (ids[at] < 0 || right >= size || rankOf(ids[at], ids[right]) !== rank) continue;
    ids[at] = made[rank];
    ids[right] = -1;
    next[at] = next[right];
    if (next[at] < size) prior[next[at]] = at;
    offer(prior[at]);
    offer(at);
  }
  return ids.filter((id) => id >= 0);
}

/** Numbers, the lowest first. */
class Heap {
  /** @type {number[]} */
  items = [];

  /** @param {number} value */
  push(value) {
    let at = this.items.push(value) - 1;
    for (let up = (at - 1) >> 1; at && this.items[up] > value; at = up, up = (at - 1) >> 1) {
      this.items[at] = this.items[up];
    }
    this.items[at] = value;
  }

  pop() {
    const [top, last] = [this.items[0], this.items.pop()];
    if (last === undefined || !this.items.length) return top;
    let at = 0;
    for (let down = 1; down < this.items.length; down = 2 * at + 1) {
      if (this.items[down + 1] < this.items[down]) down++;
      if (this.items[down] >= last) break;
      this.items[at] = this.items[down];
      at = down;
    }
    this.items[at] = last;
    return top;
  }
}

/**
 * The most likely pieces (Viterbi), those that are unknown joined.
 * @param {any} model @param {Map<string, number>} ids @returns {Model}
 */
function unigram(model, ids) {
  /** @type {[string, number][]} */
  const vocab = model.vocab;
  const scores = vocab.map(([, score]) => score);
  const missing = scores.reduce((a, b) => Math.min(a, b), Infinity) - 10;
  const longest = vocab.reduce((most, [token]) => Math.max(most, token.length), 0);
  return (word) => {
    const ends = [{ score: 0, from: 0, known: true }];
    /** @type {(from: number, to: number, own: number, known?: boolean) => void} */
    const offer = (from, to, own, known = true) => {
      const score = ends[from].score + own;
      if (!ends[to] || score > ends[to].score) ends[to] = { score, from, known };
    };
    const size = (/** @type {number} */ at) => ((word.codePointAt(at) ?? 0) > 0xffff ? 2 : 1);
    for (let at = 0; at < word.length; at += size(at)) {
      for (let to = at + size(at); to <= word.length && to - at <= longest; to += size(to)) {
        const id = ids.get(word.slice(at, to));
        if (id !== undefined) offer(at, to, scores[id]);
      }
      const single = at + size(at);
      if (!ids.has(word.slice(at, single))) offer(at, single, missing, false);
    }
    /** @type {{text: string, known: boolean}[]} */
    const parts = [];
    for (let at = word.length; at > 0; at = ends[at].from) {
      const { from, known } = ends[at];
      const text = word.slice(from, at);
      const last = parts.at(-1);
      if (last && !known && !last.known) last.text = text + last.text;
      else parts.push({ text, known });
    }
    return parts.reverse().flatMap(({ text }) => {
      const id = ids.get(text);
      if (id !== undefined) return [id];
      return (model.byte_fallback && bytesOf(text, ids)) || [model.unk_id];
    });
  };
}
