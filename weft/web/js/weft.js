// weft in a page: import { load } from "./weft.js". The model lives in a worker.

import { described } from "./manifest.js";
import {
  ACCESS, CHAT, EMBED, FOLDER, GENERATE, OBJECT, PAGE, PLACED, SIGNAL, addressOf, allowed, fit,
  oneOf,
} from "./options.js";
import { Threads } from "./page_thread.js";
import { WeftError } from "./program.js";
import { ranked } from "./ranked.js";
import { Store } from "./store.js";

export { WeftError, ranked };

/** @typedef {{licence: string, base: string[], files: string[]}} Terms of a model */

/**
 * Describes a folder before anything large is fetched.
 * @param {string | URL} folder its address
 * @param {import("./store.js").Access} [access] as load has it
 * @returns {Promise<{name: string, kind: "decoder" | "encoder" | "net" | "album" | "speech",
 *   bytes: number, kept: boolean, search?: string, terms?: Terms}>} `kept`: it is
 *   here already; `search`: where an encoder is, within the folder; `terms`: the model's licence,
 *   the files with it, and the models it was made from
 */
export async function describe(folder, access = {}) {
  return described(new Store(address(folder, "describe"), allowed(access, ACCESS, "describe")));
}

/**
 * @param {string | URL} folder @param {string} call that is given it
 * @returns {string} with a slash before what signs it (?…)
 */
function address(folder, call) {
  const base = globalThis.document?.baseURI ?? import.meta.url;
  return addressOf(fit(folder, FOLDER, `the folder of ${call}`), call, base);
}

/**
 * Loads a folder that `weft export web` wrote.
 *
 *     const model = await load("./", { progress: ({ loaded, total }) => show(loaded / total) });
 *     for await (const { text } of model.generate("def fibonacci(n):")) out.append(text);
 *
 * @param {string | URL} folder its address
 * @param {import("./model.js").LoadOptions} [options]
 * @returns {Promise<PageModel>} rejects with a WeftError that says what to do
 */
export async function load(folder, options = {}) {
  allowed(options, PAGE, "load");
  const base = address(folder, "load");
  const model = inWorker();
  try {
    model.about = await begun(model, "load", base, options);
  } catch (error) {
    model.close();
    throw error;
  }
  return model;
}

/**
 * Runs every kernel of a folder's Programs against reference values; fetches no weights.
 * @param {string | URL} folder its address
 * @param {import("./model.js").LoadOptions} [options] @returns {Promise<any>} the report
 */
export async function selftest(folder, options = {}) {
  allowed(options, PAGE, "selftest");
  const base = address(folder, "selftest");
  const model = inWorker();
  try {
    return await begun(model, "selftest", base, options);
  } finally {
    model.close();
  }
}

function inWorker() {
  if (!globalThis.Worker) {
    throw new WeftError("there are no workers here, as in a service worker: load the model in a "
      + "page");
  }
  try {
    // in one expression, by which bundlers recognise a worker
    return new PageModel(new Worker(new URL("./worker.js", import.meta.url), { type: "module" }));
  } catch (error) {
    throw new WeftError("the browser does not let this page start worker.js "
      + `(${/** @type {Error} */ (error).message}): it must come from the page's own server`,
    { cause: error });
  }
}

/**
 * @param {PageModel} model @param {string} call @param {string} base
 * @param {import("./model.js").LoadOptions} options
 */
async function begun(model, call, base, options) {
  const { signal, progress, note, fetch, address: where, ...rest } = options;
  const abort = () => model.end(signal?.reason);
  signal?.addEventListener("abort", abort, { once: true });
  if (signal?.aborted) abort();
  model.note = note;
  try {
    const named = typeof where === "function";
    const asks = [...named ? ["address"] : [], ...fetch ? ["fetch"] : []]; // what stays here
    if (asks.length) {
      const { Answers } = await import("./page_fetch.js");
      model.answers = new Answers(model.worker, { address: where, fetch });
    }
    const sent = named ? rest : { ...rest, address: where };
    return await model.call(call, { base, asks, options: sent }, { progress });
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** A model in a worker. */
export class PageModel {
  /** @param {Worker} worker */
  constructor(worker) {
    this.worker = worker;
    this.threads = new Threads(worker);
    /** @type {import("./page_fetch.js").Answers | null} the page's own functions */
    this.answers = null;
    this.last = 0;
    /** @type {Map<number, any>} */
    this.calls = new Map();
    /** @type {any} name, target, why, bytes: what was loaded, and where it runs */
    this.about = null;
    /** @type {((text: string) => void) | undefined} what the model says by the way, later too */
    this.note = undefined;
    worker.onmessage = ({ data }) => this.take(data);
    /** @type {Error | null} why the worker is no more */
    this.ended = null;
    /** @type {string} what the page's policy refused, which the worker's own error does not say */
    this.refused = "";
    this.policy = (/** @type {SecurityPolicyViolationEvent} */ event) => {
      this.refused = `${event.effectiveDirective} refuses ${event.blockedURI}`;
    };
    globalThis.document?.addEventListener("securitypolicyviolation", this.policy);
    // the policy's event may come after the worker's
    worker.onerror = ({ message }) => setTimeout(() => this.end(new WeftError(message
      ? `the worker failed (${message}): reload the page` : this.refused
        ? `the page's Content-Security-Policy is too strict (${this.refused}): docs/browser.md `
          + "has what it must allow"
        : "a file of the player could not be loaded: reload, or upload the folder again")));
  }

  /** @param {any} message */
  take({ id, result, error, piece, progress, note, about, thread, ask }) {
    if (thread) return this.threads.take(thread);
    if (ask) return this.answers?.take(ask);
    const call = this.calls.get(id);
    if (note) {
      this.about = about ?? this.about;
      return (call?.note ?? this.note)?.(note);
    }
    if (!call) return;
    if (piece) return call.piece?.(piece);
    if (progress) return call.progress?.(progress);
    this.calls.delete(id);
    if (!error) return call.done(result);
    const made = new (error.name === "WeftError" ? WeftError : Error)(error.message);
    if (error.name === "AbortError") made.name = "AbortError";
    call.fail(made);
  }

  /**
   * @param {string} call @param {any} args
   * @param {{signal?: AbortSignal, progress?: Function, note?: Function, piece?: Function}} [on]
   * @returns {Promise<any>}
   */
  call(call, args, on = {}) {
    if (this.ended) return Promise.reject(this.ended);
    const id = ++this.last;
    const abort = () => this.worker.postMessage({ abort: id });
    on.signal?.addEventListener("abort", abort, { once: true });
    return new Promise((done, fail) => {
      this.calls.set(id, { ...on, done, fail });
      try {
        this.worker.postMessage({ id, call, args, stopped: on.signal?.aborted });
      } catch (error) { // a function, or the like
        this.calls.delete(id);
        const { message } = /** @type {Error} */ (error);
        fail(new WeftError(`the worker cannot be sent what ${call} was given (${message}): give it `
          + "texts, numbers, lists and plain objects", { cause: error }));
      }
    }).finally(() => on.signal?.removeEventListener("abort", abort));
  }

  /**
   * The text that follows `prompt`, piece by piece; leaving the loop stops the model.
   * @param {string | number[]} prompt @param {import("./model.js").GenerateOptions} [options]
   * @returns {AsyncGenerator<import("./model.js").Piece, void>}
   */
  generate(prompt, options = {}) {
    return this.pieces("generate", { prompt }, allowed(options, GENERATE, "generate"));
  }

  /**
   * The answer to a conversation, of a model with a chat template; otherwise as `generate`.
   * @param {import("./model.js").Message[]} messages
   * @param {import("./model.js").GenerateOptions & {variables?: Record<string, any>,
   *   slide?: boolean}} [options] with `slide` the oldest turns leave where the context is full
   * @returns {AsyncGenerator<import("./model.js").Piece, void>}
   */
  chat(messages, options = {}) {
    return this.pieces("chat", { messages }, allowed(options, CHAT, "chat"));
  }

  /**
   * The training of a folder that was exported with --train: "scratch" or "lora".
   * @param {string} kind @param {import("./model.js").LoadOptions} [options]
   * @returns {Promise<import("./page_trainer.js").PageTrainer>}
   */
  async trainer(kind, options = {}) {
    const { signal, progress, note, ...rest } = allowed(options, PLACED, "trainer");
    const handlers = { signal, progress, note };
    fit(kind, oneOf(this.about.kinds), "the kind of trainer");
    const { PageTrainer } = await import("./page_trainer.js");
    return new PageTrainer(this, await this.call("openTrainer", { kind, options: rest }, handlers));
  }

  /**
   * Yields the results of a call to the worker, piece by piece; leaving the loop stops it.
   * @param {string} name @param {any} args @param {any} given options, with a signal
   * @returns {AsyncGenerator<any, void>}
   */
  async *pieces(name, args, given) {
    const { signal, ...options } = fit(given, OBJECT, `the options of ${name}`);
    if (signal !== undefined) fit(signal, SIGNAL, "signal");
    const stop = new AbortController();
    const abort = () => stop.abort();
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
    /** @type {any[]} */
    const queue = [];
    let wake = () => {};
    const push = (/** @type {any} */ entry) => (queue.push(entry), wake());
    this.call(name, { ...args, options }, {
      signal: stop.signal, piece: (/** @type {any} */ piece) => push({ piece }),
    }).then(() => push({ end: true }), (error) => push({ error }));
    try {
      for (;;) {
        while (!queue.length) await new Promise((done) => (wake = () => done(undefined)));
        const { piece, end, error } = queue.shift();
        if (error) throw error;
        if (end) return;
        yield piece;
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      abort();
    }
  }

  /**
   * A vector for each text, of a model that is an encoder; `ranked` compares them.
   * @param {string[]} texts
   * @param {{signal?: AbortSignal, progress?: (done: number) => void}} [options] how many are done
   * @returns {Promise<Float32Array[]>}
   */
  async embed(texts, options = {}) {
    const { signal, progress } = allowed(options, EMBED, "embed");
    /** @type {Float32Array[]} */
    const rows = [];
    const piece = (/** @type {Float32Array} */ row) => {
      rows.push(row);
      progress?.(rows.length);
    };
    await this.call("embed", { texts }, { signal, piece });
    return rows;
  }

  /**
   * The vector of a picture, of a model that has them for texts too: pixels of the size that
   * `about.model.size` names.
   * @param {Uint8ClampedArray} rgba @returns {Promise<Float32Array>}
   */
  embedImage(rgba) {
    return this.call("embedImage", { rgba });
  }

  /**
   * A net's answer about a picture: pixels of the size that `about.model.size` names.
   * @param {Uint8ClampedArray} rgba @param {import("./seen.js").Wanted} [wanted]
   * @returns {Promise<import("./seen.js").Answer>}
   */
  see(rgba, wanted) {
    return this.call("see", { rgba, wanted });
  }

  /**
   * What is said in a sound of one channel at 16 kHz, piece by piece, of a model of speech; leaving
   * the loop stops it.
   * @param {Float32Array} samples @param {import("./speech.js").HearOptions} [options]
   * @returns {AsyncGenerator<import("./speech.js").Hearing, void>}
   */
  transcribe(samples, options = {}) {
    return this.pieces("transcribe", { samples }, options);
  }

  /** @param {string} text @returns {Promise<number[]>} token ids */
  encode(text) {
    return this.call("encode", { text });
  }

  /** @param {number[]} ids @returns {Promise<string>} their text */
  decode(ids) {
    return this.call("decode", { ids });
  }

  /** Ends the worker and frees what it held. */
  close() {
    this.end(new WeftError("the model was closed"));
  }

  /** @param {Error} error what calls get, those under way and later ones */
  end(error) {
    this.worker.terminate();
    this.threads.close();
    globalThis.document?.removeEventListener("securitypolicyviolation", this.policy);
    this.ended ??= error;
    for (const call of this.calls.values()) call.fail(this.ended);
    this.calls.clear();
  }
}
