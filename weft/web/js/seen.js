// What a net's outputs say: classes, objects, regions or depths (weft/vision/answers.py).

import { WeftError } from "./program.js";

const OVERLAP = 0.7;
const MOST = 300;
const TRIED = 3000; // boxes before suppression

/**
 * @typedef {{shape: number[], values: Float32Array | Int32Array}} Output
 * @typedef {{threshold?: number, top?: number}} Wanted
 * @typedef {{label: string, score: number, box: [number, number, number, number]}} Thing `box`
 *   is left, top, right and bottom, from 0 to 1 within the net's input
 * @typedef {{task: "classify", labels: {label: string, score: number}[]}
 *   | {task: "detect", objects: Thing[]}
 *   | {task: "segment", width: number, height: number, classes: Uint8Array, names: string[]}
 *   | {task: "depth", width: number, height: number, values: Float32Array}} Answer
 */

/**
 * @param {import("./net.js").NetModel} model @param {Map<string, Output>} outputs
 * @param {Wanted} [wanted] @returns {Answer}
 */
export function answer(model, outputs, { threshold = 0.5, top = 5 } = {}) {
  const task = model.task || taskOf(outputs);
  if (task === "detect") return { task, objects: things(model, outputs, threshold) };
  const named = outputs.get(task === "depth" ? "predicted_depth" : "logits");
  const { shape, values } = /** @type {Output} */ (named ?? [...outputs.values()][0]);
  if (task === "classify") return { task, labels: classes(model, values, top) };
  const [height, width] = shape.slice(-2);
  if (task === "depth") return { task, width, height, values: Float32Array.from(values) };
  if (task === "segment") {
    const numbers = best(values, shape[1], height * width);
    const names = Array.from({ length: shape[1] }, (_, n) => nameOf(model, n));
    return { task, width, height, classes: numbers, names };
  }
  throw new WeftError(`a page knows no way to show outputs ${[...outputs.keys()].join(", ")}`);
}

/** @param {Map<string, Output>} outputs */
function taskOf(outputs) {
  if (outputs.has("pred_boxes") || (outputs.has("boxes") && outputs.has("scores"))) return "detect";
  if (outputs.has("predicted_depth")) return "depth";
  const [only] = outputs.values();
  const first = outputs.get("logits") ?? (outputs.size === 1 ? only : undefined);
  if (first?.shape.length === 2) return "classify";
  return first?.shape.length === 4 && first.shape[1] > 1 ? "segment" : "";
}

/** @param {import("./net.js").NetModel} model @param {number} n */
const nameOf = ({ labels }, n) => labels[n] ?? `class ${n}`;

/** @param {ArrayLike<number>} x @returns {number[]} */
export function softmax(x) {
  const all = Array.from(x);
  const most = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const e = all.map((v) => Math.exp(v - most));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / sum);
}

const sigmoid = (/** @type {number} */ v) => 1 / (1 + Math.exp(-v));

/** @param {ArrayLike<number>} scores the indices from the largest score on */
function ordered(scores) {
  return Array.from(scores, (_, n) => n).sort((a, b) => scores[b] - scores[a] || a - b);
}

/** @param {import("./net.js").NetModel} model @param {ArrayLike<number>} x @param {number} top */
function classes(model, x, top) {
  const all = Array.from(x);
  const sum = all.reduce((a, b) => a + b, 0);
  const given = all.every((v) => v >= 0) && Math.abs(sum - 1) < 1e-3;
  const p = given ? all : model.several ? all.map(sigmoid) : softmax(all);
  return ordered(p).slice(0, top).map((n) => ({ label: nameOf(model, n), score: p[n] }));
}

/** @param {ArrayLike<number>} values @param {number} count @param {number} plane */
function best(values, count, plane) {
  const found = new Uint8Array(plane);
  for (let i = 0; i < plane; i++) {
    for (let c = 1; c < Math.min(count, 256); c++) {
      if (values[c * plane + i] > values[found[i] * plane + i]) found[i] = c;
    }
  }
  return found;
}

/**
 * @param {import("./net.js").NetModel} model @param {Map<string, Output>} outputs
 * @param {number} threshold @returns {Thing[]}
 */
function things(model, outputs, threshold) {
  const [height, width] = model.size;
  /** @type {(Thing & {n: number})[]} */
  let found = [];
  /** @type {(n: number, score: number, box: number[]) => void} */
  const add = (n, score, box) => {
    if (score > threshold) {
      const four = /** @type {Thing["box"]} */ (box);
      found.push({ n, label: nameOf(model, n), score, box: four });
    }
  };
  const boxes = outputs.get("pred_boxes") ?? outputs.get("boxes");
  const logits = outputs.get("logits");
  if (outputs.has("pred_boxes") && logits && boxes) queries(model, logits, boxes, add);
  else if (boxes && outputs.has("scores") && outputs.has("labels")) {
    const scores = /** @type {Output} */ (outputs.get("scores")).values;
    const labels = /** @type {Output} */ (outputs.get("labels")).values;
    const by = [width, height, width, height];
    scores.forEach((score, i) =>
      add(labels[i], score, by.map((size, k) => boxes.values[4 * i + k] / size)));
  } else if (model.boxes === "yolo") {
    return yolo(model, [...outputs.values()][0], add, () => found);
  }
  found = found.sort((a, b) => b.score - a.score).slice(0, MOST);
  return found.map(({ label, score, box }) => ({ label, score, box }));
}

/** @param {number[]} b a centre, a width and a height */
const corners = ([x, y, w, h]) => [x - w / 2, y - h / 2, x + w / 2, y + h / 2];

/**
 * @param {import("./net.js").NetModel} model @param {Output} logits @param {Output} boxes
 * @param {(n: number, score: number, box: number[]) => void} add
 */
function queries({ boxes: coded, labels }, logits, boxes, add) {
  const [, count, wide] = logits.shape;
  const usual = wide === Object.keys(labels).length ? "sigmoid" : "softmax";
  const alone = (coded || usual) === "sigmoid";
  const box = (/** @type {number} */ q) =>
    corners(Array.from(boxes.values.subarray(4 * q, 4 * q + 4)));
  if (alone) {
    const p = Array.from(logits.values, sigmoid);
    for (const i of ordered(p).slice(0, count)) add(i % wide, p[i], box(Math.floor(i / wide)));
    return;
  }
  for (let q = 0; q < count; q++) {
    const p = softmax(logits.values.subarray(q * wide, (q + 1) * wide)).slice(0, -1);
    const n = p.indexOf(Math.max(...p));
    add(n, p[n], box(q));
  }
}

/**
 * Rows [4 + C, A] of centres, sizes and probabilities, of which no two of one class may lie on
 * one another; or [N, 6], which are chosen already.
 * @param {import("./net.js").NetModel} model @param {Output} out
 * @param {(n: number, score: number, box: number[]) => void} add
 * @param {() => (Thing & {n: number})[]} all
 */
function yolo({ size: [height, width], labels }, { shape, values }, add, all) {
  const [rows, count] = shape.slice(-2);
  const by = [width, height, width, height];
  const classes = Object.keys(labels).length;
  if (count === 6 && rows !== 4 + classes) {
    for (let i = 0; i < rows; i++) {
      const one = Array.from(values.subarray(6 * i, 6 * i + 6));
      add(one[5], one[4], by.map((size, k) => one[k] / size));
    }
  } else {
    for (let a = 0; a < count; a++) {
      let n = 0;
      for (let c = 1; c < classes; c++) {
        if (values[(4 + c) * count + a] > values[(4 + n) * count + a]) n = c;
      }
      const one = [0, 1, 2, 3].map((k) => values[k * count + a]);
      add(n, values[(4 + n) * count + a], corners(one).map((v, k) => v / by[k]));
    }
  }
  const order = all().sort((a, b) => b.score - a.score).slice(0, TRIED);
  /** @type {typeof order} */
  const kept = [];
  for (const one of order) {
    if (kept.length === MOST) break;
    if (kept.every((o) => o.n !== one.n || shared(o.box, one.box) <= OVERLAP)) kept.push(one);
  }
  return kept.map(({ label, score, box }) => ({ label, score, box }));
}

/** Intersection over union. @param {number[]} a @param {number[]} b */
function shared(a, b) {
  const span = (/** @type {number[]} */ [l, t, r, d]) => Math.max(r - l, 0) * Math.max(d - t, 0);
  const both = span([Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]),
    Math.min(a[3], b[3])]);
  return both / Math.max(span(a) + span(b) - both, 1e-12);
}
