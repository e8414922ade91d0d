// weft in Node: what `import { load } from "weft-ml"` gives there.
/// <reference lib="es2020" />

import type {
  About, Access, Answer, ChatOptions, Folder, GenerateOptions, HearOptions, Hearing, LoadOptions as PageOptions,
  Message, Piece, SeeOptions, Step, TrainOptions,
} from "./weft.js";

export { WeftError, ranked } from "./weft.js";
export type {
  About, Access, Answer, ChatOptions, DeviceOptions, Folder, GenerateOptions, HearOptions, Hearing, Message, Part,
  Piece, Progress, ResponseFormat, SeeOptions, Segment, Step, Terms, Thing, Tool, ToolCall, TrainOptions,
} from "./weft.js";

/** Options of loading a folder in Node. */
export interface LoadOptions extends PageOptions {
  /** A WebGPU for Node: npm's `webgpu` makes one with `create([])`. */
  gpu?: object | undefined;
  /** What makes threads; Node's own by default. */
  Worker?: (new (...args: any[]) => object) | undefined;
}

/** A model in this thread. */
export interface Model {
  /** Facts of the loaded model, and the device that runs it. */
  readonly about: About;
  /** The text that follows, piece by piece; leaving the loop stops the model. */
  generate(prompt: string | number[], options?: GenerateOptions): AsyncGenerator<Piece, void>;
  /** The answer to a conversation, of a model with a chat template. */
  chat(messages: Message[], options?: ChatOptions): AsyncGenerator<Piece, void>;
  /** A vector for each text, of a model that is an encoder. */
  embed(
    texts: string[],
    options?: {
      signal?: AbortSignal | undefined;
      progress?: ((done: number) => void) | undefined;
      onVector?: ((row: Float32Array) => void) | undefined;
    },
  ): Promise<Float32Array[]>;
  /** The vector of a picture, pixels of the model's own size, in the space of the texts'. */
  embedImage(rgba: Uint8ClampedArray): Promise<Float32Array>;
  /** A net's answer about pixels of its own size. */
  see(rgba: Uint8ClampedArray, options?: SeeOptions): Promise<Answer>;
  /** What is said in a sound of one channel at 16 kHz, piece by piece. */
  transcribe(samples: Float32Array, options?: HearOptions): AsyncGenerator<Hearing, void>;
  /** Token ids of a text. */
  encode(text: string): number[];
  /** The text of token ids. */
  decode(ids: number[]): string;
  /** A training, where the folder was exported with --train: "scratch" or "lora". */
  trainer(kind: string, options?: LoadOptions): Promise<Trainer>;
  /** Frees what the device holds. */
  close(): void;
}

/** The training that comes with a model. */
export interface Trainer {
  /** The trained model and its device. */
  readonly about: About;
  /** Trains on a text, step by step; leaving the loop stops. */
  train(text: string, options?: TrainOptions): AsyncGenerator<Step, void>;
  /** The text that follows, by what was trained. */
  generate(prompt: string, options?: GenerateOptions): AsyncGenerator<Piece, void>;
  /** The files of what was trained. */
  files(): Promise<{ name: string; bytes: Uint8Array }[]>;
  /** Frees what the device holds. */
  close(): void;
}

/** A folder's content. */
export function describe(folder: string | URL, access?: Access): Promise<Folder>;
/** Runs every kernel of a folder's Programs against reference values; fetches no weights. */
export function selftest(folder: string | URL, options?: LoadOptions): Promise<unknown>;
/** Loads a folder that `weft export web` wrote: a path, or the address of one (also `file:`). */
export function load(folder: string | URL, options?: LoadOptions): Promise<Model>;
/** The training of a loaded model's folder: "scratch" or "lora", as exported. */
export function trainer(model: Model, kind: string, options?: LoadOptions): Promise<Trainer>;
