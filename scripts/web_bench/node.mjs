// A page's folder in Node on npm's `webgpu` (Dawn): what a token costs this thread, one line of JSON.
//
//     node node.mjs FOLDER
//
// NODE_MODULES has the package webgpu; VK_ICD_FILENAMES may name SwiftShader's driver. Dawn asks for the GPU's answer again and again while this
// thread waits, which is in its CPU time; `in_calls_ms` is what passes inside calls of WebGPU.

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { counted, perToken } from "./counts.js";

const [folder] = process.argv.slice(2);
const { NODE_MODULES = "" } = process.env;
const PROMPT = "The first thing that a reader should know about this machine is that it has no head, and so";
const TOKENS = 24;
const { create, globals } = await import(pathToFileURL(path.join(NODE_MODULES, "webgpu/index.js")).href);
Object.assign(globalThis, globals);
const { load } = await import(pathToFileURL(path.resolve(folder, "node.js")).href);
const gpu = create([]);
const { vendor, architecture, description } = (await gpu.requestAdapter()).info;
const model = await load(folder, { gpu, target: "webgpu" });

/** @param {number} count */
async function write(count) {
  for await (const _ of model.generate(PROMPT, { maxNewTokens: count }));
}

const cpu = () => Number(readFileSync(`/proc/self/task/${process.pid}/schedstat`, "utf8").split(" ")[0]) / 1e6;
counted();
const inside = timed();
await write(4);
const { thread_ms, in_calls_ms, ...calls } = await perToken(TOKENS, async (count) => {
  globalThis.take();
  inside.ms = 0;
  const before = cpu();
  await write(count);
  return { thread_ms: cpu() - before, in_calls_ms: inside.ms, ...globalThis.take() };
});
console.log(JSON.stringify({
  folder: path.basename(folder), node: process.version, adapter: { vendor, architecture, description },
  thread_ms, in_calls_ms, calls,
}));
process.exit(0); // Dawn keeps a thread

/** Adds up the milliseconds inside calls of WebGPU from now on. */
function timed() {
  const sum = { ms: 0 };
  for (const [kind, names] of Object.entries({
    GPUQueue: ["submit", "writeBuffer"], GPUDevice: ["createCommandEncoder"],
    GPUCommandEncoder: ["beginComputePass", "copyBufferToBuffer", "clearBuffer", "finish"],
    GPUComputePassEncoder: ["setPipeline", "setBindGroup", "dispatchWorkgroups", "end"],
    GPUBuffer: ["mapAsync", "getMappedRange", "unmap"],
  })) {
    const own = globalThis[kind].prototype;
    for (const name of names) {
      const call = own[name];
      own[name] = function (...args) {
        const from = performance.now();
        const made = call.apply(this, args);
        sum.ms += performance.now() - from;
        return made;
      };
    }
  }
  return sum;
}
