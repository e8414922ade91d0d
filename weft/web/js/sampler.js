// Choosing the next token from float32 logits: the same choice as weft/engine/sampler.py makes.

import { WeftError } from "./program.js";

/**
 * @typedef {{temperature: number, topK: number, topP: number, repetitionPenalty: number}} Sampling
 */

/**
 * The next token's id. `history` is prompt and new ids; `stream` gives one uniform where the
 * temperature is above 0. `allowed` says which ids a form lets through.
 * @param {Float32Array} logits @param {number[]} history @param {Sampling} how
 * @param {import("./philox.js").Philox | null} stream @param {(id: number) => boolean} [allowed]
 */
export function choose(logits, history, how, stream, allowed) {
  /** @type {Float32Array | Float64Array} */
  let values = logits;
  if (how.repetitionPenalty !== 1) values = penalised(logits, history, how.repetitionPenalty);
  let best = argmax(values);
  if (!Number.isFinite(values[best])) {
    throw new WeftError("the logits are not finite: the model's files or this GPU are damaged; "
      + "open the page with ?selftest");
  }
  if (allowed) {
    values = values.map((value, id) => (allowed(id) ? value : -Infinity));
    best = argmax(values);
  }
  if (how.temperature === 0) return best;
  const uniform = /** @type {import("./philox.js").Philox} */ (stream).random();
  const [ids, p] = distribution(values, how, values[best]);
  let sum = 0;
  const sums = p.map((x) => (sum += x));
  const at = sums.findIndex((x) => x > uniform * sum);
  return ids[at < 0 ? ids.length - 1 : at];
}

/** @param {ArrayLike<number>} values the index of the first largest, or of a NaN */
export function argmax(values) {
  let best = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isNaN(values[i])) return i;
    if (values[i] > values[best]) best = i;
  }
  return best;
}

/** @param {Float32Array} logits @param {number[]} history @param {number} penalty */
function penalised(logits, history, penalty) {
  const out = Float64Array.from(logits);
  for (const id of new Set(history)) out[id] = out[id] > 0 ? out[id] / penalty : out[id] * penalty;
  return out;
}

/**
 * Ids and probabilities (not normalised) that survive topK and topP.
 * @param {ArrayLike<number>} logits @param {Sampling} how @param {number} most
 * @returns {[number[], number[]]}
 */
function distribution(logits, how, most) {
  let ids = Array.from(logits, (_, i) => i).filter((i) => logits[i] > -Infinity);
  if (how.topK > 0 && how.topK < ids.length) {
    ids.sort((i, j) => logits[j] - logits[i] || i - j);
    ids = ids.slice(0, how.topK).sort((i, j) => i - j);
  }
  let p = ids.map((i) => Math.exp((logits[i] - most) / how.temperature));
  if (how.topP < 1) {
    const order = ids.map((_, n) => n).sort((i, j) => p[j] - p[i] || i - j);
    const wanted = how.topP * p.reduce((a, b) => a + b, 0);
    let before = 0;
    const kept = [];
    for (const n of order) {
      if (before >= wanted) break;
      kept.push(n);
      before += p[n];
    }
    [ids, p] = [kept.map((n) => ids[n]), kept.map((n) => p[n])];
  }
  return [ids, p];
}

/**
 * Returns the sampling settings in the options of a text.
 * @param {import("./model.js").GenerateOptions} o @returns {Sampling}
 */
export const sampling = (o) => ({
  temperature: o.temperature ?? 0, topK: o.topK ?? 0, topP: o.topP ?? 1,
  repetitionPenalty: o.repetitionPenalty ?? 1,
});
