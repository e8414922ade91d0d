// A folder's model on one device. Weights load while it compiles; a lost device is replaced.

import { Devices } from "./devices.js";
import { Folder } from "./folder.js";
import { readManifest } from "./manifest.js";
import { EMBED, FUNCTION, LOAD, TEXT, TEXTS, allowed, fit, idsOf } from "./options.js";
import { WeftError, soundly } from "./program.js";
import { Sessions } from "./session.js";
import { Tokenizer } from "./tokenizer.js";

/**
 * What models of a kind do; a page fetches only its own. Each has `make`, and functions by the
 * names of Model's methods; `check` reads the manifest's entry.
 * @type {Record<string, () => Promise<Record<string, any>>>}
 */
const KINDS = {
  decoder: () => import("./writing.js"), encoder: () => import("./encoder.js"),
  net: () => import("./net.js"), album: () => import("./album.js"),
  speech: () => import("./speech.js"),
};
const VECTORS = { ...EMBED, onVector: FUNCTION };
const RECOVERIES = 3; // of a device that is lost again and again, within one text

/**
 * @typedef {{target?: "auto" | "webgpu" | "wasm", threads?: number, signal?: AbortSignal,
 *   powerPreference?: GPUPowerPreference,
 *   progress?: (p: {loaded: number, total: number, phase: string, left?: number}) => void,
 *   note?: (text: string) => void, gpu?: GPU, Worker?: any} & import("./store.js").Access}
 *   LoadOptions
 * @typedef {{maxNewTokens?: number, temperature?: number, topK?: number, topP?: number,
 *   repetitionPenalty?: number, seed?: number | bigint, stop?: string | string[],
 *   signal?: AbortSignal,
 *   images?: Uint8ClampedArray[], schema?: any, responseFormat?: any
 * }} GenerateOptions
 * @typedef {GenerateOptions & {variables?: Record<string, any>, slide?: boolean, tools?: any[],
 *   toolChoice?: any}} ChatOptions
 * @typedef {{type: "text", text: string} | {type: "image", image: Uint8ClampedArray}} Part
 * @typedef {{role: string, content: string | Part[]} & Record<string, any>} Message
 * @typedef {{id: string, type: "function", function: {name: string, arguments: string}}} ToolCall
 * @typedef {{text: string, ids: number[], left?: number, reasoning?: string,
 *   finish: null | "eos" | "stop" | "length" | "aborted" | "tool_calls",
 *   toolCalls?: ToolCall[]}} Piece
 */

export class Model {
  /**
   * @param {{json: (name: string) => Promise<any>, fetched: number,
   *   file: (file: any, counted?: (done: number) => void, room?: ArrayBuffer) =>
   *     Promise<Uint8Array>}} store
   * @param {LoadOptions} [options] @returns {Promise<Model>}
   */
  static async load(store, options = {}) {
    allowed(options, LOAD, "load");
    const manifest = readManifest(await store.json("manifest.json"));
    const model = new this(store, manifest, options);
    await model.start();
    return model;
  }

  /** @param {any} store @param {any} manifest @param {LoadOptions} options */
  constructor(store, manifest, options) {
    this.store = store;
    this.manifest = manifest;
    this.options = options;
    this.folder = new Folder(store, manifest);
    this.devices = new Devices(this.folder, options);
    this.closed = false;
    /** @type {any} */
    this.device = null;
    /** @type {Sessions | null} */
    this.sessions = null;
    /** @type {Tokenizer | null} */
    this.tokenizer = null;
    /** @type {any} the chat template, once it was asked for */
    this.template = null;
    /** @type {Record<string, any>} the module of its kind */
    this.kind = {};
    /** @type {any} what feeds the Programs; another one after a loss */
    this.part = null;
    /** @type {Promise<any>} when the device is free again */
    this.turn = Promise.resolve();
  }

  /** Chooses a device, compiles and loads the weights; starts over if the device fails. */
  async start() {
    const { shards, files, kind, model, text } = this.manifest;
    this.kind = await (KINDS[kind] ?? KINDS.decoder)();
    soundly("manifest.json", () => this.kind.check?.(model, text));
    const code = Object.entries(files).map(([name, about]) => [name, ...about]);
    await this.store.prune?.([...shards, ...code]);
    await this.unlost(async () => {});
  }

  async begin() {
    this.device?.close();
    this.device = null;
    const { device, programs } = await this.devices.choose(this.manifest.memory?.wasm);
    this.device = device;
    const sessions = new Sessions(this.device, programs);
    const first = this.manifest.model.widths?.slice(0, 1).map(String); // encoder.js compiles others
    const poured = this.folder.pour(sessions, this.options.progress);
    await Promise.all([sessions.prepare(first), poured, this.readTokenizer()]);
    await this.device.settled?.();
    this.sessions = sessions;
    this.part = this.kind.make(sessions, this.manifest.model);
  }

  /** What was loaded, and where it runs. */
  get about() {
    const { name, kind, model, train: kinds, chat } = this.manifest;
    const { kind: target, bytes } = this.device ?? {}; // none once it is closed
    return { name, kind, kinds, chat, model, target, why: this.devices.why, bytes,
      fetched: this.store.fetched, device: this.device?.about?.() ?? {} };
  }

  /** Runs every kernel against reference values; needs no weights. */
  async selftest() {
    const { selftest } = await import("./selftest.js");
    return selftest(this);
  }

  /** Frees the device's memory; the model cannot be used afterwards. */
  close() {
    this.closed = true;
    this.device?.close();
    this.device = this.sessions = null;
  }

  async readTokenizer() {
    if (this.manifest.kind === "net") return;
    this.tokenizer ??= await this.folder.parsed("tokenizer.json", (data) =>
      new Tokenizer(data, this.manifest.text));
  }

  /** @param {string} text @param {boolean} [special] @returns {number[]} */
  encode(text, special) {
    if (!this.tokenizer) return this.able("encode");
    return this.tokenizer.encode(fit(text, TEXT, "the text of encode"), special);
  }

  /** @param {number[]} ids @returns {string} */
  decode(ids) {
    if (!this.tokenizer) return this.able("decode");
    return this.tokenizer.decode(idsOf(ids, this.manifest.model.vocab, "the list of decode"));
  }

  /** The template of conversations, and the form of calls. @returns {Promise<any>} */
  async chatData() {
    this.template ??= await this.folder.parsed("chat.json", (data) => data);
    return this.template;
  }

  /** What the module of the model's kind has by the name of a method. @param {string} name */
  able(name) {
    const found = this.kind[name];
    if (found) return found;
    const { kind, name: model } = this.manifest;
    const article = /^[aeiou]/.test(kind) ? "an" : "a";
    throw new WeftError(`${model} is ${article} ${kind}: it has no ${name}`);
  }

  /**
   * @param {string | number[]} prompt @param {GenerateOptions} [options]
   * @returns {AsyncGenerator<Piece, void>}
   */
  async *generate(prompt, options = {}) {
    yield* this.able("generate")(this, prompt, options);
  }

  /**
   * @param {Message[]} messages @param {ChatOptions} [options]
   * @returns {AsyncGenerator<Piece, void>}
   */
  async *chat(messages, options = {}) {
    yield* this.able("chat")(this, messages, options);
  }

  /**
   * @param {Message[]} messages @param {Record<string, any>} [variables] @returns {Promise<string>}
   */
  async chatPrompt(messages, variables) {
    return this.able("chatPrompt")(this, messages, variables);
  }

  /**
   * @param {Float32Array} samples @param {import("./speech.js").HearOptions} [options]
   * @returns {AsyncGenerator<import("./speech.js").Hearing, void>}
   */
  async *transcribe(samples, options = {}) {
    yield* this.able("transcribe")(this, samples, options);
  }

  /** @param {Uint8ClampedArray} rgba @returns {Promise<Float32Array>} */
  async embedImage(rgba) {
    return this.able("embedImage")(this, rgba);
  }

  /**
   * @param {Uint8ClampedArray} rgba @param {import("./seen.js").Wanted} [wanted]
   * @returns {Promise<import("./seen.js").Answer>}
   */
  async see(rgba, wanted) {
    return this.able("see")(this, rgba, wanted);
  }

  /**
   * A vector for each text; longer texts are cut. `onVector` has each as it comes.
   * @param {string[]} texts
   * @param {{signal?: AbortSignal, progress?: (done: number) => void,
   *   onVector?: (row: Float32Array) => void}} [options]
   * @returns {Promise<Float32Array[]>}
   */
  async embed(texts, options = {}) {
    const { signal, progress, onVector } = allowed(options, VECTORS, "embed");
    const embed = this.able("embed");
    const rows = [];
    for (const text of fit(texts, TEXTS, "what embed is given")) {
      signal?.throwIfAborted();
      const ids = this.encode(text);
      const row = await embed(this, ids);
      rows.push(row);
      onVector?.(row);
      progress?.(rows.length);
    }
    return rows;
  }

  /**
   * Returns the logits after `ids`, feeding only those that the device does not hold yet; null if
   * it is stopped.
   * @param {number[]} ids @param {AbortSignal} [signal]
   * @param {import("./pictures.js").Inset[]} [insets] @returns {Promise<Float32Array | null>}
   */
  logits(ids, signal, insets) {
    const made = this.withPart((decoder) => decoder.logits(ids, signal, insets));
    return made.catch((error) => {
      if (signal?.aborted) return null;
      throw error;
    });
  }

  /**
   * Has what feeds the Programs do something, in turn; a device that was lost brings another one.
   * @template T @param {(part: any) => Promise<T>} work @returns {Promise<T>}
   */
  withPart(work) {
    return this.inTurn(() => this.unlost(() => work(this.part)));
  }

  /**
   * Runs one request at a time; concurrent ones wait.
   * @template T @param {() => Promise<T>} what is done when the device is free
   * @returns {Promise<T>}
   */
  inTurn(what) {
    const made = this.turn.then(what);
    this.turn = made.catch(() => {});
    return made;
  }

  /**
   * Replaces a device that is lost or cannot go on, and feeds the new one everything: sums have
   * one order, so the result is what it would have been.
   * @template T @param {() => Promise<T>} work @returns {Promise<T>}
   */
  async unlost(work) {
    let why = "";
    for (let lost = 0; ; lost++) {
      try {
        if (this.closed) throw new WeftError("the model was closed");
        if (!this.sessions) await this.begin();
        const which = this.device.kind === "wasm" ? "WebAssembly" : "It";
        if (why) this.options.note?.(`${why}. ${which} goes on.`);
        why = "";
        return await work();
      } catch (error) {
        if (this.closed) throw new WeftError("the model was closed", { cause: error });
        why = await this.failure(/** @type {Error} */ (error));
        if (!why) throw error;
        this.sessions = null;
        if (lost === RECOVERIES) throw error;
        this.options.note?.(`${why}: starting again …`);
      }
    }
  }

  /**
   * Says why the device cannot go on; "" if it can.
   * @param {Error} error what came of its work @returns {Promise<string>}
   */
  async failure({ name }) {
    if (name === "AbortError") return "";
    const lost = await this.device?.gone?.();
    if (lost || this.options.target === "webgpu") return lost ?? "";
    return (this.devices.unfit = this.device?.wrong?.message ?? "");
  }
}
