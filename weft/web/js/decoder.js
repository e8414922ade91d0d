// A language model: prompts in chunks, then a token at a time.

/** Feeds a decoder's Programs; greedy or sampled choices are made elsewhere (sampler.js). */
export class Decoder {
  /**
   * @param {import("./session.js").Sessions} sessions
   * @param {{vocab: number, context: number, kv_heads: number, rows: Record<string, number>}} model
   */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
  }

  /**
   * Feeds ids from position `start` on; the logits after the last one.
   * @param {number[]} ids @param {number} start @param {AbortSignal} [signal]
   * @returns {Promise<Float32Array>}
   */
  async feed(ids, start, signal) {
    const kind = ids.length === 1 ? "decode" : "prefill";
    const room = this.model.rows[kind];
    /** @type {Float32Array} */
    let logits = new Float32Array();
    for (let at = 0; at < ids.length; at += room) {
      logits = await this.step(kind, ids.slice(at, at + room), start + at, signal);
    }
    return logits;
  }

  /** @param {string} kind @param {number[]} ids @param {number} start @param {AbortSignal} [signal] */
  async step(kind, ids, start, signal) {
    const { kv_heads: heads, context, rows, vocab } = this.model;
    const size = rows[kind];
    const padded = (/** @type {(n: number) => number} */ of) =>
      Int32Array.from({ length: size }, (_, n) => (n < ids.length ? of(n) : 0));
    const at = new Int32Array(size * heads).fill(-1);
    ids.forEach((_, n) => {
      for (let g = 0; g < heads; g++) at[n * heads + g] = g * context + start + n;
    });
    /** @type {Record<string, ArrayBufferView>} */
    const inputs = {
      ids: padded((n) => ids[n]), slot: padded(() => 0), place: padded((n) => start + n), at,
    };
    if (kind === "prefill") inputs.last = Int32Array.of(ids.length - 1);
    const [out] = await this.sessions.run(kind, inputs, { n: ids.length }, signal);
    return new Float32Array(out.buffer, out.byteOffset, vocab);
  }
}
