// The page of a net that sees: a picture, or the camera, with the answer drawn over it.

import { captured } from "./captured.js";
import { $, element, onEscape, sentence } from "./fetching.js";
import { fitted } from "./fitted.js";

const LEGEND = 8;

/** @type {import("./weft.js").PageModel} */
let net;
/** @type {import("./net.js").NetModel} */
let model;
/** @type {MediaStream | null} */
let camera = null;
let frames = 0;
/** @type {number[]} when the last frames were done */
let times = [];

const input = element("canvas");
const shown = element("canvas", { id: "see-canvas" });

/** Makes the tab. @param {import("./weft.js").PageModel} loaded */
export function bind(loaded) {
  $("about").textContent = "A net that runs in this page. What you show it stays on this device.";
  net = loaded;
  model = loaded.about.model;
  const file = element("input", { id: "see-file", type: "file", accept: "image/*" });
  const start = element("button", { id: "see-camera", type: "button", textContent: "Camera" });
  const stop = element("button", { id: "see-stop", type: "button", textContent: "Stop" });
  stop.hidden = true;
  const least = element("input", {
    id: "see-threshold", type: "range", min: "0", max: "1", step: "0.01", value: "0.5",
  });
  shown.setAttribute("role", "img");
  shown.setAttribute("aria-label", "The picture, with what the net sees");
  shown.style.maxWidth = "100%";
  $("see").replaceChildren(
    element("label", { htmlFor: "see-file", textContent: "A picture, which stays on this device" }),
    file, element("div", { className: "row" }, start, stop),
    element("label", { htmlFor: "see-threshold", textContent: "Show what is more likely than" }),
    least, element("p", { id: "see-note", role: "status" }), shown,
    element("ol", { id: "see-list" }),
  );
  file.addEventListener("change", () => file.files[0] && picture(file.files[0]).catch(failed));
  start.addEventListener("click", () => film(start, stop).catch(failed));
  stop.addEventListener("click", () => end(start, stop));
  onEscape($("see"), () => camera && end(start, stop));
  $("tab-see").hidden = false;
}

/** @param {unknown} error */
const failed = (error) => ($("see-note").textContent = sentence(error));

/** @param {Blob} file */
async function picture(file) {
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    $("see-note").textContent = "The browser cannot read this picture.";
    return;
  }
  const took = await look(image, image.width, image.height);
  $("see-note").textContent = `${took.toFixed(0)} ms`;
  image.close();
}

/** @param {HTMLButtonElement} start @param {HTMLButtonElement} stop */
async function film(start, stop) {
  const video = element("video", { muted: true, playsInline: true });
  const wanted = { video: { facingMode: "environment", width: { ideal: 1280 } } };
  start.disabled = true; // two cameras would film
  camera = await captured("camera", wanted, "a picture").finally(() => (start.disabled = false));
  video.srcObject = camera;
  await video.play();
  [start.hidden, stop.hidden] = [true, false];
  times = [];
  while (camera) {
    await look(video, video.videoWidth, video.videoHeight);
    times = [...times.slice(-19), performance.now()];
    const rate = ((times.length - 1) / (times[times.length - 1] - times[0])) * 1000;
    if (times.length > 1) $("see-note").textContent = `${rate.toFixed(1)} frames per second`;
    await new Promise(requestAnimationFrame);
  }
}

/** @param {HTMLButtonElement} start @param {HTMLButtonElement} stop */
function end(start, stop) {
  camera?.getTracks().forEach((track) => track.stop());
  camera = null;
  [start.hidden, stop.hidden] = [false, true];
}

/**
 * Shows a picture to the net and draws the answer; returns the milliseconds.
 * @param {CanvasImageSource} source @param {number} width @param {number} height
 */
async function look(source, width, height) {
  const begun = performance.now();
  const { view, data } = fitted(input, model, source, width, height);
  const wanted = { threshold: Number($("see-threshold").value) };
  /** @type {any} */
  const found = await net.see(data, wanted);
  draw(source, width, height, view, found);
  $("see").dataset.frames = String(++frames);
  $("see").dataset.seen = JSON.stringify(found.objects ?? found.labels ?? found.task);
  return performance.now() - begun;
}

/**
 * @param {CanvasImageSource} source @param {number} width @param {number} height
 * @param {{x: number, y: number, width: number, height: number}} view @param {any} found
 */
function draw(source, width, height, view, found) {
  [shown.width, shown.height] = [width, height];
  const pen = /** @type {CanvasRenderingContext2D} */ (shown.getContext("2d"));
  pen.drawImage(source, 0, 0, width, height);
  const by = [width / view.width, height / view.height];
  if (found.task === "detect") boxes(pen, view, by, found.objects);
  else if (found.task !== "classify") map(pen, view, by, found);
  const lines = found.labels ?? found.objects ?? legend(found);
  $("see-list").replaceChildren(...lines.slice(0, LEGEND).map((/** @type {any} */ line) => {
    const entry = element("li", {
      textContent: `${line.label}: ${(100 * line.score).toFixed(1)}%`,
    });
    entry.style.color = line.colour ?? "";
    return entry;
  }));
}

/** @param {number} n */
const colour = (n) => `hsl(${((n * 0.618034 + 0.58) % 1) * 360} 75% 55%)`;

/**
 * @param {CanvasRenderingContext2D} pen @param {{x: number, y: number}} view @param {number[]} by
 * @param {import("./seen.js").Thing[]} objects
 */
function boxes(pen, view, by, objects) {
  const kinds = [...new Set(objects.map(({ label }) => label))];
  const size = Math.max(12, Math.min(shown.width, shown.height) / 28);
  pen.font = `${size}px system-ui, sans-serif`;
  pen.lineWidth = Math.max(2, size / 8);
  for (const { label, score, box } of [...objects].reverse()) {
    const [left, right] = [box[0], box[2]].map((x) => (x * input.width - view.x) * by[0]);
    const [top, bottom] = [box[1], box[3]].map((y) => (y * input.height - view.y) * by[1]);
    pen.strokeStyle = pen.fillStyle = colour(kinds.indexOf(label));
    pen.strokeRect(left, top, right - left, bottom - top);
    const text = `${label} ${(100 * score).toFixed(0)}%`;
    const y = Math.max(top - size * 1.3, 0);
    pen.fillRect(left, y, pen.measureText(text).width + 8, size * 1.3);
    pen.fillStyle = "#000";
    pen.fillText(text, left + 4, y + size);
  }
}

/**
 * @param {CanvasRenderingContext2D} pen @param {{x: number, y: number}} view @param {number[]} by
 * @param {any} found regions or depths
 */
function map(pen, view, by, found) {
  const { width, height, classes, values } = found;
  const small = element("canvas", { width, height });
  const to = small.getContext("2d");
  const image = to.createImageData(width, height);
  const tints = Array.from(found.names ?? [], (_, n) => rgb(colour(n)));
  let [least, most] = [Infinity, -Infinity];
  for (const value of values ?? []) {
    [least, most] = [Math.min(least, value), Math.max(most, value)];
  }
  for (let i = 0; i < width * height; i++) {
    const grey = values ? ((values[i] - least) / (most - least || 1)) * 255 : 0;
    image.data.set(values ? [grey, grey, grey, 255] : [...tints[classes[i]], 140], 4 * i);
  }
  to.putImageData(image, 0, 0);
  pen.drawImage(small, -view.x * by[0], -view.y * by[1], input.width * by[0], input.height * by[1]);
}

/** @param {string} css @returns {number[]} */
function rgb(css) {
  const pen = /** @type {CanvasRenderingContext2D} */ (element("canvas").getContext("2d"));
  pen.fillStyle = css;
  pen.fillRect(0, 0, 1, 1);
  return Array.from(pen.getImageData(0, 0, 1, 1).data.slice(0, 3));
}

/** @param {any} found */
function legend({ classes, names }) {
  if (!classes) return [];
  const counts = new Map();
  for (const n of classes) counts.set(n, (counts.get(n) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([n, count]) =>
    ({ label: names[n], score: count / classes.length, colour: colour(n) }));
}
