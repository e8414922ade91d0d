// transformers.js's pipelines over load (npm's weft-ml/pipeline): its names, options and results.

import { WeftError, load } from "weft-ml";

import { BOOLEAN, FUNCTION, GENERATE, TEXT, TEXTS, allowed, count, fit } from "./options.js";
import { classify, detect, judge } from "./pipeline_pictures.js";

/** @typedef {(model: any, input: any, options: any) => Promise<any>} Run */
/** @typedef {import("./options.js").Rule} Rule */
const { maxNewTokens, temperature, topK, topP, repetitionPenalty, seed } = GENERATE;
/** @type {Record<string, [kind: string, options: Record<string, Rule>, run: Run]>} */
const TASKS = {
  "text-generation": ["decoder", { max_new_tokens: maxNewTokens, do_sample: BOOLEAN, temperature,
    top_k: topK, top_p: topP, repetition_penalty: repetitionPenalty, seed,
    return_full_text: BOOLEAN, streamer: FUNCTION }, write],
  "feature-extraction": ["encoder", {}, embed],
  "image-classification": ["net", {
    top_k: [(v) => v === null || count(1)[0](v), "a whole number from 1 on, or null"] }, classify],
  "object-detection": ["net", {
    threshold: [(v) => v >= 0 && v <= 1, "a number from 0 to 1"], percentage: BOOLEAN }, detect],
  "zero-shot-image-classification": ["album", { hypothesis_template: TEXT }, judge],
  "automatic-speech-recognition": ["speech", {
    language: TEXT, task: TEXT, return_timestamps: BOOLEAN }, hear],
};

/** @type {Run} */
async function write(model, input, options) {
  const { max_new_tokens: most = 256, do_sample, temperature: heat = 1, streamer } = options;
  const drawn = { temperature: heat, topK: options.top_k ?? 50, topP: options.top_p,
    seed: options.seed };
  const how = { maxNewTokens: most, repetitionPenalty: options.repetition_penalty,
    ...do_sample && drawn };
  fit(input, [(v) => TEXT[0](v) || Array.isArray(v), "a text or a list of messages"], "the input");
  const call = typeof input === "string" ? "generate" : "chat";
  let content = "";
  for await (const { text } of model[call](input, how)) {
    content += text;
    streamer?.(text);
  }
  if (options.return_full_text === false) return [{ generated_text: content }];
  const answer = { role: "assistant", content };
  return [{ generated_text: call === "chat" ? [...input, answer] : input + content }];
}

/** @type {Run} */
async function embed(model, input) {
  const rows = (await model.embed([input].flat())).map((/** @type {any} */ row) => [...row]);
  const dims = [rows.length, rows[0]?.length ?? 0];
  return { type: "float32", data: Float32Array.from(rows.flat()), dims, tolist: () => rows };
}

/** @type {Run} */
async function hear(model, input, { return_timestamps: timestamps = false, ...options }) {
  const chunks = [];
  for await (const { segment } of model.transcribe(input, { timestamps, ...options })) {
    if (segment) chunks.push({ timestamp: [segment.start, segment.end], text: segment.text });
  }
  const text = chunks.map((chunk) => chunk.text).join("");
  return timestamps ? { text, chunks } : { text };
}

/**
 * A function that does a task with a folder that `weft export web` wrote.
 * @param {string} task @param {string} folder @param {import("./model.js").LoadOptions} [options]
 * @returns {Promise<any>} with `model` and `dispose()`
 */
export async function pipeline(task, folder, options) {
  const [kind, known, run] = Object.hasOwn(TASKS, task) ? TASKS[task] : [];
  if (!known || !run) {
    const all = Object.keys(TASKS).join(", ");
    throw new WeftError(`pipeline has no task ${task}; it has ${all}`);
  }
  /** @type {any} */
  const model = await load(folder, options);
  const { name, kind: found } = model.about;
  const call = async (/** @type {any} */ input, /** @type {any[]} */ ...more) => {
    const given = allowed(more[kind === "album" ? 1 : 0] ?? {}, known, task);
    const labels = kind === "album" && { labels: fit(more[0], TEXTS, "the list of labels") };
    return run(model, input, { ...given, ...labels });
  };
  if (found === kind) return Object.assign(call, { model, dispose: () => model.close() });
  model.close();
  throw new WeftError(`${name} cannot do ${task}: it is of kind ${found}, not ${kind}`);
}
