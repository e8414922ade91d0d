// A net that sees: pixels in, what it says about them out (weft/vision/nets.py).

import { floats, needPixels } from "./fitted.js";
import { need } from "./manifest.js";
import { ITEM, WeftError, isText, whole } from "./program.js";
import { answer } from "./seen.js";

/**
 * @typedef {{input: string, size: [number, number], last: boolean, scale: number | null,
 *   fit: ["stretch"] | ["boxed"] | ["crop", number, number],
 *   mean: number[] | null, std: number[] | null, outputs: [string, string, number[]][],
 *   labels: Record<string, string>, task: string, several: boolean, boxes: string}} NetModel
 */

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
  async see(rgba, wanted) {
    const [height, width] = this.model.size;
    if (rgba.length !== 4 * height * width) {
      throw new WeftError(`the net takes ${width} x ${height} pixels`);
    }
    const given = { [this.model.input]: floats(rgba, this.model) };
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
