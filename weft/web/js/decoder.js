// A language model: prompts in chunks, then a token at a time.

import { WeftError } from "./program.js";

/** @typedef {import("./pictures.js").Inset} Inset */

/** Feeds a decoder's Programs; greedy or sampled choices are made elsewhere (sampler.js). */
export class Decoder {
  /**
   * @param {import("./session.js").Sessions} sessions
   * @param {{vocab: number, context: number, page: number, kv_heads: number[],
   *   rows: Record<string, number>, rewinds: boolean, hidden: number, looks: boolean,
   *   picture: import("./pictures.js").PictureModel}} model
   */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
    const pages = Math.ceil(model.context / model.page);
    /** the one sequence's pages, in order */
    this.table = Int32Array.from({ length: pages }, (_, n) => n);
    /** @type {(number | string)[]} ids, or names of vectors, whose keys the device holds */
    this.fed = [];
  }

  /**
   * The logits after `ids`, of which it feeds only those that the device does not hold yet.
   * @param {number[]} ids @param {AbortSignal} [signal] @param {Inset[]} [insets] of pictures
   * @returns {Promise<Float32Array>}
   */
  async logits(ids, signal, insets = []) {
    /** @type {(number | string)[]} */
    const keys = [...ids];
    for (const { start, end, key } of insets) {
      for (let at = start; at < end; at++) keys[at] = `${key} ${at - start}`;
    }
    let same = 0;
    while (same < ids.length - 1 && this.fed[same] === keys[same]) same++;
    const cut = insets.find(({ start, end, whole }) => whole && start < same && same < end);
    same = cut?.start ?? same;
    const { rewinds } = this.model; // else no row but the last can be gone on from
    if (!rewinds && same < this.fed.length) same = 0;
    this.fed = rewinds ? this.fed.slice(0, same) : []; // before the step: it may fail
    const out = await this.feed(ids.slice(same), same, signal, insets);
    this.fed = keys;
    return out;
  }

  /**
   * Feeds ids from position `start` on; returns the logits after the last one.
   * @param {number[]} ids @param {number} start @param {AbortSignal} [signal]
   * @param {Inset[]} [insets] @returns {Promise<Float32Array>}
   */
  async feed(ids, start, signal, insets = []) {
    const { picture, rows } = this.model;
    /** @type {Float32Array} */
    let logits = new Float32Array();
    for (let at = 0, count = 0; at < ids.length; at += count) {
      signal?.throwIfAborted();
      const first = start + at;
      count = Math.min(ids.length - at, rows.prefill);
      // one step feeds all tokens that see each other
      const cut = insets.find((each) => each.whole && each.start < first + count
        && first + count < each.end);
      if (cut) count = cut.start > first ? cut.start - first : cut.end - first;
      const shown = insets.filter((each) => each.start < first + count && first < each.end);
      const kind = count === 1 && !shown.length ? "decode" : picture ? "pictured" : "prefill";
      logits = await this.step(kind, ids.slice(at, at + count), first, signal, shown);
    }
    return logits;
  }

  /** The vectors of a picture. @param {Float32Array} pixels @returns {Promise<Float32Array>} */
  async look(pixels) {
    const [out] = await this.sessions.run("picture", { pixels }, {});
    const { count, width } = this.model.picture;
    return new Float32Array(out.buffer.slice(out.byteOffset, out.byteOffset + 4 * count * width));
  }

  /**
   * @param {string} kind @param {number[]} ids @param {number} start
   * @param {AbortSignal} [signal] @param {Inset[]} [insets]
   */
  async step(kind, ids, start, signal, insets = []) {
    const { kv_heads: counts, page, rows, vocab } = this.model;
    const size = kind === "decode" ? 1 : rows.prefill;
    const padded = (/** @type {(n: number) => number} */ of) =>
      Int32Array.from({ length: size }, (_, n) => (n < ids.length ? of(n) : 0));
    /** @type {Record<string, ArrayBufferView>} */
    const inputs = {
      ids: padded((n) => ids[n]), table: this.table,
      // of each row its slot, the first, and its position
      where: new Int32Array(2 * size).map((_, n) =>
        (n % 2 && n < 2 * ids.length ? start + (n - 1) / 2 : 0)),
    };
    const positions = this.table.length * page; // of each head, one head after the other
    for (const heads of counts) {
      const at = new Int32Array(size * heads).fill(-1);
      inputs[`at.${heads}`] = at;
      for (let row = 0; row < ids.length * heads; row++) {
        at[row] = (row % heads) * positions + start + Math.floor(row / heads);
      }
    }
    if (kind !== "decode") inputs.last = Int32Array.of(ids.length - 1);
    if (kind === "pictured") Object.assign(inputs, this.rows(size, ids.length, start, insets));
    const [out] = await this.sessions.run(kind, inputs, { n: ids.length }, signal);
    if (out.length < 4 * vocab) throw new WeftError("the Program gives fewer logits than words");
    return new Float32Array(out.buffer, out.byteOffset, vocab);
  }
  /**
   * The inputs of rows with vectors of a picture (weft/models/run/inset_rows.py).
   * @param {number} size @param {number} count @param {number} start @param {Inset[]} insets
   */
  rows(size, count, start, insets) {
    const { hidden, looks } = this.model;
    const [vectors, here] = [new Float32Array(size * hidden), new Int32Array(size)];
    const span = new Int32Array(2 * size).map((_, n) =>
      (n < 2 * count ? start + Math.floor(n / 2) : 0));
    for (const { start: begin, end, vectors: own, whole } of insets) {
      const [first, last] = [Math.max(begin, start), Math.min(end, start + count)];
      const row = first - start;
      vectors.set(own.subarray((first - begin) * hidden, (last - begin) * hidden), row * hidden);
      here.fill(1, row, last - start);
      for (let n = row; whole && n < last - start; n++) span.set([begin, end - 1], 2 * n);
    }
    return looks ? { vectors, here, span } : { vectors, here };
  }
}
