// The steps around a tokenizer's model, as in the `tokenizers` library: changes of the
// text before it, cutting into words, and turning tokens into text again.

import { WeftError } from "./program.js";
import { precompiled } from "./tokenizer_charsmap.js";

/**
 * @typedef {any} Step a step's entry in tokenizer.json
 * @typedef {(text: string) => string} Normalize
 * @typedef {(text: string, first: boolean) => string[]} Cut `first`: the text begins with it
 * @typedef {(tokens: string[]) => string[]} Join
 */

const SPACE = "\\p{White_Space}"; // \s of JavaScript lacks U+0085 and has U+FEFF
const PUNCTUATION = "\\p{P}$+<=>^`|~";
const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const HAN = new RegExp("[\\u4E00-\\u9FFF\\u3400-\\u4DBF\\u{20000}-\\u{2A6DF}\\u{2A700}-\\u{2B73F}"
  + "\\u{2B740}-\\u{2B81F}\\u{2B920}-\\u{2CEAF}\\uF900-\\uFAFF\\u{2F800}-\\u{2FA1F}]", "gu");

/** A pattern of a tokenizer.json as JavaScript has it. @param {string} source */
export function regex(source) {
  const plain = source.replace(/\(\?i:([^()]*)\)/g, (_, inner) =>
    `(?:${inner.replace(/[a-z]/g, (/** @type {string} */ c) =>
      `[${c}${c.toUpperCase()}${c === "s" ? "\u017f" : ""}]`)})`);
  return new RegExp(plain.replace(/\\[sSd]/g, (c) =>
    ({ "\\s": SPACE, "\\S": "\\P{White_Space}", "\\d": "\\p{Nd}" })[c] ?? c), "gu");
}

/** @param {string} text */
export const literally = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

/** @param {{Regex?: string, String?: string}} pattern */
const patternOf = (pattern) => pattern.Regex === undefined
  ? new RegExp(literally(pattern.String ?? ""), "gu") : regex(pattern.Regex);

/** @param {string} text lower case by characters: no sigma knows that it is the last */
const lower = (text) => Array.from(text, (c) => c.toLowerCase()).join("");

/** @param {Step} step @returns {Normalize} */
export function normalizer(step) {
  switch (step?.type) {
    case undefined: return (text) => text;
    case "NFC": case "NFD": case "NFKC": case "NFKD": return (text) => text.normalize(step.type);
    case "Lowercase": return lower;
    case "StripAccents": return (text) => text.replace(/\p{M}/gu, "");
    case "Prepend": return (text) => text && step.prepend + text;
    case "Precompiled": return precompiled(step.precompiled_charsmap);
    case "BertNormalizer": return (text) => bert(text, step);
    case "Replace": {
      const pattern = patternOf(step.pattern);
      return (text) => text.replace(pattern, () => step.content);
    }
    case "Strip": {
      const ends = [step.strip_left && `^${SPACE}+`, step.strip_right && `${SPACE}+$`];
      const pattern = new RegExp(ends.filter(Boolean).join("|") || "(?!)", "gu");
      return (text) => text.replace(pattern, "");
    }
    case "Sequence": {
      /** @type {Normalize[]} */
      const steps = step.normalizers.map(normalizer);
      return (text) => steps.reduce((now, next) => next(now), text);
    }
  }
  throw unknown(step);
}

/** @param {string} text @param {Step} step */
function bert(text, step) {
  if (step.clean_text) {
    text = text.replace(/(?![\t\n\r])[\0\ufffd\p{Cc}\p{Cf}\p{Co}]/gu, "");
    text = text.replace(/\p{White_Space}/gu, " ");
  }
  if (step.handle_chinese_chars) text = text.replace(HAN, " $& ");
  if (step.strip_accents ?? step.lowercase) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
  return step.lowercase ? lower(text) : text;
}

/** @param {Step} step @returns {Cut} */
export function cutter(step) {
  switch (step?.type) {
    case undefined: return (text) => [text];
    case "ByteLevel": return byteLevel(step);
    case "Metaspace": return metaspace(step);
    case "WhitespaceSplit": return (text) => split(text, regex("\\s"), "Removed");
    case "Whitespace": {
      const word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
      return (text) => text.match(new RegExp(`[${word}]+|[^${word}${SPACE}]+`, "gu")) ?? [];
    }
    case "Digits":
      return (text) => split(text, /\p{N}/gu, step.individual_digits ? "Isolated" : "Contiguous");
    case "Punctuation": {
      const pattern = new RegExp(`[${PUNCTUATION}]`, "gu");
      return (text) => split(text, pattern, step.behavior ?? "Isolated");
    }
    case "BertPreTokenizer": {
      const pattern = new RegExp(`[^${SPACE}${PUNCTUATION}]+|[${PUNCTUATION}]`, "gu");
      return (text) => text.match(pattern) ?? [];
    }
    case "Split": {
      const pattern = patternOf(step.pattern);
      return (text) => split(text, pattern, step.behavior, step.invert);
    }
    case "Sequence": {
      /** @type {Cut[]} */
      const steps = step.pretokenizers.map(cutter);
      return (text, first) => steps.reduce((parts, cut) =>
        parts.flatMap((part, n) => cut(part, first && n === 0)), [text]);
    }
  }
  throw unknown(step);
}

/** @param {Step} step @returns {Cut} */
function byteLevel(step) {
  const pattern = regex(GPT2);
  return (text) => {
    const whole = step.add_prefix_space && !text.startsWith(" ") ? ` ${text}` : text;
    const parts = step.use_regex === false ? [whole] : split(whole, pattern, "Isolated");
    const spelled = (/** @type {string} */ part) =>
      Array.from(new TextEncoder().encode(part), (b) => LETTERS[b]).join("");
    return parts.map(spelled);
  };
}

/** @param {Step} step @returns {Cut} */
function metaspace({ replacement: mark, prepend_scheme: scheme = "always", split: cut = true }) {
  const pattern = new RegExp(literally(mark), "gu");
  return (text, first) => {
    let whole = text.replaceAll(" ", mark);
    const wanted = scheme === "always" || (scheme === "first" && first);
    if (wanted && !whole.startsWith(mark)) whole = mark + whole;
    return cut ? split(whole, pattern, "MergedWithNext") : [whole];
  };
}

/**
 * A text cut at what matches, which goes where `behavior` says.
 * @param {string} text @param {RegExp} pattern @param {string} behavior @param {boolean} [invert]
 */
function split(text, pattern, behavior, invert = false) {
  /** @type {{part: string, match: boolean}[]} */
  let parts = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(pattern)) {
    if (at < index) parts.push({ part: text.slice(at, index), match: invert });
    if (found) parts.push({ part: found, match: !invert });
    at = index + found.length;
  }
  if (at < text.length) parts.push({ part: text.slice(at), match: invert });
  if (behavior === "Removed") parts = parts.filter(({ match }) => !match);
  const backwards = behavior === "MergedWithNext";
  if (backwards) parts.reverse();
  /** @type {string[]} */
  const out = [];
  let before = false;
  for (const { part, match } of parts) {
    const merged = behavior === "Contiguous" ? match === before
      : behavior.startsWith("Merged") && match && !before;
    const last = merged ? out.pop() ?? "" : "";
    out.push(backwards ? part + last : last + part);
    before = match;
  }
  return backwards ? out.reverse() : out;
}

/** @param {Step} step @returns {Join} */
export function joiner(step) {
  switch (step.type) {
    case "ByteLevel": return fromLetters;
    case "ByteFallback": return fromBytes;
    case "Fuse": return (tokens) => [tokens.join("")];
    case "WordPiece": return (tokens) => tokens.map((t, n) => piece(t, n, step));
    case "BPEDecoder": return (tokens) => tokens.map((t, n) =>
      t.replaceAll(step.suffix, n + 1 === tokens.length ? "" : " "));
    case "Metaspace": {
      const first = (step.prepend_scheme ?? "always") === "never" ? " " : "";
      return (tokens) => tokens.map((t, n) => t.replaceAll(step.replacement, n ? " " : first));
    }
    case "Replace": {
      const pattern = patternOf(step.pattern);
      return (tokens) => tokens.map((t) => t.replace(pattern, () => step.content));
    }
    case "Strip": {
      const mark = literally(step.content);
      const [before, after] = [`^(?:${mark}){0,${step.start}}`, `(?:${mark}){0,${step.stop}}$`];
      const pattern = new RegExp(`${before}|${after}`, "gu");
      return (tokens) => tokens.map((t) => t.replace(pattern, ""));
    }
    case "Sequence": {
      /** @type {Join[]} */
      const steps = step.decoders.map(joiner);
      return (tokens) => steps.reduce((now, next) => next(now), tokens);
    }
  }
  throw unknown(step);
}

/** @param {string} token @param {number} n @param {Step} step */
function piece(token, n, { prefix, cleanup }) {
  const text = !n ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
  if (!cleanup) return text;
  return [[" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"],
    [" 'm", "'m"], [" do not", " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"],
  ].reduce((t, [from, to]) => t.replaceAll(from, to), text);
}

/** GPT-2's letters, one per byte: printable bytes stand for themselves. */
const LETTERS = (() => {
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(
    (b > 32 && b < 127) || (b > 160 && b !== 173) ? b : next++));
})();
const BYTES = new Map(LETTERS.map((letter, b) => [letter, b]));

/** @param {string[]} tokens */
function fromLetters(tokens) {
  const bytes = tokens.flatMap((token) => {
    const found = Array.from(token, (c) => BYTES.get(c) ?? -1);
    return found.includes(-1) ? [...new TextEncoder().encode(token)] : found;
  });
  return [new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes))];
}

/**
 * Runs of bytes as characters; each byte of a run that is broken as a sign.
 * @param {string[]} tokens
 */
function fromBytes(tokens) {
  /** @type {string[]} */
  const out = [];
  /** @type {number[]} */
  let run = [];
  const end = () => {
    try {
      const decoder = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });
      if (run.length) out.push(decoder.decode(Uint8Array.from(run)));
    } catch {
      out.push(...run.map(() => "\ufffd"));
    }
    run = [];
  };
  for (const token of tokens) {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (byte) {
      run.push(parseInt(byte[1], 16));
    } else {
      end();
      out.push(token);
    }
  }
  end();
  return out;
}

/** @param {Step} step */
function unknown(step) {
  const name = String(step?.type).slice(0, 40);
  return new WeftError(`this player does not know the tokenizer's step ${name}`);
}
