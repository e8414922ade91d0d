// A model of a folder on one device: chosen, filled while it compiles, begun again if it is lost.

import { Decoder } from "./decoder.js";
import { bytesOf, readManifest } from "./manifest.js";
import { CHAT, EMBED, GENERATE, LOAD, allowed, idsOf, texts as given } from "./options.js";
import { WeftError, readProgram, soundly } from "./program.js";
import { choose, sampling } from "./sampler.js";
import { Sessions } from "./session.js";
import { Stops, StreamDecoder } from "./text.js";
import { Tokenizer } from "./tokenizer.js";

/** @type {GPUFeatureName[]} of which the exporter writes shaders of their own */
const VARIANTS = ["shader-f16"];
const RECOVERIES = 3; // of a device that is lost again and again, within one text
const ANSWER = 20_000; // ms in which a GPU is found, or never will be

/**
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
    this.why = "";
    this.unfit = ""; // why the GPU that is there cannot play this model
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

  /** Chooses a device, compiles and pours the weights in; again where it fails meanwhile. */
  async start() {
    const { shards, files } = this.manifest;
    const code = Object.entries(files).map(([name, about]) => [name, ...about]);
    await this.store.prune?.([...shards, ...code]);
    await this.unlost(async () => {});
  }

  async begin() {
    this.device?.close();
    this.device = null;
    const { device, programs } = await this.choose(this.manifest.memory?.wasm);
    this.device = device;
    const sessions = new Sessions(this.device, programs);
    const first = this.manifest.model.widths?.slice(0, 1).map(String); // encoder.js compiles others
    await Promise.all([sessions.prepare(first), this.pour(sessions), this.readTokenizer()]);
    await this.device.settled?.();
    this.sessions = sessions;
    const { kind, model } = this.manifest;
    if (kind === "encoder") {
      const { Encoder } = await import("./encoder.js");
      this.encoder = new Encoder(sessions, model);
    } else this.decoder = new Decoder(sessions, model);
    this.fed = [];
  }

  /** What plays, and the Programs for it. @param {number} [room] bytes for WebAssembly */
  async choose(room) {
    const adapter = await this.adapter();
    // software that plays WebGPU is many times slower than WebAssembly
    const software = adapter && this.options.target !== "webgpu" && imitates(adapter);
    const played = adapter && !software && await this.onGpu(adapter);
    if (played) return played;
    if (!software) return this.onWasm(room);
    this.why = "this browser's WebGPU is software, and WebAssembly is faster";
    try {
      return await this.onWasm(room);
    } catch (error) {
      const gpu = await this.onGpu(adapter);
      this.why = "WebAssembly does not play it here";
      if (!gpu) throw error;
      return gpu;
    }
  }

  /** Runs every kernel against reference values; needs no weights. */
  async selftest() {
    const { selftest } = await import("./selftest.js");
    return selftest(this);
  }

  /** @returns {Promise<GPUAdapter | null>} null where WebAssembly plays, `why` says why */
  async adapter() {
    const { target = "auto", gpu = globalThis.navigator?.gpu } = this.options;
    this.why = this.unfit || "as asked";
    if (target === "wasm" || this.unfit) return null;
    const found = gpu && await inTime(gpu.requestAdapter().catch(() => null), undefined);
    this.why = found ? "WebGPU is there" : !gpu ? `${HERE} has no WebGPU`
      : found === null ? `${HERE} has WebGPU, but no GPU that it would use` : SILENT;
    if (!found && target === "webgpu") throw new WeftError(`${this.why}: ${!gpu && IN_NODE
      ? "give it by the option gpu (npm's webgpu makes one)" : "try without asking for it"}`);
    return found ?? null;
  }

  /**
   * The Programs and their device; null where it is too small for them.
   * @param {GPUAdapter} adapter
   */
  async onGpu(adapter) {
    const feature = VARIANTS.find((name) =>
      adapter.features.has(name) && this.manifest.files[`webgpu-${name}.json`]);
    const [{ programs, about }, { GpuDevice, tooLarge }] = await Promise.all([
      this.programs(feature ? `webgpu-${feature}` : "webgpu"), import("./webgpu.js")]);
    const sizes = Object.values(programs).flatMap((p) => p.buffers.map((b) => b.nbytes));
    const [most, needed] = [adapter.limits.maxBufferSize, Math.max(0, ...sizes)];
    try {
      if (needed > most) throw new WeftError(tooLarge(needed, most));
      const device = await inTime(GpuDevice.make(adapter, about.shaders, feature), null);
      if (!device) throw new WeftError(SILENT);
      return { programs, device };
    } catch (error) {
      if (this.options.target === "webgpu") throw error;
      this.why = /** @type {Error} */ (error).message;
      return null;
    }
  }

  /** @param {number} [room] */
  async onWasm(room) {
    const [{ programs, about }, { WasmDevice, moduleName }] = await Promise.all([
      this.programs("wasm"), import("./wasm.js")]);
    const code = await this.part(moduleName());
    return { programs, device: await WasmDevice.make(code, about, { ...this.options, room }) };
  }

  /** @param {string} target the Programs of one, and what is beside them */
  async programs(target) {
    const bytes = await this.part(`${target}.json`);
    return soundly(`${target}.json`, () => {
      const about = JSON.parse(new TextDecoder().decode(bytes));
      const programs = Object.fromEntries(Object.entries(about.programs).map(([name, raw]) =>
        [name, readProgram(raw)]));
      return { programs, about };
    });
  }

  /** @param {string} name @returns {Promise<Uint8Array>} a file that the manifest lists */
  part(name) {
    const [nbytes, sha256] = this.manifest.files[name] ?? [];
    if (sha256 === undefined) {
      throw new WeftError(`the manifest lists no ${name}: export the folder again`);
    }
    return this.store.file([name, nbytes, sha256]);
  }

  /**
   * Fetches the shards, two at a time, and hands over the tensors in them.
   * @param {Sessions} sessions
   */
  async pour(sessions) {
    const { shards, tensors } = this.manifest;
    const total = bytesOf(shards);
    /** @type {number[]} */
    const done = shards.map(() => 0);
    // used in turn: what is left to the garbage collector it leaves lying
    const size = Math.max(0, ...shards.map((/** @type {any} */ shard) => shard[1]));
    const rooms = [new ArrayBuffer(size), new ArrayBuffer(size)];
    const begin = (/** @type {number} */ n) =>
      this.store.file(shards[n], (/** @type {number} */ bytes) => {
        done[n] = bytes;
        const loaded = done.reduce((a, b) => a + b, 0);
        this.options.progress?.({ loaded, total, phase: "weights" });
      }, rooms[n % 2]);
    const wanted = Object.entries(tensors).map(([name, [, , start, nbytes]]) =>
      ({ name, start, end: start + nbytes })).sort((a, b) => a.start - b.start);
    let next = shards.length ? begin(0) : null;
    for (let n = 0, at = 0; n < shards.length; n++) {
      const bytes = await /** @type {Promise<Uint8Array>} */ (next);
      next = n + 1 < shards.length ? begin(n + 1) : null;
      next?.catch(() => {}); // it is awaited in its turn
      for (const { name, start, end } of wanted) {
        const [from, to] = [Math.max(start, at), Math.min(end, at + bytes.length)];
        const part = bytes.subarray(from - at, Math.max(from, to) - at);
        if (from < to) sessions.put(name, from - start, part, end - start);
      }
      at += bytes.length;
    }
  }

  /** Frees what the device holds; nothing can be asked of the model after it. */
  close() {
    this.closed = true;
    this.device?.close();
    this.device = this.sessions = null;
  }

  async readTokenizer() {
    if (this.tokenizer) return;
    const json = await this.part("tokenizer.json");
    this.tokenizer = soundly("the tokenizer", () =>
      new Tokenizer(JSON.parse(new TextDecoder().decode(json)), this.manifest.text));
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
    if (this.encoder) throw new WeftError(`${this.manifest.name} is an encoder: it writes no text`);
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
   * `free` tokens, are free; a system message stays, and the last turn (weft/models/talk.py).
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
   * What the template makes of messages: the text that the model goes on from.
   * @param {Message[]} messages @param {Record<string, any>} [variables] @returns {Promise<string>}
   */
  async chatPrompt(messages, variables) {
    const { chat, name } = this.manifest;
    if (chat !== true) throw new WeftError(chat ?? `${name} has no chat template: use generate`);
    const { render } = await import("./template.js");
    this.template ??= JSON.parse(new TextDecoder().decode(await this.part("chat.json")));
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
      const row = await this.inTurn(() => this.unlost(() =>
        /** @type {import("./encoder.js").Encoder} */ (this.encoder).embed(ids)));
      onVector?.(row);
      rows.push(row);
    }
    return rows;
  }

  /**
   * The logits after `ids`, of which only what the device does not hold yet is fed; null once it
   * is stopped.
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
   * One at a time: what is asked for at once takes turns.
   * @template T @param {() => Promise<T>} what is done when the device is free
   * @returns {Promise<T>}
   */
  inTurn(what) {
    const made = this.turn.then(what);
    this.turn = made.catch(() => {});
    return made;
  }

  /**
   * A device that is lost, or cannot go on, is replaced by one that is fed everything: sums have
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
   * Why the device cannot go on; "" where it can.
   * @param {Error} error what came of its work @returns {Promise<string>}
   */
  async failure({ name }) {
    if (name === "AbortError") return "";
    const lost = await this.device?.gone?.();
    if (lost || this.options.target === "webgpu") return lost ?? "";
    return (this.unfit = this.device?.wrong?.message ?? "");
  }
}

const SILENT = "the GPU does not answer";
const IN_NODE = Boolean(/** @type {any} */ (globalThis).process?.versions?.node);
const HERE = IN_NODE ? "Node" : "this browser";

/** @param {any} adapter @returns {boolean} whether it is software */
const imitates = ({ info, isFallbackAdapter }) =>
  Boolean(info?.isFallbackAdapter ?? isFallbackAdapter);

/** @template T, E @param {Promise<T>} news @param {E} otherwise @returns {Promise<T | E>} */
function inTime(news, otherwise) {
  /** @type {any} */
  let timer;
  const late = new Promise((done) => (timer = setTimeout(done, ANSWER, otherwise)));
  return Promise.race([news, late]).finally(() => clearTimeout(timer));
}
