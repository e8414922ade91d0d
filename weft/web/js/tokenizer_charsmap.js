// The normaliser that SentencePiece compiles into a model: replacements for pieces of text. Its
// bytes are the size of a trie, the trie (a double array, as Darts lays it out), and the
// replacements, each ended by a zero.

import { WeftError } from "./program.js";

const SHORT = 6; // bytes, below which a whole grapheme is looked up before its characters

/**
 * @param {string} base64 the step's precompiled_charsmap
 * @returns {(text: string) => string}
 */
export function precompiled(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = bytes.length < 4 ? 0 : view.getUint32(0, true);
  if (!size || size % 4 || 4 + size > bytes.length) {
    throw new WeftError("the tokenizer's charsmap is damaged: export the folder again");
  }
  const trie = Uint32Array.from({ length: size / 4 }, (_, n) => view.getUint32(4 + 4 * n, true));
  const texts = bytes.subarray(4 + size);
  const graphemes = new Intl.Segmenter("en", { granularity: "grapheme" });
  const encoder = new TextEncoder();
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  /** What the shortest known beginning of a piece becomes. @param {string} piece */
  const replaced = (piece) => {
    const at = shortest(trie, encoder.encode(piece));
    if (at < 0) return undefined;
    const end = texts.indexOf(0, at);
    return decoder.decode(texts.subarray(at, end < 0 ? texts.length : end));
  };
  return (text) => Array.from(graphemes.segment(text), ({ segment }) => {
    const whole = encoder.encode(segment).length < SHORT ? replaced(segment) : undefined;
    return whole ?? Array.from(segment, (c) => replaced(c) ?? c).join("");
  }).join("");
}

/**
 * The value of the shortest key that the bytes begin with; -1 where none is.
 * @param {Uint32Array} trie @param {Uint8Array} bytes
 */
function shortest(trie, bytes) {
  const below = (/** @type {number} */ unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
  let at = below(trie[0]);
  for (const byte of bytes) {
    at ^= byte;
    const unit = trie[at];
    if (!byte || unit === undefined || ((unit & 0x800000ff) >>> 0) !== byte) return -1;
    at ^= below(unit);
    if (unit & 0x100) return trie[at] & 0x7fffffff;
  }
  return -1;
}
