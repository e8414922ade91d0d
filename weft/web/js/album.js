// A model that gives vectors of pictures and of texts in one space (weft/web/albums.py).

import { floats, needPixels, pixelsOf } from "./fitted.js";
import { need, needText } from "./manifest.js";
import { whole } from "./program.js";

/**
 * @typedef {import("./fitted.js").Fit & {vocab: number, dim: number, longest: number, pad: number,
 *   end: number, padded: boolean, logits?: [scale: number, bias: number], scale: number | null,
 *   mean: number[] | null,
 *   std: number[] | null}} AlbumModel
 */

/** Feeds the two Programs, "picture" and "text"; vectors have the length 1. */
export class Album {
  /** @param {import("./session.js").Sessions} sessions @param {AlbumModel} model */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
  }

  /** @param {number[]} ids of a text @returns {Promise<Float32Array>} */
  async embed(ids) {
    const { longest, pad, end, padded } = this.model;
    const last = ids[ids.length - 1];
    const cut = ids.length > longest ? [...ids.slice(0, longest - 1), last] : ids;
    const all = Int32Array.from({ length: longest }, (_, n) => cut[n] ?? pad);
    // an end of 2 is what old files say of CLIP, whose end is the largest id
    const found = end === 2 ? cut.indexOf(Math.max(...cut)) : Math.max(cut.indexOf(end), 0);
    const lengths = Int32Array.of(padded ? longest : cut.length);
    const at = Int32Array.of(padded ? longest - 1 : found);
    return this.run("text", { ids: all, lengths, at });
  }

  /**
   * @param {Uint8ClampedArray} rgba pixels of the model's own size
   * @returns {Promise<Float32Array>}
   */
  async look(rgba) {
    const pixels = floats(pixelsOf(rgba, this.model), { ...this.model, last: false });
    return this.run("picture", { pixels });
  }

  /** @param {string} name @param {Record<string, any>} given */
  async run(name, given) {
    const [{ buffer, byteOffset }] = /** @type {Uint8Array<ArrayBuffer>[]} */ (
      await this.sessions.run(name, given, {}));
    const row = new Float32Array(buffer, byteOffset, this.model.dim);
    const norm = Math.max(Math.sqrt(row.reduce((sum, v) => sum + v * v, 0)), 1e-12);
    return row.map((value) => value / norm);
  }
}

/** What a manifest says. @param {any} m @param {any} text */
export function check(m, text) {
  needText(text);
  needPixels(m);
  const counts = [m.vocab, m.dim, m.longest];
  need(counts.every((n) => whole(n) && n > 0 && n <= 2 ** 24), "a number of the model");
  need(whole(m.pad) && whole(m.end) && typeof m.padded === "boolean", "its texts");
  const { logits = [0, 0] } = m; // older folders have none
  need(logits.length === 2 && logits.every(Number.isFinite), "the scale of its scores");
}

/** @typedef {import("./model.js").Model} Model */

/** @param {import("./session.js").Sessions} sessions @param {AlbumModel} model */
export const make = (sessions, model) => new Album(sessions, model);

/** @param {Model} model @param {number[]} ids @returns {Promise<Float32Array>} */
export const embed = (model, ids) => model.withPart((album) => album.embed(ids));

/** @param {Model} model @param {Uint8ClampedArray} rgba @returns {Promise<Float32Array>} */
export const embedImage = (model, rgba) => model.withPart((album) => album.look(rgba));
