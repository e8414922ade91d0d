// A net that sees: pixels in, what it says about them out (weft/vision/nets.py).

import { floats, needPixels, pixelsOf } from "./fitted.js";
import { need } from "./manifest.js";
import { allowed, count } from "./options.js";
import { ITEM, isText, whole } from "./program.js";
import { answer } from "./seen.js";

/**
 * @typedef {{input: string, size: [number, number], last: boolean, scale: number | null,
 *   fit: ["stretch"] | ["boxed"] | ["crop", number, number],
 *   mean: number[] | null, std: number[] | null, outputs: [string, string, number[]][],
 *   labels: Record<string, string>, task: string, several: boolean, boxes: string}} NetModel
 */

/** @type {Record<string, import("./options.js").Rule>} */
const SEE = { threshold: [(v) => v >= 0 && v <= 1, "a number from 0 to 1"], top: count(1) };

/** Feeds the Program of a net that takes one picture. */
export class Net {
  /** @param {import("./session.js").Sessions} sessions @param {NetModel} model */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
  }

  /**
   * @param {Uint8ClampedArray} rgba pixels of the net's own size
   * @param {import("./seen.js").Wanted} [wanted]
   * @returns {Promise<import("./seen.js").Answer>}
   */
  async see(rgba, wanted = {}) {
    allowed(wanted, SEE, "see");
    const given = { [this.model.input]: floats(pixelsOf(rgba, this.model), this.model) };
    const found = /** @type {Uint8Array<ArrayBuffer>[]} */ (
      await this.sessions.run("net", given, {}));
    /** @type {Map<string, import("./seen.js").Output>} */
    const outputs = new Map();
    this.model.outputs.forEach(([name, dtype, shape], n) => {
      const { buffer, byteOffset } = found[n];
      const count = shape.reduce((a, b) => a * b, 1);
      const kind = dtype === "int32" ? Int32Array : Float32Array;
      if (["float32", "int32"].includes(dtype)) {
        outputs.set(name, { shape, values: new kind(buffer, byteOffset, count) });
      }
    });
    return answer(this.model, outputs, wanted);
  }
}

/** What a manifest says. @param {any} m */
export function check(m) {
  needPixels(m);
  need(isText(m.input), "its input");
  for (const [name, dtype, shape] of m.outputs) {
    need(isText(name) && Object.hasOwn(ITEM, dtype) && shape.every(whole), "its outputs");
  }
  need(Object.values(m.labels).every(isText) && isText(m.task) && isText(m.boxes), "its labels");
}

/** @param {import("./session.js").Sessions} sessions @param {NetModel} model */
export const make = (sessions, model) => new Net(sessions, model);

/**
 * @param {import("./model.js").Model} model @param {Uint8ClampedArray} rgba
 * @param {import("./seen.js").Wanted} [wanted] @returns {Promise<import("./seen.js").Answer>}
 */
export const see = (model, rgba, wanted) => model.withPart((net) => net.see(rgba, wanted));
