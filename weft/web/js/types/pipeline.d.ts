// transformers.js's pipelines over weft: what `import { pipeline } from "weft-ml/pipeline"` gives.
/// <reference lib="dom" />
/// <reference lib="es2020" />

import type { LoadOptions, Message } from "./weft.js";

/** A picture: RGBA pixels of the model's own size; in a page also an address, a Blob, or what a canvas can draw. */
export type Picture = Uint8ClampedArray | string | URL | Blob | ImageBitmap | HTMLImageElement | HTMLCanvasElement;

/** Members of each pipeline beside its call. */
export interface Disposable {
  /** Ends the model. */
  dispose(): void;
}

/** Options of writing, by transformers.js's names. */
export interface TextGenerationOptions {
  /** How many tokens to write at most: 256 by default. */
  max_new_tokens?: number | undefined;
  /** Draws tokens; without it the likeliest is taken. */
  do_sample?: boolean | undefined;
  /** 1 by default, where tokens are drawn. */
  temperature?: number | undefined;
  /** 50 by default, where tokens are drawn. */
  top_k?: number | undefined;
  /** 1 by default, where tokens are drawn. */
  top_p?: number | undefined;
  /** 1 by default. */
  repetition_penalty?: number | undefined;
  /** From 0 to 2^64 - 1. */
  seed?: number | bigint | undefined;
  /** The result has the prompt too: true by default. */
  return_full_text?: boolean | undefined;
  /** Hears each new text as it comes. */
  streamer?: ((text: string) => void) | undefined;
}

/** Vectors of texts, row by row. */
export interface Features {
  /** The type of the numbers. */
  type: "float32";
  /** The numbers of all rows. */
  data: Float32Array;
  /** Rows and columns. */
  dims: number[];
  /** The rows as arrays. */
  tolist(): number[][];
}

/** A label and its probability. */
export interface Label {
  /** What it says. */
  label: string;
  /** Its probability. */
  score: number;
}

/** An object in a picture. */
export interface Detected extends Label {
  /** Where it is, in pixels of the picture. */
  box: { xmin: number; ymin: number; xmax: number; ymax: number };
}

/** What was said. */
export interface Transcript {
  /** The whole text. */
  text: string;
  /** Its parts, where times are asked for. */
  chunks?: { timestamp: [number, number]; text: string }[] | undefined;
}

/** Writes a text, or the answer to a conversation. */
export interface TextGeneration extends Disposable {
  (text: string, options?: TextGenerationOptions): Promise<{ generated_text: string }[]>;
  (chat: Message[], options?: TextGenerationOptions): Promise<{ generated_text: Message[] | string }[]>;
}

/** The function of each task. */
export interface Pipelines {
  /** Of a decoder. */
  "text-generation": TextGeneration;
  /** Of an encoder, which pools as its folder says. */
  "feature-extraction": ((texts: string | string[]) => Promise<Features>) & Disposable;
  /** Of a net. */
  "image-classification":
    ((image: Picture, options?: { top_k?: number | null | undefined }) => Promise<Label[]>) & Disposable;
  /** Of a net. */
  "object-detection": ((
    image: Picture,
    options?: { threshold?: number | undefined; percentage?: boolean | undefined },
  ) => Promise<Detected[]>) & Disposable;
  /** Of CLIP or SigLIP. */
  "zero-shot-image-classification": ((
    image: Picture, labels: string[], options?: { hypothesis_template?: string | undefined },
  ) => Promise<Label[]>) & Disposable;
  /** Of Whisper: samples of one channel at 16 kHz, a code such as "de". */
  "automatic-speech-recognition": ((
    samples: Float32Array,
    options?: {
      language?: string | undefined;
      task?: "transcribe" | "translate" | undefined;
      return_timestamps?: boolean | undefined;
    },
  ) => Promise<Transcript>) & Disposable;
}

/** A function that does a task with a folder that `weft export web` wrote. */
export function pipeline<T extends keyof Pipelines>(
  task: T, folder: string, options?: LoadOptions,
): Promise<Pipelines[T]>;
