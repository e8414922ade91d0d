// Vectors of texts by likeness.

/**
 * The rows that resemble `query` most, by the cosine: the best first, of equal ones the earlier.
 * @param {Float32Array} query @param {Float32Array[]} rows
 * @returns {{index: number, score: number}[]}
 */
export function ranked(query, rows) {
  const dot = (/** @type {Float32Array} */ a, /** @type {Float32Array} */ b) =>
    a.reduce((sum, value, i) => sum + value * b[i], 0);
  const own = Math.sqrt(dot(query, query));
  return rows.map((row, index) =>
    ({ index, score: dot(query, row) / Math.max(own * Math.sqrt(dot(row, row)), 1e-12) }))
    .sort((a, b) => b.score - a.score);
}
