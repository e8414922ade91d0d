// Text to token ids and back, as the `tokenizers` library does with the same tokenizer.json.

import { WeftError } from "./program.js";
import { tokenModel } from "./tokenizer_models.js";
import { cutter, joiner, literally, normalizer } from "./tokenizer_steps.js";

const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
const [WORD_ENDS, WORD_STARTS] = [new RegExp(`${WORD}$`, "u"), new RegExp(`^${WORD}`, "u")];

/**
 * @typedef {{id: number, content: string, single_word: boolean, lstrip: boolean, rstrip: boolean,
 *   normalized: boolean, special: boolean}} Added
 */

export class Tokenizer {
  /**
   * @param {any} json a tokenizer.json
   * @param {{around?: number[][], limit?: number | null, lower?: boolean}} [how] what the manifest
   *   says: ids before and after every text, the most ids of a text, whether it is lowered first
   */
  constructor(json, { around = [[], []], limit = null, lower = false } = {}) {
    this.around = around;
    this.limit = limit;
    this.lower = lower;
    this.normalize = normalizer(json.normalizer);
    this.cut = cutter(json.pre_tokenizer);
    this.model = tokenModel(json.model);
    this.join = json.decoder ? joiner(json.decoder)
      : (/** @type {string[]} */ tokens) => [tokens.join(" ")];
    /** @type {Map<number, string>} */
    this.tokens = new Map(Array.from(this.model.ids, ([token, id]) => [id, token]));
    /** @type {Added[]} */
    const listed = json.added_tokens ?? [];
    const added = numbered(listed.filter((t) => t.content), this.model.ids);
    const spelled = (/** @type {Added} */ { normalized, content }) =>
      (normalized ? this.normalize(content) : content);
    for (const token of added) this.tokens.set(token.id, spelled(token));
    this.special = new Set(added.filter((t) => t.special).map((t) => t.content));
    this.exact = finder(added.filter((t) => !t.normalized), spelled);
    this.loose = finder(added.filter((t) => t.normalized), spelled);
    this.longest = 0; // characters of a token
    const bytes = json.model.byte_fallback
      || JSON.stringify(json.pre_tokenizer ?? null).includes('"ByteLevel"');
    this.shorter = bytes ? shorter(json.normalizer) : Infinity;
  }

  /** The least number of ids that a text can have, told at once. @param {string} text */
  least(text) {
    this.longest ||= Math.max(...Array.from(this.tokens.values(), (token) => token.length));
    return Math.ceil(text.replace(/\s+/g, "").length / (this.longest * this.shorter));
  }

  /**
   * @param {string} text @param {boolean} [special] whether what stands around every text is added
   * @returns {number[]}
   */
  encode(text, special = true) {
    if (/\p{Cs}/u.test(text)) {
      throw new WeftError("the text is not valid Unicode (it holds a lone surrogate)");
    }
    const ids = this.exact(this.lower ? text.toLowerCase() : text).flatMap((part) =>
      part.id ?? this.loose(this.normalize(part.text)).flatMap((inner) =>
        inner.id ?? this.words(inner.text, part.at + inner.at === 0)));
    const [before, after] = special ? this.around : [[], []];
    const room = this.limit === null ? ids.length : this.limit - before.length - after.length;
    return [...before, ...ids.slice(0, room), ...after];
  }

  /** The ids of what holds no added token. @param {string} text @param {boolean} first */
  words(text, first) {
    return this.cut(text, first).flatMap((word) => (word ? this.model.encode(word) : []));
  }

  /** @param {number[]} ids @param {boolean} [skip] whether special tokens are left out */
  decode(ids, skip = true) {
    const tokens = ids.map((id) => this.tokens.get(id));
    return this.join(/** @type {string[]} */ (tokens.filter((token) =>
      token !== undefined && !(skip && this.special.has(token))))).join("");
  }
}

/**
 * How many times shorter a normalizer may make a text, spaces aside: Infinity if nobody knows.
 * @param {any} step @returns {number}
 */
function shorter(step) {
  if (!step || step.type === "Prepend") return 1;
  if (step.type === "Sequence") return step.normalizers.map(shorter).reduce(times, 1);
  if (step.type === "NFC") return 4;
  return step.type === "Replace" && step.pattern.String?.length <= step.content.length ? 1
    : Infinity;
}
const times = (/** @type {number} */ a, /** @type {number} */ b) => a * b;

/**
 * Added tokens with their ids: the model's, or the next that is free, whatever the file says.
 * @param {Added[]} added @param {Map<string, number>} ids @returns {Added[]}
 */
function numbered(added, ids) {
  const found = new Map();
  let next = ids.size;
  return added.map((token) => {
    const id = ids.get(token.content) ?? found.get(token.content) ?? next;
    found.set(token.content, id);
    next = Math.max(next, id + 1);
    return { ...token, id };
  });
}

/**
 * Cuts texts at added tokens: the leftmost first, and of those the longest.
 * @param {Added[]} added @param {(token: Added) => string} spelled
 * @returns {(text: string) => {text: string, at: number, id?: number}[]}
 */
function finder(added, spelled) {
  const known = new Map(added.map((token) => [spelled(token), token]));
  const longest = [...known.keys()].filter(Boolean).sort((a, b) => b.length - a.length);
  const pattern = new RegExp(longest.map(literally).join("|") || "(?!)", "gu");
  return (text) => {
    const parts = [];
    let done = 0;
    for (const { 0: found, index } of text.matchAll(pattern)) {
      const token = /** @type {Added} */ (known.get(found));
      let [start, stop] = [index, index + found.length];
      const inWord = WORD_ENDS.test(text.slice(0, start)) || WORD_STARTS.test(text.slice(stop));
      if (token.single_word && inWord) continue;
      if (token.lstrip) {
        start = Math.max(done, text.slice(0, start).replace(/\p{White_Space}+$/u, "").length);
      }
      if (token.rstrip) stop += (/^\p{White_Space}*/u.exec(text.slice(stop)) ?? [""])[0].length;
      if (done < start) parts.push({ text: text.slice(done, start), at: done });
      parts.push({ text: found, at: start, id: token.id });
      done = stop;
    }
    if (done < text.length) parts.push({ text: text.slice(done), at: done });
    return parts;
  };
}
