// A language model: prompts in chunks, then a token at a time.

import { WeftError } from "./program.js";

/** Feeds a decoder's Programs; greedy or sampled choices are made elsewhere (sampler.js). */
export class Decoder {
  /**
   * @param {import("./session.js").Sessions} sessions
   * @param {{vocab: number, context: number, page: number, kv_heads: number[],
   *   rows: Record<string, number>, rewinds: boolean}} model
   */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
    const pages = Math.ceil(model.context / model.page);
    /** the one sequence's pages, in order */
    this.table = Int32Array.from({ length: pages }, (_, n) => n);
    /** @type {number[]} ids whose keys and values the device holds */
    this.fed = [];
  }

  /**
   * The logits after `ids`, of which it feeds only those that the device does not hold yet.
   * @param {number[]} ids @param {AbortSignal} [signal] @returns {Promise<Float32Array>}
   */
  async logits(ids, signal) {
    let same = 0;
    while (same < ids.length - 1 && this.fed[same] === ids[same]) same++;
    const { rewinds } = this.model; // else no row but the last can be gone on from
    if (!rewinds && same < this.fed.length) same = 0;
    this.fed = rewinds ? this.fed.slice(0, same) : []; // before the step: it may fail
    const out = await this.feed(ids.slice(same), same, signal);
    this.fed = [...ids];
    return out;
  }

  /**
   * Feeds ids from position `start` on; returns the logits after the last one.
   * @param {number[]} ids @param {number} start @param {AbortSignal} [signal]
   * @returns {Promise<Float32Array>}
   */
  async feed(ids, start, signal) {
    const kind = ids.length === 1 ? "decode" : "prefill";
    const room = this.model.rows[kind];
    /** @type {Float32Array} */
    let logits = new Float32Array();
    for (let at = 0; at < ids.length; at += room) {
      signal?.throwIfAborted();
      logits = await this.step(kind, ids.slice(at, at + room), start + at, signal);
    }
    return logits;
  }

  /**
   * @param {string} kind @param {number[]} ids @param {number} start
   * @param {AbortSignal} [signal]
   */
  async step(kind, ids, start, signal) {
    const { kv_heads: counts, page, rows, vocab } = this.model;
    const size = rows[kind];
    const padded = (/** @type {(n: number) => number} */ of) =>
      Int32Array.from({ length: size }, (_, n) => (n < ids.length ? of(n) : 0));
    /** @type {Record<string, Int32Array<ArrayBuffer>>} */
    const inputs = {
      ids: padded((n) => ids[n]), table: this.table,
      // of each row its slot, the first, and its position
      where: new Int32Array(2 * size).map((_, n) =>
        (n % 2 && n < 2 * ids.length ? start + (n - 1) / 2 : 0)),
    };
    const positions = this.table.length * page; // of each head, one head after the other
    for (const heads of counts) {
      const at = (inputs[`at.${heads}`] = new Int32Array(size * heads).fill(-1));
      for (let row = 0; row < ids.length * heads; row++) {
        at[row] = (row % heads) * positions + start + Math.floor(row / heads);
      }
    }
    if (kind === "prefill") inputs.last = Int32Array.of(ids.length - 1);
    const [out] = await this.sessions.run(kind, inputs, { n: ids.length }, signal);
    if (out.length < 4 * vocab) throw new WeftError("the Program gives fewer logits than words");
    return new Float32Array(out.buffer, out.byteOffset, vocab);
  }
}
