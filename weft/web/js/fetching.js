// Shared by the page's scripts: elements, and the progress of a model's files.

export const $ = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
export const mb = (/** @type {number} */ bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0);
export const FETCH_UNASKED = 16 * 2 ** 20; // bytes: more is fetched when a person says so

/**
 * A new element with properties and children.
 * @param {string} name @param {Record<string, any>} [about] @param {(string | Node)[]} children
 * @returns {any}
 */
export function element(name, about = {}, ...children) {
  const made = Object.assign(document.createElement(name), about);
  made.append(...children);
  return made;
}

/**
 * Controls that can be used in place of others; the first has the focus that one of those had.
 * @param {any[]} off @param {any[]} on
 */
export function swap(off, on) {
  const held = off.includes(document.activeElement);
  for (const each of on) each.disabled = false;
  if (held) on[0].focus();
  for (const each of off) each.disabled = true;
}

/**
 * Calls `stop` where Escape is pressed while a panel is shown: a button that had the focus may have
 * gone. @param {any} panel @param {() => void} stop
 */
export function onEscape(panel, stop) {
  document.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && !event.isComposing && !panel.hidden) stop();
  });
}

/** Folders of models in the page's own; none where that holds the only one. */
export const models = (document.body.dataset.models ?? "").split(" ").filter(Boolean);
const asked = new URLSearchParams(location.search).get("model") ?? "";
/** The one of them that the page's address asks for, or the first. */
export const chosen = models.includes(asked) ? asked : models[0] ?? "";
/** The folder of the page's model. */
export const home = chosen ? `./${chosen}/` : "./";

/** This model's own key, since an origin may have several. @param {string} name */
export const own = (name) => `weft-${name} ${new URL(home, location.href).pathname}`;

/** @param {string} key @returns {string | null} what the browser has kept */
export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // storage is denied: nothing was kept
  }
}

/** Keeps a text for the next visit. @param {string} key @param {string | null} text null: drops */
export function remember(key, text) {
  try {
    if (text === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
  } catch {
    // storage is denied or full: the text stays in the page
  }
}

/** @param {string} text @param {HTMLElement} note where it is said */
export function copy(text, note) {
  const tell = (/** @type {string} */ said) => () => (note.textContent = said);
  return Promise.resolve().then(() => navigator.clipboard.writeText(text)).then(
    tell("Copied."), tell("The browser does not let this page copy."));
}

/** @param {unknown} error @returns {string} a sentence */
export function sentence(error) {
  const { name, message } = /** @type {Error} */ (error);
  if (name === "AbortError") return "Stopped.";
  return name === "WeftError" ? `${message}.` : `Something broke: ${message}`;
}

/** The target that the page's address asks for. */
export function target() {
  const asked = new URLSearchParams(location.search).get("target");
  return asked === "wasm" || asked === "webgpu" ? asked : "auto";
}

/** The GPU that the page's address asks for: "high-performance", "low-power" or none. */
export function power() {
  const asked = new URLSearchParams(location.search).get("power");
  return asked === "high-performance" || asked === "low-power" ? asked : undefined;
}

/** @param {number | undefined} seconds */
const soon = (seconds) => (seconds === undefined ? ""
  : seconds < 100 ? `, about ${Math.ceil(seconds)} s left`
    : `, about ${Math.ceil(seconds / 60)} min left`);

/**
 * Makes the function that `load` calls with its progress.
 * @param {HTMLProgressElement} bar @param {HTMLElement} text
 */
export function counter(bar, text) {
  /** @param {{loaded: number, total: number, left?: number}} progress */
  return ({ loaded, total, left }) => {
    bar.value = loaded / total;
    text.textContent = loaded < total
      ? `${mb(loaded)} of ${mb(total)} MB${soon(left)}` : "Getting ready …";
  };
}
