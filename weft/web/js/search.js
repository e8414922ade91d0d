// The page's search: pasted notes, ranked by their similarity to the question.

import {
  $, FETCH_UNASKED, counter, mb, own, power, recall, remember, sentence, target,
} from "./fetching.js";
import { describe, load, ranked } from "./weft.js";

const SHOWN = 20;
const KEPT = own("notes");

/** @type {import("./weft.js").PageModel | null} */
let encoder = null;
/** @type {Map<string, Float32Array>} vectors of the notes */
const vectors = new Map();
/** @type {AbortController | null} */
let running = null;

/**
 * Makes the tab work. An encoder within the folder is fetched when the tab is first opened.
 * @param {import("./weft.js").PageModel} model
 * @param {string} [folder] where that is; without it `model` is the encoder
 */
export function bind(model, folder) {
  $("tab-search").hidden = false;
  $("notes").value ||= recall(KEPT) ?? $("notes").placeholder;
  $("search-form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    search().catch((error) => say(sentence(error)));
  });
  if (!folder) return ready(model);
  $("search-load").addEventListener("click", () => fetched(folder));
  $("search").addEventListener("open", () => offer(folder), { once: true });
}

/**
 * Shows the encoder's size, and fetches it at once if it is small or already stored.
 * @param {string} folder
 */
async function offer(folder) {
  try {
    const { name, bytes, kept } = await describe(folder);
    const from = kept ? ", kept from your last visit" : " to fetch, once";
    $("search-size").textContent = `Search uses a second model, ${name}: ${mb(bytes)} MB${from}.`;
    if (kept || bytes <= FETCH_UNASKED) await fetched(folder);
    else $("search-load").hidden = false;
  } catch (error) {
    say(sentence(error));
    $("search-load").hidden = false;
  }
}

/** @param {string} folder */
async function fetched(folder) {
  $("search-load").hidden = true;
  $("search-progress").hidden = false;
  say("");
  const progress = counter($("search-bar"), $("search-progress-text"));
  try {
    ready(await load(folder, {
      target: target(), powerPreference: power(), progress, note: say,
    }));
    $("search-size").hidden = true;
  } catch (error) {
    say(sentence(error));
    $("search-load").textContent = "Try again";
    $("search-load").hidden = false;
  } finally {
    $("search-progress").hidden = true;
  }
}

/** @param {import("./weft.js").PageModel} model */
function ready(model) {
  encoder = model;
  $("search-run").disabled = false;
  $("search").dataset.state = "ready";
}

async function search() {
  const asked = $("query").value.trim();
  const notes = split($("notes").value);
  if (!encoder || !asked || !notes.length) return say("Paste notes and say what you look for.");
  running?.abort();
  const stop = (running = new AbortController());
  remember(KEPT, $("notes").value);
  try {
    const fresh = notes.filter((note) => !vectors.has(note));
    const progress = (/** @type {number} */ done) => say(`Read ${done} of ${fresh.length} notes …`);
    const made = await encoder.embed(fresh, { signal: stop.signal, progress });
    fresh.forEach((note, n) => vectors.set(note, made[n]));
    const [query] = await encoder.embed([asked], { signal: stop.signal });
    const rows = notes.map((note) => /** @type {Float32Array} */ (vectors.get(note)));
    show(notes, ranked(query, rows));
  } catch (error) {
    if (!stop.signal.aborted) throw error;
  }
}

/** @param {string[]} notes @param {{index: number, score: number}[]} order */
function show(notes, order) {
  say(`${notes.length} notes, the closest first.`);
  $("results").replaceChildren(...order.slice(0, SHOWN).map(({ index, score }) => {
    const entry = document.createElement("li");
    const value = Object.assign(document.createElement("span"), { textContent: score.toFixed(3) });
    value.className = "score";
    value.setAttribute("aria-label", `likeness ${score.toFixed(2)}`);
    entry.append(value, " ", notes[index]);
    return entry;
  }));
  $("search").dataset.found = String(order.length);
}

/** Paragraphs where blank lines part them, else lines; each once. @param {string} text */
function split(text) {
  const parts = text.trim().split(/\n[ \t]*\n/.test(text.trim()) ? /\n(?:[ \t]*\n)+/ : /\n/);
  return [...new Set(parts.map((part) => part.trim()).filter(Boolean))];
}

/** @param {string} text */
function say(text) {
  $("search-note").textContent = text;
}
