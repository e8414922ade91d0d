// transformers.js's pipelines over load (npm's weft-ml/pipeline): its names, options and results.

import { WeftError, load } from "weft-ml";

import { classify, detect, judge } from "./pipeline_pictures.js";

/** @typedef {(model: any, input: any, options: any) => Promise<any>} Run */
/** @type {Record<string, [kind: string, options: string[], run: Run]>} */
const TASKS = {
  "text-generation": ["decoder", ["max_new_tokens", "do_sample", "temperature", "top_k", "top_p",
    "repetition_penalty", "seed", "return_full_text", "streamer"], write],
  "feature-extraction": ["encoder", [], embed],
  "image-classification": ["net", ["top_k"], classify],
  "object-detection": ["net", ["threshold", "percentage"], detect],
  "zero-shot-image-classification": ["album", ["labels", "hypothesis_template"], judge],
  "automatic-speech-recognition": ["speech", ["language", "task", "return_timestamps"], hear],
};

/** @type {Run} */
async function write(model, input, options) {
  const { max_new_tokens: maxNewTokens = 256, do_sample, temperature = 1, top_k: topK = 50,
    top_p: topP, repetition_penalty: repetitionPenalty, seed, streamer } = options;
  const how = do_sample ? { temperature, topK, topP, seed } : {};
  const call = typeof input === "string" ? "generate" : "chat";
  let content = "";
  for await (const { text } of model[call](input, { maxNewTokens, repetitionPenalty, ...how })) {
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
  const { name, kind: found } = model.about ?? model.manifest; // a page's model, or Node's
  const call = async (/** @type {any} */ input, /** @type {any[]} */ ...more) => {
    const given = kind === "album" ? { labels: more[0], ...more[1] } : more[0] ?? {};
    const odd = Object.keys(given).find((option) => !known.includes(option));
    if (odd) throw new WeftError(`${task} has no option ${odd}; it has ${known.join(", ")}`);
    return run(model, input, given);
  };
  if (found === kind) return Object.assign(call, { model, dispose: () => model.close() });
  model.close();
  throw new WeftError(`${name} cannot do ${task}: it is of kind ${found}, not ${kind}`);
}
