// Whisper: what is said in a sound, window by window (weft/models/run/listener.py).

import { Features } from "./mel.js";
import { need, needText } from "./manifest.js";
import { BOOLEAN, SEED, SIGNAL, allowed, count, shown } from "./options.js";
import { Philox } from "./philox.js";
import { WeftError, whole } from "./program.js";
import { choose } from "./sampler.js";
import { following, pieces, timesOf } from "./speech_rules.js";

const HEAT = [0, 0.2, 0.4, 0.6, 0.8, 1];
const REPEATS = 1.35; // a window that zlib makes that many times smaller is tried again,
const LIKELY = -1; // and one whose tokens are less likely than this, as logarithms;
const SILENCE = 0.6; // those are left out where nobody seems to speak
const ROWS = [1, 8]; // tokens of a step

/**
 * @typedef {import("./speech_rules.js").SpeechModel} SpeechModel
 * @typedef {{language?: string, task?: "transcribe" | "translate", timestamps?: boolean,
 *   temperature?: number | number[], seed?: number | bigint, maxNewTokens?: number, more?: boolean,
 *   signal?: AbortSignal}} HearOptions
 * @typedef {{start: number, end: number, text: string, tokens: number[], temperature: number,
 *   logprob: number, ratio: number, silence: number}} Segment
 * @typedef {{segment: Segment | null, growing: string, at: number, duration: number,
 *   language: string | null}} Hearing
 * @typedef {(features: Float32Array, ids: number[], wanted: number[]) =>
 *   Promise<Float32Array[]>} Ask
 */

/** Feeds a speech model's Programs; remembers what the device holds. */
export class Speech {
  /** @param {import("./session.js").Sessions} sessions @param {SpeechModel} model */
  constructor(sessions, model) {
    this.sessions = sessions;
    this.model = model;
    /** @type {Float32Array | null} */
    this.heard = null;
    /** @type {number[]} */
    this.fed = [];
  }

  /**
   * The logits after the `wanted` ones of `ids`, of a window with these features.
   * @param {Float32Array} features @param {number[]} ids @param {number[]} wanted ascending
   * @param {AbortSignal} [signal] @returns {Promise<Float32Array[]>}
   */
  async logits(features, ids, wanted, signal) {
    if (this.heard !== features) await this.encode(features, signal);
    let at = 0;
    while (at < wanted[0] && this.fed[at] === ids[at]) at++;
    this.fed = this.fed.slice(0, at); // before the steps: one may fail
    const out = [];
    while (at < ids.length) {
      const part = ids.slice(at, at + (ids.length - at > 1 ? ROWS[1] : 1));
      const rows = await this.step(part, at, signal);
      for (const n of wanted) if (n >= at && n < at + part.length) out.push(rows[n - at]);
      this.fed.push(...part);
      at += part.length;
    }
    return out;
  }

  /** @param {Float32Array} features @param {AbortSignal} [signal] */
  async encode(features, signal) {
    const { heads, source } = this.model;
    this.heard = null;
    this.fed = [];
    const at = places(Array.from({ length: source }, (_, n) => n), source, heads, source);
    await this.sessions.run("encode", { given: features, length: Int32Array.of(source), at }, {},
      signal);
    this.heard = features;
  }

  /** @param {number[]} ids @param {number} start @param {AbortSignal} [signal] */
  async step(ids, start, signal) {
    const { heads, positions, source, vocab } = this.model;
    const size = /** @type {number} */ (ROWS.find((rows) => rows >= ids.length));
    const padded = (/** @type {(n: number) => number} */ of) =>
      Int32Array.from({ length: size }, (_, n) => (n < ids.length ? of(n) : 0));
    const given = {
      ids: padded((n) => ids[n]), slot: padded(() => 0), place: padded((n) => start + n),
      seen: padded(() => source - 1),
      at: places(ids.map((_, n) => start + n), size, heads, positions),
    };
    const [out] = await this.sessions.run(`step.${size}`, given, {}, signal);
    return ids.map((_, n) => new Float32Array(out.buffer, out.byteOffset + 4 * n * vocab, vocab));
  }
}

/**
 * Where the keys of positions lie, head by head; -1 in rows without one.
 * @param {number[]} positions @param {number} rows @param {number} heads @param {number} length
 */
function places(positions, rows, heads, length) {
  const at = new Int32Array(rows * heads).fill(-1);
  positions.forEach((position, n) => {
    for (let h = 0; h < heads; h++) at[n * heads + h] = h * length + position;
  });
  return at;
}

/** A sound while it is transcribed. */
export class Listening {
  /**
   * @param {SpeechModel} model @param {Float32Array} samples at 16 kHz @param {HearOptions} options
   * @param {Ask} ask the model's logits @param {(ids: number[]) => string} decode
   */
  constructor(model, samples, options, ask, decode) {
    this.model = model;
    this.options = options;
    this.ask = ask;
    this.decode = decode;
    this.timed = options.timestamps ?? true;
    /** @type {string | null} */
    this.language = null;
    this.begin = this.beginning(options.language);
    this.features = new Features(samples, model.mels, 2 * model.source);
    this.seek = 0;
  }

  /**
   * A window's first tokens; null if the language is to be found.
   * @param {string} [language]
   */
  beginning(language) {
    const { start, languages, tasks, no_times: untimed } = this.model;
    const { task = "transcribe" } = this.options;
    this.language = language ?? null;
    const rest = this.timed ? [] : [untimed];
    if (!Object.keys(languages).length) {
      if (language || task !== "transcribe") throw new WeftError("the model knows one language");
      return [start, ...rest];
    }
    if (!language) return null;
    if (!Object.hasOwn(languages, language)) {
      const known = Object.keys(languages).sort().join(", ");
      throw new WeftError(`the language is ${language}; this model has ${known}`);
    }
    return [start, languages[language], ...(task in tasks ? [tasks[task]] : []), ...rest];
  }

  /** @returns {AsyncGenerator<Hearing, void>} */
  async *run() {
    const { model, features, options } = this;
    if (!this.begin && !(options.more && features.duration * 100 < features.size)) {
      await this.detect();
    }
    // of a sound that goes on, the end waits for a whole window
    while (this.seek + (options.more ? features.size : 1) <= this.heard()) {
      const frames = Math.min(features.size, features.frames - this.seek);
      const at = this.seek * 0.01;
      const heard = yield* this.window(features.window(this.seek, frames));
      if (!heard) {
        this.seek += frames;
        continue;
      }
      const { found, passed } = pieces(model, heard.tokens, frames);
      for (const { start, end, tokens } of found) {
        const text = this.text(tokens);
        yield this.state("", { ...heard, start: at + start, end: at + end, tokens, text });
      }
      this.seek += passed;
    }
    yield this.state("");
  }

  /** Frames of the sound, without the silence after one that goes on. */
  heard() {
    const { frames, duration } = this.features;
    return this.options.more ? Math.min(frames, Math.floor(duration * 100)) : frames;
  }

  /** @param {string} growing @param {Segment | null} segment @returns {Hearing} */
  state(growing, segment = null) {
    const { duration } = this.features;
    const at = Math.min(this.seek * 0.01, duration);
    return { segment, growing, at, duration, language: this.language };
  }

  async detect() {
    const { start, languages } = this.model;
    const [row] = await this.ask(this.features.window(0, this.features.size), [start], [0]);
    const likelier = (/** @type {string} */ a, /** @type {string} */ b) =>
      (row[languages[b]] > row[languages[a]] ? b : a);
    this.begin = this.beginning(Object.keys(languages).reduce(likelier));
  }

  /** @param {number[]} tokens */
  text(tokens) {
    return this.decode(tokens.filter((id) => id < timesOf(this.model)));
  }

  /**
   * A window's tokens at the first temperature whose result is good enough; null for silence.
   * @param {Float32Array} features
   */
  async *window(features) {
    const { temperature = HEAT, seed = 0 } = this.options;
    const heats = [temperature].flat();
    for (const [n, heat] of heats.entries()) {
      const heard = yield* this.decoded(features, heat, new Philox(seed, this.seek * 256 + n));
      const unlikely = heard.logprob < LIKELY;
      if (unlikely && heard.silence > SILENCE) return null;
      if ((unlikely || heard.ratio > REPEATS) && n < heats.length - 1) continue;
      const { tokens } = heard;
      if (tokens[tokens.length - 1] === this.model.end) tokens.pop();
      return tokens.length ? heard : null;
    }
    return null;
  }

  /**
   * The tokens after the first ones, with the last special one.
   * @param {Float32Array} features @param {number} temperature @param {Philox} stream
   */
  async *decoded(features, temperature, stream) {
    const { model, timed } = this;
    const ids = [.../** @type {number[]} */ (this.begin)];
    const count = ids.length;
    const how = { temperature, topK: 0, topP: 1, repetitionPenalty: 1 };
    const rows = await this.ask(features, ids, [...new Set([0, count - 1])]);
    const silence = Math.exp(logOf(rows[0], model.no_times - 1));
    const room = Math.min(model.longest + Math.min(Math.floor(model.positions / 2) - 1, count - 1),
      model.positions);
    const most = Math.min(room - count, this.options.maxNewTokens ?? Infinity);
    let logits = rows[rows.length - 1];
    let total = 0;
    const made = () => ids.slice(count);
    for (;;) {
      const x = following(model, logits, made(), timed);
      const token = choose(x, [], how, stream);
      ids.push(token);
      total += logOf(x, token);
      yield this.state(this.text(made()));
      if (token === model.end || ids.length - count >= most) break;
      [logits] = await this.ask(features, ids, [ids.length - 1]);
    }
    const tokens = made();
    const ratio = await compression(tokens, model.vocab);
    return { start: 0, end: 0, text: "", tokens, temperature, logprob: total / tokens.length,
      ratio, silence };
  }
}

/** The logarithm of an id's probability. @param {Float32Array} x @param {number} id */
function logOf(x, id) {
  const best = x.reduce((a, b) => Math.max(a, b), -Infinity);
  return x[id] - best - Math.log(x.reduce((sum, value) => sum + Math.exp(value - best), 0));
}

/**
 * How many times smaller zlib makes the tokens; what repeats gives much.
 * @param {number[]} tokens @param {number} vocab
 */
async function compression(tokens, vocab) {
  const size = Math.floor(Math.log2(vocab) / 8) + 1;
  const data = Uint8Array.from({ length: tokens.length * size }, (_, n) =>
    tokens[Math.floor(n / size)] >>> (8 * (n % size)));
  const packed = new Blob([data]).stream().pipeThrough(new CompressionStream("deflate"));
  return data.length / (await new Response(packed).arrayBuffer()).byteLength;
}

/** @type {Record<string, import("./options.js").Rule>} */
const HEAR = {
  language: [(v) => typeof v === "string" && v !== "", "a code such as de"],
  task: [(v) => ["transcribe", "translate"].includes(v), '"transcribe" or "translate"'],
  timestamps: BOOLEAN, more: BOOLEAN, maxNewTokens: count(1), seed: SEED, signal: SIGNAL,
  temperature: [(v) => v.length !== 0 && [v].flat().every((t) => t >= 0 && t <= 2),
    "a number from 0 to 2, or a list of them"],
};

/** The samples that a call is given. @param {any} given @returns {Float32Array} */
function soundOf(given) {
  if (!(given instanceof Float32Array) || !given.length) {
    const what = given?.length === 0 ? "empty" : shown(given).slice(0, 60);
    throw new WeftError(`the sound is ${what}; expected a Float32Array of samples at 16 kHz`);
  }
  if (!given.every(Number.isFinite)) throw new WeftError("the sound has NaN or infinite samples");
  return given;
}

/** What a manifest says. @param {any} m @param {any} text */
export function check(m, text) {
  needText(text);
  const counts = [m.vocab, m.heads, m.mels, m.source, m.positions, m.longest];
  need(counts.every((n) => whole(n) && n > 0 && n <= 2 ** 20), "a number of the model");
  const ids = [m.start, m.end, m.no_times, ...Object.values(m.languages), ...Object.values(m.tasks),
    ...m.suppressed, ...m.suppressed_first];
  need(ids.every((id) => whole(id) && id < m.vocab)
    && (m.latest_first === null || whole(m.latest_first)), "its tokens");
}

/** @param {import("./session.js").Sessions} sessions @param {SpeechModel} model */
export const make = (sessions, model) => new Speech(sessions, model);

/**
 * What is said in a sound, piece by piece (Model.transcribe).
 * @param {import("./model.js").Model} model @param {Float32Array} samples
 * @param {HearOptions} options @returns {AsyncGenerator<Hearing, void>}
 */
export async function* transcribe(model, samples, options) {
  const { signal } = allowed(options, HEAR, "transcribe");
  /** @type {Ask} */
  const ask = (features, ids, wanted) => model.withPart((speech) => {
    signal?.throwIfAborted();
    return speech.logits(features, ids, wanted, signal);
  });
  const decode = (/** @type {number[]} */ ids) => model.decode(ids);
  yield* new Listening(model.manifest.model, soundOf(samples), options, ask, decode).run();
}
