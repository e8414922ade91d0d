// The tasks of pipeline.js that look at pictures.

import { WeftError } from "weft-ml";

import { fitted } from "./fitted.js";
import { shown } from "./options.js";
import { softmax } from "./seen.js";

/** @typedef {import("./pipeline.js").Run} Run */

/** @type {Run} */
export async function classify(model, input, { top_k: top = 5 }) {
  return (await seen(model, "classify", input, { top: top ?? 2 ** 31 })).labels;
}

/** @type {Run} boxes are in pixels of the picture */
export async function detect(model, input, { threshold = 0.9, percentage = false }) {
  const found = await seen(model, "detect", input, { threshold });
  const { view: { x, y, ...view }, width, height, size: [tall, wide] } = found;
  const at = (/** @type {number} */ part, /** @type {number} */ most) =>
    (percentage ? part : Math.trunc(part * most));
  return found.objects.map((/** @type {import("./seen.js").Thing} */ { label, score, box }) => {
    const [left, top, right, bottom] = box;
    const [xmin, xmax] = [left, right].map((v) => at((v * wide - x) / view.width, width));
    const [ymin, ymax] = [top, bottom].map((v) => at((v * tall - y) / view.height, height));
    return { score, label, box: { xmin, ymin, xmax, ymax } };
  });
}

/** @type {Run} */
export async function judge(model, input, options) {
  const { labels, hypothesis_template: said = "This is a photo of {}" } = options;
  const { logits, padded } = numbers(model);
  if (!logits) throw new WeftError("the folder has no scale of scores: export it again");
  const [scale, bias] = logits;
  const own = await model.embedImage((await pixels(model, input)).data);
  const words = await model.embed(labels.map((/** @type {string} */ l) => said.replace("{}", l)));
  const x = words.map((/** @type {Float32Array} */ row) =>
    row.reduce((sum, v, n) => sum + v * own[n], 0) * Math.exp(scale) + bias);
  const p = padded ? x.map((/** @type {number} */ v) => 1 / (1 + Math.exp(-v))) : softmax(x);
  const all = labels.map((/** @type {string} */ label, /** @type {number} */ n) =>
    ({ score: p[n], label }));
  return all.sort((/** @type {any} */ a, /** @type {any} */ b) => b.score - a.score);
}

/** @param {any} model @param {string} task @param {any} input @param {any} wanted */
async function seen(model, task, input, wanted) {
  const taken = await pixels(model, input);
  const found = await model.see(taken.data, wanted);
  if (found.task === task) return { ...taken, ...found };
  throw new WeftError(`the net cannot ${task}: its task is ${found.task}`);
}

/** A model's own numbers. @param {any} model */
const numbers = (model) => model.about.model;

/**
 * A picture as the model takes it, and where it lies there.
 * @param {any} model @param {any} input RGBA pixels of its own size; in a page also an address, a
 *   Blob, or what a canvas can draw
 */
async function pixels(model, input) {
  const { size, fit } = numbers(model);
  const [height, width] = size;
  const whole = { x: 0, y: 0, width, height };
  if (input instanceof Uint8ClampedArray) return { data: input, view: whole, width, height, size };
  if (!globalThis.OffscreenCanvas) {
    throw new WeftError(`a picture is a Uint8ClampedArray here: RGBA, ${width} x ${height} pixels`);
  }
  const image = await drawn(input);
  const canvas = /** @type {any} */ (new OffscreenCanvas(width, height));
  const made = fitted(canvas, { size, fit }, image, image.width, image.height);
  return { ...made, width: image.width, height: image.height, size };
}

/** @param {any} input @returns {Promise<ImageBitmap>} */
async function drawn(input) {
  try {
    if (typeof input !== "string" && !(input instanceof URL)) return await createImageBitmap(input);
    const answer = await fetch(input);
    if (!answer.ok) throw new TypeError(`the server says ${answer.status}`);
    return await createImageBitmap(await answer.blob());
  } catch (error) {
    throw new WeftError(`the picture is ${shown(input)} (${/** @type {Error} */ (error).message}); `
      + "expected an address, a Blob, an image, a canvas or RGBA pixels", { cause: error });
  }
}
