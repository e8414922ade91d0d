// weft in a page: what `import { load } from "weft-ml"` gives.
/// <reference lib="dom" />
/// <reference lib="es2020" />

/** An error that says what was found and what to do. */
export class WeftError extends Error {
  constructor(message?: string, options?: { cause?: unknown });
}

/** How far a load has come. */
export interface Progress {
  /** The part that is done, in bytes of weights (kernels of a self-test). */
  loaded: number;
  /** All that there is to do, in the same unit. */
  total: number;
  /** The unit of the count: "weights" or "kernels". */
  phase: string;
  /** About how many seconds are left, at the network's pace; unknown in the beginning. */
  left?: number | undefined;
}

/** How the files of a folder are asked for, where its server does not give them to everyone. */
export interface Access {
  /** Fetches a file in place of the page's own fetch; a worker has it done in the page. */
  fetch?: ((address: string, how: RequestInit) => Promise<Response>) | undefined;
  /** Headers of each request, such as a token. */
  headers?: Record<string, string> | undefined;
  /**
   * The address of each file by its name ("weights-000.bin", "search/manifest.json"), or a function
   * from name to address, such as a signed one. A function is asked again, once, with `again` true,
   * where the server refuses its answer (400, 401, 403 or 410). Others are in the folder.
   */
  address?:
    | Record<string, string>
    | ((name: string, again: boolean) => string | URL | Promise<string | URL>)
    | undefined;
}

/** Options of the device that plays a folder. */
export interface DeviceOptions {
  /** The device: "auto" takes WebGPU where the browser has a GPU for it, else WebAssembly. */
  target?: "auto" | "webgpu" | "wasm" | undefined;
  /** Which GPU WebGPU asks for, on a machine with two: the browser chooses by default. */
  powerPreference?: "high-performance" | "low-power" | undefined;
  /** Threads of WebAssembly, at most eight; as many as the machine has cores by default. */
  threads?: number | undefined;
  /** Ends the load with an AbortError. */
  signal?: AbortSignal | undefined;
  /** Hears how far the load has come. */
  progress?: ((progress: Progress) => void) | undefined;
  /** Hears what happens by the way: a lost GPU, a full disk. */
  note?: ((text: string) => void) | undefined;
}

/** Options of loading a folder. */
export interface LoadOptions extends DeviceOptions, Access {}

/** Options of writing a text. */
export interface GenerateOptions {
  /** How many tokens to write at most: 64 by default. */
  maxNewTokens?: number | undefined;
  /** 0, the default, takes the likeliest token. */
  temperature?: number | undefined;
  /** Of how many tokens to choose: 0, the default, of all. */
  topK?: number | undefined;
  /** Chooses among the likeliest tokens whose probabilities reach this sum: 1, the default, among all. */
  topP?: number | undefined;
  /** Makes tokens of the text so far less likely, above 1; 1 by default. */
  repetitionPenalty?: number | undefined;
  /** From 0 to 2^64 - 1. */
  seed?: number | bigint | undefined;
  /** A text, or several, that end the answer. */
  stop?: string | string[] | undefined;
  /** Pictures that the prompt is about, for a model that sees: RGBA pixels of its own size. */
  images?: Uint8ClampedArray[] | undefined;
  /** A JSON schema that the text satisfies; the last piece's finish is "eos" where it is whole. */
  schema?: object | true | undefined;
  /** The same in OpenAI's form. */
  responseFormat?: ResponseFormat | undefined;
  /** Stops the model; the last piece then has the finish "aborted". */
  signal?: AbortSignal | undefined;
}

/** The form of an answer, as OpenAI's response_format has it. */
export type ResponseFormat =
  | { type: "text" }
  | { type: "json_object" }
  | { type: "json_schema"; json_schema: { schema: object | true; [field: string]: unknown } };

/** Options of answering a conversation. */
export interface ChatOptions extends GenerateOptions {
  /** Variables for the chat template, such as `enable_thinking`. */
  variables?: Record<string, unknown> | undefined;
  /** The oldest turns leave where the context is full; the first piece then says how many. */
  slide?: boolean | undefined;
  /** Tools that the model may call. */
  tools?: Tool[] | undefined;
  /** "auto", the default, leaves the choice to the model; "required" and a name have it call one. */
  toolChoice?: "auto" | "none" | "required" | { type: "function"; function: { name: string } } | undefined;
}

/** A tool, as OpenAI has it. */
export interface Tool {
  /** Always "function". */
  type: "function";
  /**
   * Its name (letters, digits, _ - .), what it does, the JSON schema of its parameters, and whether
   * the arguments must satisfy it also where the model chooses to call.
   */
  function: {
    name: string;
    description?: string | undefined;
    parameters?: object | undefined;
    strict?: boolean | undefined;
  };
}

/** A call of a tool. The message that answers it has the role "tool" and its id as tool_call_id. */
export interface ToolCall {
  /** Tells it from others. */
  id: string;
  /** Always "function". */
  type: "function";
  /** The name of the tool, and its arguments as JSON. */
  function: { name: string; arguments: string };
}

/** A text, or a picture as RGBA pixels of the model's own size, for a model that sees. */
export type Part =
  | { type: "text"; text: string }
  | { type: "image"; image: Uint8ClampedArray };

/** A message of a conversation; a chat template may read more fields. */
export interface Message {
  /** Who speaks: "user", "assistant" or "system", as the chat template has them. */
  role: string;
  /** The text of the message, or its parts. */
  content: string | Part[] | null;
  [field: string]: unknown;
}

/** The text and ids that a model has written since the last piece. */
export interface Piece {
  /** The text; whole characters only. */
  text: string;
  /** The ids of its tokens. */
  ids: number[];
  /** Why the answer ended, in its last piece. */
  finish: null | "eos" | "stop" | "length" | "aborted" | "tool_calls";
  /** What the model said to itself since the last piece, of an answer with tools. */
  reasoning?: string | undefined;
  /** The calls of an answer with tools, in its last piece. */
  toolCalls?: ToolCall[] | undefined;
  /** How many of the oldest messages left, of a conversation that slides. */
  left?: number | undefined;
}

/** Options of a training. */
export interface TrainOptions {
  /** How many steps to make: 200 by default. */
  steps?: number | undefined;
  /** The highest learning rate, 0 to 10; the folder names the default. */
  lr?: number | undefined;
  /** Chooses the order of the text: 0 by default. */
  seed?: number | bigint | undefined;
  /** Stops the training after a step. */
  signal?: AbortSignal | undefined;
}

/** The facts of a step of training. */
export interface Step {
  /** Its number, from 1. */
  step: number;
  /** The mean loss of its tokens. */
  loss: number;
  /** The length of the gradient. */
  norm: number;
  /** The learning rate. */
  rate: number;
  /** How long it took. */
  seconds: number;
  /** How many tokens the text has. */
  tokens: number;
}

/** Facts of the loaded model, and the device that runs it. */
export interface About {
  /** The name of the model. */
  name: string;
  /** The model's purpose. */
  kind: Folder["kind"];
  /** Where it runs. */
  target: "webgpu" | "wasm";
  /** Why that target. */
  why: string;
  /** Of memory. */
  bytes: number;
  /** Bytes over the network. */
  fetched: number;
  [fact: string]: unknown;
}

/** A training that runs in a page; another training of the same model takes its place. */
export interface PageTrainer {
  /** The trained model and its device. */
  readonly about: About;
  /** Trains on a text, step by step; leaving the loop stops. */
  train(text: string, options?: TrainOptions): AsyncGenerator<Step, void>;
  /** Generates text with the weights trained so far. */
  generate(prompt: string, options?: GenerateOptions): AsyncGenerator<Piece, void>;
  /** The files of what was trained. */
  files(): Promise<{ name: string; bytes: Uint8Array }[]>;
}

/** A model in a worker. */
export interface PageModel {
  /** Facts of the loaded model, and the device that runs it. */
  readonly about: About;
  /** The text that follows, piece by piece; leaving the loop stops the model. */
  generate(prompt: string | number[], options?: GenerateOptions): AsyncGenerator<Piece, void>;
  /** The answer to a conversation, of a model with a chat template. */
  chat(messages: Message[], options?: ChatOptions): AsyncGenerator<Piece, void>;
  /** A vector for each text, of a model that is an encoder. */
  embed(
    texts: string[],
    options?: { signal?: AbortSignal | undefined; progress?: ((done: number) => void) | undefined },
  ): Promise<Float32Array[]>;
  /** The vector of a picture, pixels of the model's own size, in the space of the texts'. */
  embedImage(rgba: Uint8ClampedArray): Promise<Float32Array>;
  /** A net's answer about pixels of its own size, [height, width] in `about.model.size`. */
  see(rgba: Uint8ClampedArray, options?: SeeOptions): Promise<Answer>;
  /** What is said in a sound of one channel at 16 kHz, piece by piece; leaving the loop stops. */
  transcribe(samples: Float32Array, options?: HearOptions): AsyncGenerator<Hearing, void>;
  /** Token ids of a text. */
  encode(text: string): Promise<number[]>;
  /** The text of token ids. */
  decode(ids: number[]): Promise<string>;
  /** A training, where the folder was exported with --train: "scratch" or "lora". */
  trainer(kind: string, options?: DeviceOptions): Promise<PageTrainer>;
  /** Ends the worker and frees what it held. */
  close(): void;
}

/** An object: `box` is left, top, right and bottom, from 0 to 1 within the net's input. */
export interface Thing {
  /** The name of its class. */
  label: string;
  /** Its probability. */
  score: number;
  /** Where it is. */
  box: [number, number, number, number];
}

/** A net's answer about a picture. */
export type Answer =
  | { task: "classify"; labels: { label: string; score: number }[] }
  | { task: "detect"; objects: Thing[] }
  | { task: "segment"; width: number; height: number; classes: Uint8Array; names: string[] }
  | { task: "depth"; width: number; height: number; values: Float32Array };

/** How much of it is wanted: objects more likely than `threshold` (0.5), `top` (5) classes. */
export interface SeeOptions {
  /** The least probability of an object. */
  threshold?: number | undefined;
  /** How many classes. */
  top?: number | undefined;
}

/** Options of hearing a sound. */
export interface HearOptions {
  /** A code such as "de"; found in the first window by default. */
  language?: string | undefined;
  /** "transcribe", the default, or "translate" to English. */
  task?: "transcribe" | "translate" | undefined;
  /** The model writes times: true by default. */
  timestamps?: boolean | undefined;
  /** One, or several to try in turn where a window's tokens repeat or are unlikely: 0 to 2. */
  temperature?: number | number[] | undefined;
  /** From 0 to 2^64 - 1, for temperatures above 0. */
  seed?: number | bigint | undefined;
  /** How many tokens a window has at most. */
  maxNewTokens?: number | undefined;
  /** The sound goes on: what is shorter than a window is not heard yet. */
  more?: boolean | undefined;
  /** Stops the model with an AbortError. */
  signal?: AbortSignal | undefined;
}

/** The text between two times, in seconds. */
export interface Segment {
  /** When it begins. */
  start: number;
  /** When it ends. */
  end: number;
  /** What is said. */
  text: string;
  /** Its ids, those of times too. */
  tokens: number[];
  /** The temperature that its window was written at. */
  temperature: number;
  /** The mean logarithm of its window's probabilities. */
  logprob: number;
  /** How many times smaller zlib makes its window's tokens. */
  ratio: number;
  /** How probable it is that nobody speaks in its window. */
  silence: number;
}

/** How far a sound is heard. */
export interface Hearing {
  /** What has been written since the last piece, or null. */
  segment: Segment | null;
  /** The text of a window that is not done: it may be written again. */
  growing: string;
  /** The second at which the next window begins. */
  at: number;
  /** Seconds of sound. */
  duration: number;
  /** A code, once it is known. */
  language: string | null;
}

/** A folder's content. */
export interface Folder {
  /** The name of the model. */
  name: string;
  /** The model's purpose: to write texts, to make vectors of them, to see, or to hear. */
  kind: "decoder" | "encoder" | "net" | "album" | "speech";
  /** Bytes of weights. */
  bytes: number;
  /** True if they are here already. */
  kept: boolean;
  /** Where an encoder is, within the folder. */
  search?: string | undefined;
  /** The terms of the model, where its folder names some. */
  terms?: Terms | undefined;
}

/** The terms of a model, from its folder and its card. */
export interface Terms {
  /** The name of the licence, or "". */
  licence: string;
  /** The models that it was made from. */
  base: string[];
  /** Files of the folder that hold the licence. */
  files: string[];
}

/** A folder's content, before anything large is fetched. */
export function describe(folder: string | URL, access?: Access): Promise<Folder>;
/** Loads a folder that `weft export web` wrote; rejects with a WeftError that says what to do. */
export function load(folder: string | URL, options?: LoadOptions): Promise<PageModel>;
/** Runs every kernel of a folder's Programs against reference values; fetches no weights. */
export function selftest(folder: string | URL, options?: LoadOptions): Promise<unknown>;
/** Indices of `rows`, the most similar to `query` first, with their cosines. */
export function ranked(
  query: ArrayLike<number>,
  rows: ArrayLike<number>[],
): { index: number; score: number }[];
