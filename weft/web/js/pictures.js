// Pictures in a prompt: vectors in place of the embeddings of placeholder tokens
// (weft/models/run/eyes.py), for models that see a picture in one tile of a fixed size.

import { floats, needPixels, pixelsOf } from "./fitted.js";
import { need } from "./manifest.js";
import { WeftError, isText, soundly, whole } from "./program.js";

const KEPT = 4; // pictures whose vectors are kept

/**
 * @typedef {import("./fitted.js").Fit & {given: string, spelled: string, token: number,
 *   count: number, width: number, whole: boolean, parts: boolean, scale: number | null,
 *   mean: number[] | null, std: number[] | null}} PictureModel
 * @typedef {{start: number, end: number, key: string, vectors: Float32Array, whole: boolean}} Inset
 *   vectors from position `start` on; `key` names what is seen
 * @typedef {import("./model.js").Model} Model
 */

/** @type {WeakMap<Model, Map<string, Float32Array>>} */
const kept = new WeakMap();

/** What a model sees, checked. @param {Model} model @returns {PictureModel} */
export function seeing({ manifest: { name, model } }) {
  const { picture } = model;
  if (!picture) throw new WeftError(`${name} reads text alone: leave the pictures out`);
  soundly("manifest.json", () => {
    needPixels(picture);
    need(isText(picture.given) && isText(picture.spelled), "how it spells a picture");
    need([picture.token, picture.count].every(whole) && picture.width === model.hidden,
      "the tokens of a picture");
  });
  return picture;
}

/**
 * A text with the placeholders of pictures spelled out.
 * @param {PictureModel} picture @param {string} text @param {number} count of pictures
 */
export function spelled({ given, spelled: tokens }, text, count) {
  const parts = text.split(given);
  if (parts.length !== count + 1) {
    throw new WeftError(`the prompt has ${parts.length - 1} places for pictures (${given}), and `
      + `${count} were given: give one for each`);
  }
  return parts.join(tokens);
}

/**
 * A text with the placeholders of pictures, which come first unless it has places for them.
 * @param {Model} model @param {string} text @param {Uint8ClampedArray[]} images
 */
export function prompt(model, text, { length }) {
  const picture = seeing(model);
  const { given } = picture;
  return spelled(picture, text.includes(given) ? text : given.repeat(length) + text, length);
}

/**
 * Messages as the chat template takes them, and their pictures in order.
 * @param {PictureModel | undefined} picture @param {import("./model.js").Message[]} messages
 */
export function parted(picture, messages) {
  /** @type {Uint8ClampedArray[]} */
  const images = [];
  const plain = messages.map((message) => {
    const { content } = message;
    if (typeof content === "string" && !picture?.parts) return message;
    const parts = Array.isArray(content) ? content : [{ type: "text", text: content }];
    return { ...message, content: parts.map((/** @type {any} */ part) => {
      if (part?.type !== "image") return part;
      images.push(part.image);
      return { type: "image" };
    }) };
  });
  return { plain, images };
}

/**
 * The vectors of a prompt's pictures, where its placeholders are.
 * @param {Model} model @param {number[]} ids @param {Uint8ClampedArray[]} images
 * @returns {Promise<Inset[]>}
 */
export async function insets(model, ids, images) {
  const { token, count, width, whole: together } = seeing(model);
  const places = ids.flatMap((id, at) => (id === token ? [at] : []));
  if (places.length !== count * images.length) {
    throw new WeftError(`the prompt has ${places.length} tokens of pictures for `
      + `${count * images.length} vectors: leave them out of the text`);
  }
  /** @type {Inset[]} */
  const out = [];
  for (const [n, image] of images.entries()) {
    const { key, vectors } = await look(model, image);
    const own = places.slice(n * count, (n + 1) * count);
    for (let begin = 0, end = 1; end <= count; end++) {
      if (end < count && own[end] === own[end - 1] + 1) continue;
      out.push({ start: own[begin], end: own[begin] + end - begin, key: `${key} ${begin}`,
        vectors: vectors.subarray(begin * width, end * width), whole: together });
      begin = end;
    }
  }
  return out;
}

/** @param {Model} model @param {Uint8ClampedArray} rgba pixels of the model's own size */
async function look(model, rgba) {
  const picture = seeing(model);
  pixelsOf(rgba, picture);
  const hash = new Uint32Array(await crypto.subtle.digest("SHA-256", rgba.slice()));
  const key = hash.join(" ");
  const known = kept.get(model) ?? new Map();
  kept.set(model, known);
  const vectors = known.get(key)
    ?? await model.withPart((decoder) => decoder.look(floats(rgba, { ...picture, last: false })));
  known.delete(key);
  known.set(key, vectors);
  if (known.size > KEPT) known.delete(known.keys().next().value);
  return { key, vectors };
}
