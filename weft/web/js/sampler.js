// Choosing the next token from float32 logits: the same choice as weft/models/sampler.py makes.

import { WeftError } from "./program.js";

/**
 * @typedef {{temperature: number, topK: number, topP: number, repetitionPenalty: number}} Sampling
 */

const MASK = (1n << 64n) - 1n;
// Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11): Philox4x64-10
const MULTIPLIERS = [0xd2e7470ee14c6c93n, 0xca5a826395121157n];
const WEYL = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn];

/** The random stream of sequence `index` under `seed`, as NumPy's Philox gives it. */
export class Philox {
  /** @param {bigint | number} seed @param {number} [index] */
  constructor(seed, index = 0) {
    if (BigInt(seed) < 0n || BigInt(seed) > MASK) {
      throw new WeftError(`seed is ${seed}; expected an integer from 0 to 2**64 - 1`);
    }
    this.key = [BigInt(seed), BigInt(index)];
    this.counter = 0n;
    /** @type {bigint[]} */
    this.left = [];
    this.half = -1; // the upper 32 bits of a word whose lower ones were taken
  }

  /** A number of [0, 1) with 53 random bits. */
  random() {
    return Number(this.word() >> 11n) * 2 ** -53;
  }

  /** @returns {bigint} 64 random bits */
  word() {
    if (!this.left.length) this.left = this.block();
    return /** @type {bigint} */ (this.left.shift());
  }

  bits32() {
    const half = this.half;
    const word = half < 0 ? this.word() : 0n;
    this.half = half < 0 ? Number(word >> 32n) : -1;
    return half < 0 ? Number(word & 0xffffffffn) : half;
  }

  /**
   * An integer below `n` (Lemire 2019, as NumPy draws those of up to 32 bits).
   * @param {number} n
   */
  below(n) {
    if (n <= 1) return 0;
    const least = 2 ** 32 % n;
    for (;;) {
      const product = BigInt(this.bits32()) * BigInt(n);
      if (Number(product & 0xffffffffn) >= least) return Number(product >> 32n);
    }
  }

  /** The numbers below `n` in the order of NumPy's `permutation`. @param {number} n */
  permutation(n) {
    const out = Uint32Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) {
      const mask = 0xffffffff >>> Math.clz32(i);
      let j = i + 1;
      while (j > i) j = (this.bits32() & mask) >>> 0;
      [out[i], out[j]] = [out[j], out[i]];
    }
    return out;
  }

  block() {
    this.counter += 1n;
    let [a, b, c, d] = [0n, 64n, 128n, 192n].map((by) => (this.counter >> by) & MASK);
    let [k, l] = this.key;
    for (let round = 0; round < 10; round++) {
      const [left, right] = [MULTIPLIERS[0] * a, MULTIPLIERS[1] * c];
      [a, b, c, d] = [(right >> 64n) ^ b ^ k, right & MASK, (left >> 64n) ^ d ^ l, left & MASK];
      k = (k + WEYL[0]) & MASK;
      l = (l + WEYL[1]) & MASK;
    }
    return [a, b, c, d];
  }
}

/**
 * The next token's id. `history` is prompt and new ids; `stream` gives one uniform where the
 * temperature is above 0.
 * @param {Float32Array} logits @param {number[]} history @param {Sampling} how
 * @param {Philox} stream
 */
export function choose(logits, history, how, stream) {
  /** @type {Float32Array | Float64Array} */
  let values = logits;
  if (how.repetitionPenalty !== 1) values = penalised(logits, history, how.repetitionPenalty);
  const best = argmax(values);
  if (!Number.isFinite(values[best])) {
    throw new WeftError("the logits are not finite: the model's files or this GPU are damaged; "
      + "open the page with ?selftest");
  }
  if (how.temperature === 0) return best;
  const uniform = stream.random();
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
  let ids = Array.from(logits, (_, i) => i);
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
 * What the options of a text ask for, or a WeftError.
 * @param {import("./model.js").GenerateOptions} o @returns {Sampling}
 */
export function sampling(o) {
  const how = {
    temperature: o.temperature ?? 0, topK: o.topK ?? 0, topP: o.topP ?? 1,
    repetitionPenalty: o.repetitionPenalty ?? 1,
  };
  const bad = !(how.temperature >= 0 && how.temperature < Infinity) ? "temperature"
    : !(Number.isInteger(how.topK) && how.topK >= 0) ? "topK"
      : !(how.topP > 0 && how.topP <= 1) ? "topP"
        : !(how.repetitionPenalty >= 2 ** -126 && how.repetitionPenalty <= 2 ** 126)
          ? "repetitionPenalty" : "";
  if (bad) throw new WeftError(`${bad} is ${/** @type {any} */ (how)[bad]}, which is out of range`);
  return how;
}
