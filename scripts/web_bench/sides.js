// What is measured, in the page: each side loads a model and writes the ids of its tokens.

/**
 * @typedef {{model: string, dtype: string, target: "wasm" | "webgpu", threads?: number, kept?: boolean}} Asked
 * @typedef {{write: (prompt: string, count: number, each: () => void) => Promise<string>, about?: any}} Side
 */

/** @type {Record<string, (asked: Asked) => Promise<Side>>} */
const SIDES = {
  async weft({ model, dtype, target, threads }) {
    const folder = `/pages/${model}-${dtype}/`;
    const { load } = await import(`${folder}weft.js`);
    const loaded = await load(folder, { target, threads });
    return {
      about: loaded.about,
      async write(prompt, count, each) {
        let out = "";
        for await (const { text, ids } of loaded.generate(prompt, { maxNewTokens: count })) {
          if (ids.length) each();
          out += text;
        }
        return out;
      },
    };
  },

  async transformers({ model, dtype, target, threads }) {
    const { AutoModelForCausalLM, AutoTokenizer, env } = await import(
      "/npm/@huggingface/transformers/dist/transformers.web.js");
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/onnx/" });
    env.backends.onnx.wasm.wasmPaths = "/npm/onnxruntime-web/dist/";
    if (threads) env.backends.onnx.wasm.numThreads = threads;
    const tokenizer = await AutoTokenizer.from_pretrained(model);
    const loaded = await AutoModelForCausalLM.from_pretrained(model, { dtype, device: target });
    return {
      async write(prompt, count, each) {
        let seen = 0;
        const streamer = { put: () => void (seen++ && each()), end() {} }; // the prompt comes first
        const out = await loaded.generate({
          ...tokenizer(prompt), max_new_tokens: count, min_new_tokens: count, do_sample: false, streamer,
        });
        return tokenizer.batch_decode(out, { skip_special_tokens: true })[0].slice(prompt.length);
      },
    };
  },

  async wllama({ model, dtype, target, threads, kept = false }) {
    const { Wllama } = await import("/npm/@wllama/wllama/esm/index.js");
    const loaded = new Wllama({ default: "/npm/@wllama/wllama/esm/wasm/wllama.wasm" },
      { suppressNativeLog: true });
    await loaded.loadModelFromUrl(new URL(`/gguf/${model}-${dtype}.gguf`, location.href).href, {
      n_ctx: 512, n_threads: threads, n_gpu_layers: target === "webgpu" ? 99 : 0, useCache: kept,
    });
    return {
      about: loaded.getLoadedContextInfo().n_ctx,
      async write(prompt, count, each) {
        let out = "";
        const stream = await loaded.createCompletion({
          prompt, max_tokens: count, temperature: 0, ignore_eos: true, cache_prompt: false, stream: true,
        });
        for await (const { choices } of stream) {
          if (!choices[0]?.finish_reason) each();
          out += choices[0]?.text ?? "";
        }
        return out;
      },
    };
  },
};

/**
 * Loads a side and writes texts.
 * @param {string} name @param {Asked} asked @param {string[]} prompts @param {number} count
 */
globalThis.measure = async (name, asked, prompts, count) => {
  const clicked = performance.now();
  const side = await SIDES[name](asked);
  const ready = performance.now();
  globalThis.side = side;
  const texts = [];
  for (const prompt of prompts) texts.push(await timed(side, prompt, count));
  return {
    about: side.about, clicked_at: performance.timeOrigin + clicked, load_ms: ready - clicked,
    first_token_ms: texts[0].begun + texts[0].first - clicked, texts,
  };
};

/** @param {Side} side @param {string} prompt @param {number} count */
globalThis.timed = async (side, prompt, count) => {
  const begun = performance.now();
  /** @type {number[]} */
  const at = [];
  const text = await side.write(prompt, count, () => at.push(performance.now() - begun));
  const rest = at.length - 1;
  return { begun, first: at[0], tokens: at.length, per_s: (1000 * rest) / (at[rest] - at[0]), text };
};

if (location.hash) { // asked by the address; the server is told
  const found = await measure(...JSON.parse(decodeURIComponent(location.hash.slice(1))))
    .catch((/** @type {Error} */ error) => ({ error: error.message.slice(0, 400) }));
  await fetch("/told", { method: "POST", body: JSON.stringify(found) });
}
