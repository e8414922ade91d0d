// The worker: it holds the model, so that the page never waits. See weft.js for the other side.

import { readManifest } from "./manifest.js";
import { Model } from "./model.js";
import { Thread, hear } from "./page_thread.js";
import { Store } from "./store.js";

/** @typedef {import("./trainer.js").Trainer} Trainer */

/** @type {Model | null} */
let model = null;
/** @type {Trainer | null} */
let trainer = null;
/** @type {Map<number, AbortController>} */
const running = new Map();

const post = (/** @type {any} */ message) => self.postMessage(message);
/** Notes of a call; later ones too, as when a device is lost. @param {number} id */
const noting = (id) => (/** @type {string} */ note) =>
  post({ id, note, about: model?.device && model.about });

/** @type {Record<string, (id: number, args: any, signal: AbortSignal) => Promise<any>>} */
const CALLS = {
  async load(id, { base, asks, options }, signal) {
    const note = noting(id);
    const progress = (/** @type {any} */ p) => post({ id, progress: p });
    const all = { ...options, note, progress, Worker: Thread };
    const store = new Store(base, { ...await access(asks, options), signal, note });
    model = await Model.load(store, all);
    return model.about;
  },
  async selftest(id, { base, asks, options }, signal) {
    const store = new Store(base, { ...await access(asks, options), signal });
    const progress = (/** @type {any} */ p) => post({ id, progress: p });
    const manifest = readManifest(await store.json("manifest.json"));
    return new Model(store, manifest, { ...options, progress, Worker: Thread }).selftest();
  },
  async generate(id, { prompt, options }, signal) {
    const pieces = /** @type {Model} */ (model).generate(prompt, { ...options, signal });
    for await (const piece of pieces) post({ id, piece });
  },
  async chat(id, { messages, options }, signal) {
    const pieces = /** @type {Model} */ (model).chat(messages, { ...options, signal });
    for await (const piece of pieces) post({ id, piece });
  },
  // the trainer is fetched when a training begins
  async openTrainer(id, { kind, options }, signal) {
    const { Trainer } = await import("./trainer.js");
    const note = noting(id);
    const progress = (/** @type {any} */ p) => post({ id, progress: p });
    trainer?.close();
    trainer = null;
    const { store } = /** @type {Model} */ (model);
    const inside = store.inside(kind, { signal, note });
    const all = { ...options, note, progress, Worker: Thread };
    trainer = await Trainer.beside(/** @type {Model} */ (model), inside, all);
    return { ...trainer.about, train: trainer.manifest.train };
  },
  async train(id, { text, options }, signal) {
    const steps = /** @type {Trainer} */ (trainer).train(text, { ...options, signal });
    for await (const piece of steps) post({ id, piece });
  },
  async write(id, { prompt, options }, signal) {
    const pieces = /** @type {Trainer} */ (trainer).generate(prompt, { ...options, signal });
    for await (const piece of pieces) post({ id, piece });
  },
  async trained() {
    return /** @type {Trainer} */ (trainer).files();
  },
  async embed(id, { texts }, signal) {
    const onVector = (/** @type {Float32Array} */ piece) => post({ id, piece });
    await /** @type {Model} */ (model).embed(texts, { signal, onVector });
  },
  async embedImage(_, { rgba }) {
    return /** @type {Model} */ (model).embedImage(rgba);
  },
  async transcribe(id, { samples, options }, signal) {
    const pieces = /** @type {Model} */ (model).transcribe(samples, { ...options, signal });
    for await (const piece of pieces) post({ id, piece });
  },
  async see(_, { rgba, wanted }) {
    return /** @type {Model} */ (model).see(rgba, wanted);
  },
  async encode(_, { text }) {
    return /** @type {Model} */ (model).encode(text);
  },
  async decode(_, { ids }) {
    return /** @type {Model} */ (model).decode(ids);
  },
  async lose() {
    /** @type {any} */ (model).device.raw?.destroy();
  },
};

/** @type {((told: any) => void) | null} what hears the page's own functions answer */
let hearFetch = null;

/**
 * How files are asked for.
 * @param {string[]} asks names of functions that the page has
 * @param {import("./store.js").Access} options @returns {Promise<import("./store.js").Access>}
 */
async function access(asks, { headers, address }) {
  if (!asks.length) return { headers, address };
  const page = await import("./page_fetch.js");
  hearFetch = page.hear;
  return { headers, address, ...page.access(asks) };
}

self.onmessage = async ({ data: { id, call, args, abort, stopped, thread, told } }) => {
  if (thread) return hear(thread);
  if (told) return hearFetch?.(told);
  if (abort) return running.get(abort)?.abort();
  const stop = new AbortController();
  if (stopped) stop.abort();
  running.set(id, stop);
  try {
    post({ id, result: await CALLS[call](id, args, stop.signal) });
  } catch (error) {
    const { name, message } = /** @type {Error} */ (error);
    post({ id, error: { name, message } });
  } finally {
    running.delete(id);
  }
};
