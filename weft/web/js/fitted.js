// A picture in the pixels that a model takes.

import { need } from "./manifest.js";
import { fit } from "./options.js";
import { WeftError, whole } from "./program.js";

/**
 * @typedef {{size: [number, number], fit: ["stretch"] | ["boxed"] | ["crop", number, number]}} Fit
 */

/**
 * The pixels of a picture in a model's own size, and where it lies in them.
 * @param {HTMLCanvasElement} canvas for the pixels @param {Fit} model
 * @param {CanvasImageSource} source @param {number} width @param {number} height
 * @param {string} [behind] the colour where it is transparent, or does not reach
 */
export function fitted(canvas, model, source, width, height, behind = "rgb(114 114 114)") {
  [canvas.height, canvas.width] = model.size;
  const view = place(model, width, height);
  const pen = /** @type {CanvasRenderingContext2D} */ (
    canvas.getContext("2d", { willReadFrequently: true }));
  pen.fillStyle = behind;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(source, view.x, view.y, view.width, view.height);
  return { view, data: pen.getImageData(0, 0, canvas.width, canvas.height).data };
}

/** @param {Fit} model @param {number} width @param {number} height */
function place({ size: [tall, wide], fit: [how, whole, across] }, width, height) {
  if (how === "stretch") return { x: 0, y: 0, width: wide, height: tall };
  const by = how === "boxed" ? Math.min(wide / width, tall / height)
    : Math.max(/** @type {number} */ (across) / width, /** @type {number} */ (whole) / height);
  const size = { width: Math.round(width * by), height: Math.round(height * by) };
  const [x, y] = [wide - size.width, tall - size.height].map((room) => Math.round(room / 2));
  return { x, y, ...size };
}

/**
 * The pixels that a call is given; a WeftError if they are not of a model's own size.
 * @param {Uint8ClampedArray} given @param {Pick<Fit, "size">} model
 */
export function pixelsOf(given, { size: [height, width] }) {
  const nbytes = 4 * height * width;
  fit(given, [(v) => v instanceof Uint8ClampedArray, `RGBA of ${width} x ${height} pixels, a `
    + "Uint8ClampedArray"], "the picture");
  if (given.length === nbytes) return given;
  throw new WeftError(`the picture has ${given.length} bytes; expected RGBA of ${width} x `
    + `${height} pixels, ${nbytes} bytes`);
}

/**
 * Pixels as a model takes them.
 * @param {Uint8ClampedArray} rgba
 * @param {Pick<import("./net.js").NetModel, "size" | "last" | "scale" | "mean" | "std">} model
 */
export function floats(rgba, { size: [height, width], last, scale, mean, std }) {
  const plane = height * width;
  const out = new Float32Array(3 * plane);
  for (let c = 0; c < 3; c++) {
    const table = Float32Array.from({ length: 256 }, (_, v) =>
      (v * (scale ?? 1) - (mean?.[c] ?? 0)) / (std?.[c] ?? 1));
    for (let i = 0; i < plane; i++) out[last ? 3 * i + c : c * plane + i] = table[rgba[4 * i + c]];
  }
  return out;
}

/** @param {any} m how a picture becomes its input */
export function needPixels(m) {
  const sizes = [...m.size, ...m.fit.slice(1)];
  need(m.size.length === 2 && sizes.every((n) => whole(n) && n > 0 && n <= 2 ** 14), "its size");
  need(["stretch", "boxed", "crop"].includes(m.fit[0]), "its input");
  need([m.mean, m.std].every((x) => x === null || (x.length === 3 && x.every(Number.isFinite)))
    && (m.scale === null || Number.isFinite(m.scale)), "its steps");
}
