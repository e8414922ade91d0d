// A folder's model on one device. Weights load while it compiles; a lost device is replaced.

import { Decoder } from "./decoder.js";
import { Devices } from "./devices.js";
import { Folder } from "./folder.js";
import { readManifest } from "./manifest.js";
import { CHAT, EMBED, GENERATE, LOAD, allowed, idsOf, texts as given } from "./options.js";
import { WeftError, soundly } from "./program.js";
import { choose, sampling } from "./sampler.js";
import { Sessions } from "./session.js";
import { Stops, StreamDecoder } from "./text.js";
import { Tokenizer } from "./tokenizer.js";

const RECOVERIES = 3; // of a device that is lost again and again, within one text

/**
 * @typedef {{embed: (ids: number[]) => Promise<Float32Array>}} Embeds
 * @typedef {{target?: "auto" | "webgpu" | "wasm", threads?: number, signal?: AbortSignal,
 *   progress?: (p: {loaded: number, total: number, phase: string}) => void,
 *   note?: (text: string) => void, gpu?: GPU, Worker?: any}} LoadOptions
 * @typedef {{maxNewTokens?: number, temperature?: number, topK?: number, topP?: number,
 *   repetitionPenalty?: number, seed?: number | bigint, stop?: string[], signal?: AbortSignal
 * }} GenerateOptions
 * @typedef {{role: string, content: string} & Record<string, any>} Message
 * @typedef {{text: string, ids: number[],
 *   finish: null | "eos" | "stop" | "length" | "aborted", left?: number}} Piece
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
    const model = new Model(store, manifest, options);
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
    /** @type {number[]} ids whose keys and values the device holds */
    this.fed = [];
    /** @type {Promise<any>} when the device is free again */
    this.turn = Promise.resolve();
  }

  /** Chooses a device, compiles and loads the weights; starts over if the device fails. */
  async start() {
    const { shards, files } = this.manifest;
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
    const { kind, model } = this.manifest;
    if (kind === "encoder") {
      const { Encoder } = await import("./encoder.js");
      this.encoder = new Encoder(sessions, model);
    } else if (kind === "net") {
      const { Net } = await import("./net.js");
      this.net = new Net(sessions, model);
    } else if (kind === "album") {
      const { Album } = await import("./album.js");
      this.album = this.encoder = new Album(sessions, model);
    } else this.decoder = new Decoder(sessions, model);
    this.fed = [];
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
    return /** @type {Tokenizer} */ (this.tokenizer).encode(given(text, "encode"), special);
  }

  /** @param {number[]} ids @returns {string} */
  decode(ids) {
    return /** @type {Tokenizer} */ (this.tokenizer).decode(ids);
  }

  /**
   * The text that follows, piece by piece. The last piece says why it ended.
   * @param {string | number[]} prompt @param {GenerateOptions} [options]
   * @returns {AsyncGenerator<Piece, void>}
   */
  async *generate(prompt, options = {}) {
    if (!this.decoder) {
      const { kind, name } = this.manifest;
      const what = kind === "net" ? "a net" : kind === "album" ? "an album" : "an encoder";
      throw new WeftError(`${name} is ${what}: it writes no text`);
    }
    allowed(options, GENERATE, "generate");
    const { context, eos, vocab } = this.manifest.model;
    const ids = typeof prompt === "string" ? this.encode(prompt) : idsOf(prompt, vocab);
    if (!ids.length) throw new WeftError("the prompt is empty: give at least one character");
    if (ids.length > context) {
      throw new WeftError(`the prompt has ${ids.length} tokens; this page holds ${context}: `
        + "shorten it");
    }
    const how = sampling(options);
    const stream = how.temperature > 0
      ? new (await import("./philox.js")).Philox(options.seed ?? 0) : null;
    const text = new StreamDecoder((part) => this.decode(part));
    const stops = new Stops(options.stop ?? []);
    const first = ids.length;
    const most = Math.min(options.maxNewTokens ?? 64, context - first + 1);
    /** @type {Piece["finish"]} */
    let finish = most > 0 ? null : "length";
    while (!finish) {
      if (options.signal?.aborted) break;
      const logits = await this.logits(ids, options.signal);
      if (!logits) break;
      const token = choose(logits, ids, how, stream);
      if (eos.includes(token)) {
        finish = "eos";
        break;
      }
      ids.push(token);
      const shown = stops.push(text.push(token));
      if (stops.stopped) finish = "stop";
      else if (ids.length - first >= most) finish = "length";
      yield { text: shown, ids: [token], finish: null };
    }
    const rest = stops.push(text.flush(), true);
    if (stops.stopped && finish === "length") finish = "stop";
    yield { text: rest, ids: [], finish: finish ?? "aborted" };
  }

  /**
   * The answer to a conversation, through the model's chat template, as `generate` gives it.
   * @param {Message[]} messages
   * @param {GenerateOptions & {variables?: Record<string, any>, slide?: boolean}} [options]
   *   `variables` of the template, such as `enable_thinking`; with `slide` the oldest turns leave
   *   where the context is full, and the first piece says in `left` how many messages did
   * @returns {AsyncGenerator<Piece, void>}
   */
  async *chat(messages, options = {}) {
    const { variables, slide, ...how } = allowed(options, CHAT, "chat");
    const most = how.maxNewTokens ?? Infinity;
    const { ids, left } = await this.fitted(messages, slide ? most : 0, variables);
    if (left) yield { text: "", ids: [], finish: null, left };
    yield* this.generate(ids, how);
  }

  /**
   * The prompt for messages of which the oldest turns have left until a quarter of the context, or
   * `free` tokens, are free; a system message stays, and the last turn (weft/models/run/talk.py).
   * @param {Message[]} messages @param {number} free @param {Record<string, any>} [variables]
   * @returns {Promise<{ids: number[], left: number}>}
   */
  async fitted(messages, free, variables) {
    if (!Array.isArray(messages)) throw new WeftError("a conversation is a list of messages");
    const { context } = this.manifest.model;
    const room = Math.min(free, Math.floor(context / 4));
    const first = messages[0]?.role === "system" ? 1 : 0;
    const turns = messages.flatMap(({ role }, i) => (role === "user" && i > first ? [i] : []));
    for (let start = first; ; start = /** @type {number} */ (turns.shift())) {
      const told = [...messages.slice(0, first), ...messages.slice(start)];
      const ids = this.encode(await this.chatPrompt(told, variables), false);
      const fits = ids.length + room <= context;
      if (!free || fits || !turns.length) return { ids, left: start - first };
    }
  }

  /**
   * Renders messages by the template: the text that the model continues.
   * @param {Message[]} messages @param {Record<string, any>} [variables] @returns {Promise<string>}
   */
  async chatPrompt(messages, variables) {
    const { chat, name } = this.manifest;
    if (chat !== true) throw new WeftError(chat ?? `${name} has no chat template: use generate`);
    const { render } = await import("./template.js");
    this.template ??= await this.folder.parsed("chat.json", (data) => data);
    return soundly("chat.json", () => render(this.template, messages, variables));
  }

  /**
   * A vector for each text; longer texts are cut. `onVector` has each as it comes.
   * @param {string[]} texts
   * @param {{signal?: AbortSignal, onVector?: (row: Float32Array) => void}} [options]
   * @returns {Promise<Float32Array[]>}
   */
  async embed(texts, options = {}) {
    const { signal, onVector } = allowed(options, EMBED, "embed");
    const { name } = this.manifest;
    if (!this.encoder) throw new WeftError(`${name} writes text: embed with an encoder`);
    const rows = [];
    for (const text of given(texts, "embed")) {
      signal?.throwIfAborted();
      const ids = this.encode(text);
      // a device that was lost has brought another encoder
      const row = await this.inTurn(() => this.unlost(() => /** @type {Embeds} */ (
        this.encoder).embed(ids)));
      onVector?.(row);
      rows.push(row);
    }
    return rows;
  }

  /**
   * The vector of a picture, pixels of the model's own size, in the space of the texts'.
   * @param {Uint8ClampedArray} rgba @returns {Promise<Float32Array>}
   */
  embedImage(rgba) {
    return this.inTurn(() => this.unlost(() => {
      if (!this.album) throw new WeftError(`${this.manifest.name} gives no vectors of pictures`);
      return this.album.look(rgba);
    }));
  }

  /**
   * A net's answer about pixels of its own size.
   * @param {Uint8ClampedArray} rgba @param {import("./seen.js").Wanted} [wanted]
   * @returns {Promise<import("./seen.js").Answer>}
   */
  see(rgba, wanted) {
    return this.inTurn(() => this.unlost(() => {
      if (!this.net) throw new WeftError(`${this.manifest.name} takes no pictures`);
      return this.net.see(rgba, wanted);
    }));
  }

  /**
   * Returns the logits after `ids`, feeding only those that the device does not hold yet; null if
   * it is stopped.
   * @param {number[]} ids @param {AbortSignal} [signal] @returns {Promise<Float32Array | null>}
   */
  logits(ids, signal) {
    return this.inTurn(() => this.unlost(() => this.feed(ids, signal))).catch((error) => {
      if (signal?.aborted) return null;
      throw error;
    });
  }

  /** @param {number[]} ids @param {AbortSignal} [signal] */
  async feed(ids, signal) {
    let same = 0;
    while (same < ids.length - 1 && this.fed[same] === ids[same]) same++;
    const { rewinds } = this.manifest.model; // else no row but the last can be gone on from
    if (!rewinds && same < this.fed.length) same = 0;
    this.fed = rewinds ? this.fed.slice(0, same) : []; // before the step: it may fail
    const out = await /** @type {Decoder} */ (this.decoder).feed(ids.slice(same), same, signal);
    this.fed = [...ids];
    return out;
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
