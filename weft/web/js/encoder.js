// A model that turns texts into vectors, one text at a time (weft/models/run/embedder.py).

import { need, needText } from "./manifest.js";
import { whole } from "./program.js";

/**
 * @typedef {{vocab: number, hidden: number, pad: number, widths: number[],
 *   modes: ("cls" | "mean" | "max")[], normalize: boolean}} EncoderModel
 */

/**
 * Feeds an encoder's Programs: one for each width, the text padded to the narrowest it fits. Each
 * is compiled when a text first needs it: most never are.
 */
export class Encoder {
  /** @param {import("./session.js").Sessions} sessions @param {EncoderModel} model */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
  }

  /**
   * @param {number[]} ids at most as many as the widest Program takes
   * @returns {Promise<Float32Array>}
   */
  async embed(ids) {
    const { widths, pad, hidden } = this.model;
    const width = /** @type {number} */ (widths.find((w) => w >= ids.length));
    if (!this.sessions.bound.has(String(width))) await this.sessions.prepare([String(width)]);
    const padded = Int32Array.from({ length: width }, (_, n) => ids[n] ?? pad);
    const lengths = Int32Array.of(ids.length);
    const [out] = await this.sessions.run(String(width), { ids: padded, lengths }, {});
    const tokens = new Float32Array(out.buffer, out.byteOffset, width * hidden);
    return pool(tokens, ids.length, this.model);
  }
}

/**
 * One vector of the tokens' vectors: the modes' results side by side.
 * @param {Float32Array} tokens @param {number} count @param {EncoderModel} model
 */
function pool(tokens, count, { hidden, modes, normalize }) {
  const out = new Float32Array(hidden * modes.length);
  modes.forEach((mode, m) => {
    const own = out.subarray(m * hidden, (m + 1) * hidden);
    own.set(tokens.subarray(0, hidden));
    for (let n = 1; n < count && mode !== "cls"; n++) {
      for (let i = 0; i < hidden; i++) {
        const value = tokens[n * hidden + i];
        own[i] = mode === "max" ? Math.max(own[i], value) : own[i] + value;
      }
    }
    if (mode === "mean") own.forEach((value, i) => (own[i] = value / count));
  });
  if (normalize) {
    const norm = Math.max(Math.sqrt(out.reduce((sum, v) => sum + v * v, 0)), 1e-12);
    out.forEach((value, i) => (out[i] = value / norm));
  }
  return out;
}

/** What a manifest says. @param {any} m @param {any} text */
export function check(m, text) {
  needText(text);
  const counts = [m.vocab, m.hidden, ...m.widths];
  need(counts.every((n) => whole(n) && n > 0 && n <= 2 ** 24) && whole(m.pad),
    "a number of the model");
  need(Math.max(...m.widths) === text.limit, "its widths");
  const known = (/** @type {string} */ mode) => ["cls", "mean", "max"].includes(mode);
  need(m.modes.every(known), "its pooling");
}

/** @param {import("./session.js").Sessions} sessions @param {EncoderModel} model */
export const make = (sessions, model) => new Encoder(sessions, model);

/**
 * @param {import("./model.js").Model} model @param {number[]} ids
 * @returns {Promise<Float32Array>}
 */
export const embed = (model, ids) => model.withPart((encoder) => encoder.embed(ids));
