// The page's search of photographs: the visitor's own, which stay on this device.

import { $, element, sentence } from "./fetching.js";
import { fitted } from "./fitted.js";
import { ranked } from "./weft.js";

const SHOWN = 24;
const THUMB = 240; // pixels of a side

/** @typedef {{name: string, vector: Float32Array, thumb: HTMLCanvasElement}} Photo */

/** @type {import("./weft.js").PageModel} */
let album;
/** @type {Map<string, Photo>} by name, size and date of their files */
const photos = new Map();
let unread = 0;

/** Makes the tab. @param {import("./weft.js").PageModel} loaded */
export function bind(loaded) {
  $("about").textContent = "Finds your own pictures by what they show. They stay on this device.";
  album = loaded;
  const files = element("input", {
    id: "photos-files", type: "file", accept: "image/*", multiple: true,
  });
  const folder = element("input", { id: "photos-folder", type: "file", webkitdirectory: true });
  const query = element("input", {
    id: "photos-query", type: "search", autocomplete: "off", enterKeyHint: "search",
    placeholder: "a red car",
  });
  const form = element("form", { id: "photos-form" },
    element("label", { htmlFor: "photos-query", textContent: "What do you look for?" }),
    element("div", { className: "row" }, query,
      element("button", { type: "submit", textContent: "Search" })));
  $("search").replaceChildren(
    element("label", { htmlFor: "photos-files", textContent: "Pictures" }), files,
    element("label", { htmlFor: "photos-folder", textContent: "or a folder of them" }), folder,
    form, element("p", { id: "photos-note", role: "status" }),
    element("ol", { id: "photos-found", ariaLabel: "Pictures found" }),
  );
  const take = (/** @type {HTMLInputElement} */ input) => () =>
    read([...(input.files ?? [])]).catch(failed);
  files.addEventListener("change", take(files));
  folder.addEventListener("change", take(folder));
  form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    search(query.value.trim()).catch(failed);
  });
  $("tab-search").hidden = false;
}

/** @param {string} text */
const say = (text) => ($("photos-note").textContent = text);
/** @param {unknown} error */
const failed = (error) => say(sentence(error));

/** @param {File[]} files */
async function read(files) {
  const canvas = element("canvas");
  const begun = performance.now();
  const chosen = files.filter(({ type }) => type.startsWith("image/"));
  unread = 0;
  for (const [n, file] of chosen.entries()) {
    const key = `${file.webkitRelativePath || file.name} ${file.size} ${file.lastModified}`;
    if (!photos.has(key)) await add(key, file, canvas);
    const each = (performance.now() - begun) / (n + 1);
    say(`Read ${n + 1} of ${chosen.length} pictures, ${each.toFixed(0)} ms each.`);
  }
  const odd = unread ? ` The browser cannot read ${unread} of them.` : "";
  say(`${photos.size} pictures are here.${odd}`);
  show([...photos.values()].map((photo) => ({ photo })));
  $("search").dataset.photos = String(photos.size);
}

/** @param {string} key @param {File} file @param {HTMLCanvasElement} canvas */
async function add(key, file, canvas) {
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    unread++;
    return;
  }
  const { width, height } = image;
  const { data } = fitted(canvas, album.about.model, image, width, height);
  const vector = await album.embedImage(data);
  const by = Math.min(THUMB / width, THUMB / height, 1);
  const thumb = element("canvas", {
    width: Math.max(width * by, 1), height: Math.max(height * by, 1),
  });
  thumb.getContext("2d").drawImage(image, 0, 0, thumb.width, thumb.height);
  thumb.setAttribute("role", "img");
  thumb.setAttribute("aria-label", file.name);
  image.close();
  photos.set(key, { name: file.name, vector, thumb });
}

/** @param {string} asked */
async function search(asked) {
  if (!asked || !photos.size) return say("Choose pictures, and say what you look for.");
  const [query] = await album.embed([asked]);
  const all = [...photos.values()];
  const order = ranked(query, all.map(({ vector }) => vector));
  say(`${all.length} pictures, the closest first.`);
  show(order.map(({ index, score }) => ({ photo: all[index], score })));
  $("search").dataset.found = JSON.stringify(order.map(({ index, score }) =>
    [all[index].name, score]));
}

/** @param {{photo: Photo, score?: number}[]} found */
function show(found) {
  $("photos-found").replaceChildren(...found.slice(0, SHOWN).map(({ photo, score }) => {
    const said = score === undefined ? photo.name : `${photo.name} ${score.toFixed(3)}`;
    return element("li", {}, photo.thumb, element("span", { textContent: said }));
  }));
}
