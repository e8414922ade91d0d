// Vectors of texts by likeness.

import { fit } from "./options.js";

const long = (/** @type {any} */ v) => (Array.isArray(v) || ArrayBuffer.isView(v)
  ? /** @type {any} */ (v).length : undefined);

/**
 * The rows that resemble `query` most, by the cosine: the best first, of equal ones the earlier.
 * @param {Float32Array} query @param {Float32Array[]} rows
 * @returns {{index: number, score: number}[]}
 */
export function ranked(query, rows) {
  fit(query, [(v) => long(v) >= 0, "a vector of numbers"], "the query of ranked");
  const right = (/** @type {any} */ row) => long(row) === query.length;
  fit(rows, [(v) => Array.isArray(v) && v.every(right),
    "a list of vectors as long as the query"], "the list of ranked");
  const dot = (/** @type {Float32Array} */ a, /** @type {Float32Array} */ b) =>
    a.reduce((sum, value, i) => sum + value * b[i], 0);
  const own = Math.sqrt(dot(query, query));
  return rows.map((row, index) =>
    ({ index, score: dot(query, row) / Math.max(own * Math.sqrt(dot(row, row)), 1e-12) }))
    .sort((a, b) => b.score - a.score);
}
