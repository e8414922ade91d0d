// The page: it shows what the worker does, and never computes anything itself.

import {
  $, FETCH_UNASKED, chosen, copy, counter, element, home, mb, models, onEscape, own, power, recall,
  remember, sentence, swap, target,
} from "./fetching.js";
import { bindTabs } from "./tabs.js";
import { describe, load } from "./weft.js";

const PATIENCE = 3000; // ms that a newer version of this page has to answer, and to take over
const PROMPT = own("prompt"); // the draft
/** @type {Record<string, () => Promise<{bind: (model: any) => void}>>} kinds that write no text */
const OTHERS = {
  encoder: () => import("./search.js"), net: () => import("./see.js"),
  album: () => import("./photos.js"), speech: () => import("./listen.js"),
};

const query = new URLSearchParams(location.search);

/** @type {import("./weft.js").PageModel | null} */
let model = null;
/** @type {{kind?: string, search?: string, terms?: import("./weft.js").Terms}} */
let folder = {};
let large = false; // what is fetched when a person says so may be stopped
/** @type {AbortController | null} */
let fetching = null;
/** @type {AbortController | null} */
let running = null;

/** The button's action: retries what failed. */
let again = query.has("selftest") ? test : begin;

/** @param {unknown} error */
function fail(error) {
  $("error").textContent = sentence(error);
  $("error").hidden = false;
  $("progress").hidden = true;
  $("load").textContent = "Try again";
  $("load").hidden = false;
  document.body.dataset.state = "failed";
  // the folder may have been replaced since: then the newer page is there for the next try
  registered().then((worker) => worker?.update()).catch(() => {});
}

/** The page's service worker; rejects in a sandbox. */
async function registered() {
  return navigator.serviceWorker?.getRegistration();
}

async function begin() {
  $("load").hidden = $("error").hidden = true;
  const { name, bytes, kept, ...rest } = await describe(home);
  folder = rest;
  document.title = `${name} · weft`;
  $("terms").replaceChildren(`Model: ${name}`, ...terms());
  $("size").textContent = kept
    ? `${name}: ${mb(bytes)} MB, kept from your last visit.`
    : `${name}: ${mb(bytes)} MB to fetch, once; then this page works offline.`;
  again = start;
  large = !kept && bytes > FETCH_UNASKED;
  if (!large) return start();
  $("load").textContent = `Fetch ${mb(bytes)} MB`;
  $("load").hidden = false;
}

async function test() {
  $("load").hidden = $("error").hidden = true;
  $("progress").hidden = false;
  const { testPage } = await import("./testpage.js");
  await testPage($("tests"), target(), (loaded, total) => {
    $("bar").value = loaded / total;
    $("progress-text").textContent = `${loaded} of ${total} kernels`;
  });
  $("loading").hidden = true;
}

async function start() {
  $("load").hidden = $("error").hidden = true;
  $("progress").hidden = false;
  const stop = new AbortController();
  if (large) {
    fetching = stop;
    again = async () => stop.abort();
    $("load").textContent = "Stop";
    $("load").hidden = false;
  }
  model = await load(home, {
    target: target(), powerPreference: power(),
    signal: stop.signal,
    note: (text) => {
      $("note").textContent = text;
      if (model) facts(model.about);
    },
    progress: counter($("bar"), $("progress-text")),
  }).finally(() => {
    again = start;
    fetching = null;
  });
  $("loading").hidden = true;
  $("tabs").hidden = false;
  facts(model.about);
  if (model.about.kinds?.length) {
    const how = { target: target(), powerPreference: power() };
    (await import("./train.js")).bindTraining(model, how);
  }
  const other = OTHERS[folder.kind ?? ""];
  $("tab-write").hidden = $("try").hidden = Boolean(other);
  if (other) (await other()).bind(model);
  if (model.about.chat === true) (await import("./chat.js")).bindChat(model, options);
  else if (model.about.chat) $("note").textContent = `${model.about.chat}: it completes texts.`;
  if (model.about.model.picture) (await import("./ask.js")).bindAsk(model, options);
  if (folder.search) (await import("./search.js")).bind(model, folder.search);
  bindTabs($("tabs"));
  $("prompt").value ||= query.get("prompt") ?? recall(PROMPT) ?? "def fibonacci(n):";
  document.body.dataset.state = "ready";
}

/** @param {SubmitEvent} event */
async function write(event) {
  event.preventDefault();
  if (running || !model) return;
  running = new AbortController();
  swap([$("run")], [$("stop")]);
  $("note").textContent = "";
  $("output").ariaBusy = "true"; // read out when it is done, not word by word
  const prompt = $("prompt").value;
  const given = document.createElement("span");
  Object.assign(given, { className: "given", textContent: prompt });
  const fresh = document.createElement("span");
  $("output").replaceChildren(given, fresh);
  const begun = performance.now();
  let first = 0;
  let count = 0;
  try {
    const how = options(running.signal);
    const pieces = model.generate(prompt, how);
    for await (const { text, ids, finish } of pieces) {
      fresh.append(text);
      count += ids.length;
      first ||= performance.now();
      if (count > 1) {
        const drawn = how.temperature ? `, seed ${how.seed}` : "";
        $("speed").textContent = speed(count - 1, begun, first) + drawn;
      }
      if (finish === "aborted") $("note").textContent = "Stopped.";
      if (finish === "length") {
        $("note").textContent = "Stopped at the number of tokens that Options allow.";
      }
    }
  } catch (error) {
    $("note").textContent = sentence(error);
  } finally {
    running = null;
    swap([$("stop")], [$("run")]);
    $("output").ariaBusy = "false";
    document.body.dataset.written = String(count);
  }
}

/** What the form's options ask for. @param {AbortSignal} signal */
function options(signal) {
  const number = (/** @type {string} */ id) => $(id).valueAsNumber;
  return {
    maxNewTokens: number("tokens"), temperature: number("temperature"), topP: number("top-p"),
    topK: number("top-k"), signal,
    seed: Number.isNaN(number("seed")) ? crypto.getRandomValues(new Uint32Array(1))[0]
      : number("seed"),
  };
}

/** @param {number} count @param {number} begun @param {number} first when the first came */
function speed(count, begun, first) {
  const rate = count / ((performance.now() - first) / 1000);
  return `${rate.toFixed(1)} tokens/s, first after ${((first - begun) / 1000).toFixed(2)} s`;
}

/** The model's licence, and what it was made from. @returns {(string | Node)[]} */
function terms() {
  const { licence = "", base = [], files = [] } = folder.terms ?? {};
  const links = files.flatMap((name) => [" ", element("a", { href: home + name }, name)]);
  return [
    ...licence || files.length ? [`. Licence: ${licence}`, ...links] : [],
    ...base.length ? [`. Made from: ${base.join(", ")}`] : [],
  ];
}

/** Reloads the page with another GPU or model. The weights are kept. @param {Event} event */
function choose(event) {
  const { id, value } = /** @type {any} */ (event.target);
  const query = new URLSearchParams(location.search);
  if (value) query.set(id, value);
  else query.delete(id);
  location.search = query.toString();
}

/** Lets the visitor choose among the page's models. */
function offer() {
  const select = element("select", { id: "model", onchange: choose },
    ...models.map((name) => element("option", { value: name, selected: name === chosen }, name)));
  $("terms").before(element("p", {}, element("label", {}, "Model ", select)));
}

/** @param {any} about */
function facts(about) {
  $("power-label").hidden = about.target !== "webgpu";
  $("power").value = power() ?? "";
  const rows = {
    Model: `${about.name} (${about.model.family})`,
    "Runs on": about.target === "webgpu" ? "WebGPU" : "WebAssembly",
    Why: about.why,
    ...about.device,
    Memory: `${mb(about.bytes)} MB`,
    Fetched: `${mb(about.fetched)} MB`,
    Browser: navigator.userAgent,
  };
  $("facts").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name }),
    Object.assign(document.createElement("dd"), { textContent: String(value) }),
  ]));
  $("copy").onclick = () => copy(JSON.stringify(rows, null, 2), $("copied"));
}

$("silent").remove();
$("form").addEventListener("submit", write);
// what is wrong in there would not be seen
$("form").addEventListener("invalid", () => ($("options").open = true), true);
$("prompt").addEventListener("input", () => remember(PROMPT, $("prompt").value || null));
$("prompt").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
onEscape($("loading"), () => fetching?.abort());
onEscape($("write"), () => running?.abort());
$("power").addEventListener("change", choose);
if (models.length) offer();
$("load").addEventListener("click", () => tried().catch(fail));

/** The button's action in the newest version. */
async function tried() {
  const failed = document.body.dataset.state === "failed";
  delete document.body.dataset.state;
  if (!failed || !await renewed(true)) await again();
}

/**
 * Reloads the page if a newer version of it waits and takes over now.
 * @param {boolean} pressed whether a person asks, after a failure: other tabs are replaced as well
 */
async function renewed(pressed) {
  try {
    const { serviceWorker } = navigator;
    const held = await registered();
    const newer = held?.waiting;
    const tried = history.state;
    history.replaceState(null, "");
    if (!newer || tried) return false;
    newer.postMessage(pressed);
    const goes = await new Promise((done) => {
      serviceWorker.onmessage = ({ data }) => done(data);
      setTimeout(done, PATIENCE, false);
    });
    if (!goes) return false;
    history.replaceState("tried", "");
    newer.onstatechange = () => newer.state === "activated" && location.reload();
    setTimeout(() => { // the old one may hold on until its page has gone
      serviceWorker.onmessage = () => location.reload();
      held.active?.postMessage("leaving");
    }, PATIENCE);
    return true;
  } catch {
    return false; // denied to a page in a sandbox
  }
}

/** The worker keeps what the page has fetched: it starts when the page is done with that. */
function keep() {
  try {
    navigator.serviceWorker?.register("sw.js").catch(() => {});
  } catch {
    // denied to a page in a sandbox: it runs all the same, online
  }
}
if (!await renewed(false)) again().catch(fail).finally(keep);
