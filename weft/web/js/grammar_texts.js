// Texts of JSON, character by character.

import { EMPTY, NEVER } from "./grammar.js";

/** @typedef {import("./grammar.js").Grammar} Grammar */
/** @typedef {import("./grammar.js").Range} Range */

/** @type {Range[]} */
const REST = [[0x80, 0xbf]]; // of a character in UTF-8
/** @type {Range[][][]} the characters of a text in JSON, each in one spelling */
export const CHARACTERS = [
  [[[0x20, 0x21], [0x23, 0x5b], [0x5d, 0x7f]]],
  [[[0xc2, 0xdf]], REST],
  [[[0xe0, 0xe0]], [[0xa0, 0xbf]], REST], [[[0xe1, 0xec], [0xee, 0xef]], REST, REST],
  [[[0xed, 0xed]], [[0x80, 0x9f]], REST],
  [[[0xf0, 0xf0]], [[0x90, 0xbf]], REST, REST], [[[0xf1, 0xf3]], REST, REST, REST],
  [[[0xf4, 0xf4]], [[0x80, 0x8f]], REST, REST],
  [...exactly("\\"), among('"\\bfnrt')],
  [...exactly("\\u000"), among("01234567bef")], [...exactly("\\u001"), among("0123456789abcdef")],
];

/** @param {string} letters of ASCII @returns {Range[]} any one of them */
function among(letters) {
  return Array.from(letters, (c) => [c.charCodeAt(0), c.charCodeAt(0)]);
}

/** @param {string} text of ASCII @returns {Range[][]} */
function exactly(text) {
  return Array.from(text, among);
}

/** @param {string} spelled a text without its quotes @returns {string[]} its characters */
export const letters = (spelled) => spelled.match(/\\u....|\\.|./gsu) ?? [];

/**
 * The characters but some.
 * @param {Grammar} g @param {number[][]} without bytes of each
 * @param {Range[][][]} among sequences of bytes @returns {number}
 */
export function characters(g, without, among) {
  /** @type {Map<number, number[][]>} */
  const first = new Map();
  for (const [byte, ...rest] of without) first.set(byte, [...first.get(byte) ?? [], rest]);
  /** @type {number[]} */
  const parts = among.map(([head, ...rest]) =>
    g.then(g.bytes(less(head, first)), ...rest.map((each) => g.bytes(each))));
  for (const [byte, rest] of first) {
    for (const [head, ...more] of among) {
      if (!head.some(([a, b]) => a <= byte && byte <= b) || !more.length) continue;
      parts.push(g.then(g.bytes([[byte, byte]]), characters(g, rest, [more])));
    }
  }
  return g.either(...parts);
}

/** @param {Range[]} ranges @param {Map<number, any>} without @returns {Range[]} */
function less(ranges, without) {
  return [...without.keys()].reduce((all, byte) => all.flatMap(([a, b]) => {
    if (byte < a || byte > b) return [/** @type {Range} */ ([a, b])];
    return /** @type {Range[]} */ ([[a, byte - 1], [byte + 1, b]]).filter(([x, y]) => x <= y);
  }), ranges);
}

/**
 * The texts but some, without quotes.
 * @param {Grammar} g @param {string[][]} names in letters @returns {number}
 */
export function others(g, names) {
  const any = g.times(characters(g, [], CHARACTERS), 0);
  if (!names.length) return any;
  /** @type {Map<string, string[][]>} */
  const first = new Map();
  for (const [head, ...rest] of names.filter((name) => name.length)) {
    first.set(head, [...first.get(head) ?? [], rest]);
  }
  const utf8 = new TextEncoder();
  const away = characters(g, [...first.keys()].map((c) => [...utf8.encode(c)]), CHARACTERS);
  return g.either(names.some((name) => !name.length) ? NEVER : EMPTY, g.then(away, any),
    ...[...first].map(([head, rest]) => g.then(g.literal(head), others(g, rest))));
}
