// Random numbers as NumPy draws them: fetched by a page that samples or trains.

import { WeftError } from "./program.js";

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
