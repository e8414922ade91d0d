// Damages Programs and manifests in their structure: node fuzz.mjs PLAYER FOLDER COUNT SEED. The
// player takes what is sound, and else says a WeftError; what it takes stays within its places.

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [player, folder, count, seed] = process.argv.slice(2);
const js = (name) => import(pathToFileURL(path.join(player, name)).href);
const { WeftError, groups, readProgram } = await js("program.js");
const { readManifest } = await js("manifest.js");
const { GpuDevice } = await js("webgpu.js");
const { WasmDevice } = await js("wasm.js");
const { Sessions } = await js("session.js");

let state = Number(seed);
const random = (most) => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * most);
};
const ODD = [-1, 0, 1, 3, 1.5, 2 ** 31, 2 ** 53, 1e300, null, true, "", "x", "__proto__", "toString",
  "weight", "state", [], {}, [[]], "../x", "float16"];

/** One to three changes somewhere: another value, a neighbour's, one less, one twice. */
function damaged(whole) {
  const copy = structuredClone(whole);
  for (let n = 1 + random(3); n > 0; n--) {
    let at = copy;
    for (;;) {
      const keys = Object.keys(at);
      const key = keys[random(keys.length)];
      if (key === undefined) break;
      if (at[key] && typeof at[key] === "object" && random(6)) { at = at[key]; continue; }
      const how = random(6);
      if (how === 0 && Array.isArray(at)) at.splice(Number(key), 1);
      else if (how === 1 && Array.isArray(at)) at.push(structuredClone(at[key]));
      else if (how === 2) at[key] = structuredClone(at[keys[random(keys.length)]]);
      else if (how === 3 && typeof at[key] === "number") at[key] += random(3) * 256 - 256;
      else at[key] = structuredClone(ODD[random(ODD.length)]);
      break;
    }
  }
  return copy;
}

const seen = { taken: 0, refused: 0 };
async function attempt(what, act) {
  try {
    await act();
    seen.taken++;
  } catch (error) {
    if (!(error instanceof WeftError)) throw new Error(`${what}: ${error.stack}`);
    seen.refused++;
  }
}

/** A GPU that computes nothing and takes nothing that lies outside of its buffers. */
class Strict {
  limits = { maxBufferSize: 2 ** 40 };
  lost = new Promise(() => {});
  queue = { writeBuffer() {}, submit() {}, onSubmittedWorkDone: async () => {} };
  addEventListener() {}
  createBuffer = ({ size }) => ({ size });
  createBindGroupLayout = (about) => about;
  createPipelineLayout = (about) => about;
  createShaderModule = (about) => about;
  createComputePipelineAsync = async (about) => about;
  inside(buffer, offset, size) {
    if (!(offset >= 0 && size >= 0 && offset + size <= buffer.size)) throw new Error("outside");
  }

  createBindGroup({ layout, entries }) {
    if (layout.entries.length !== entries.length) throw new Error("another layout");
    for (const { resource: { buffer, offset = 0, size = buffer.size } } of entries) {
      if (offset % 256) throw new Error("an odd offset");
      this.inside(buffer, offset, size);
    }
    return {};
  }

  createCommandEncoder() {
    const pass = { setPipeline() {}, setBindGroup() {}, dispatchWorkgroups() {}, end() {} };
    return {
      beginComputePass: () => pass,
      copyBufferToBuffer: (from, at, to, start, size) => {
        this.inside(from, at, size);
        this.inside(to, start, size);
      },
      clearBuffer: (buffer, offset, size) => this.inside(buffer, offset, size),
      finish() {},
    };
  }
}

globalThis.GPUBufferUsage ??= { STORAGE: 1, COPY_SRC: 2, COPY_DST: 4, MAP_READ: 8 };
globalThis.GPUShaderStage ??= { COMPUTE: 1 };
const json = (name) => JSON.parse(readFileSync(path.join(folder, name), "utf8"));
const [gpu, wasm, manifest] = ["webgpu.json", "wasm.json", "manifest.json"].map(json);
const code = readFileSync(path.join(folder, "kernels.wasm"));
const PLAIN = { name: "kernels.wasm", threads: 1 };
const small = (program) => program.buffers.every((b) => b.nbytes < 2 ** 24)
  && program.steps.every((s) => s.kind !== "dispatch"
    || groups(s.grid, [1, 1, 1]).reduce((a, b) => a * b) < 1e4);

for (let n = 0; n < Number(count); n++) {
  await attempt("manifest", () => readManifest(damaged(manifest)));
  await attempt("webgpu", async () => {
    const program = readProgram(damaged(gpu.programs.decode));
    if (!small(program)) return;
    const sessions = new Sessions(new GpuDevice(new Strict(), gpu.shaders), { it: program });
    await sessions.prepare();
    await sessions.bound.get("it").run(program.scalars.map(() => 1));
  });
  await attempt("wasm", async () => {
    const program = readProgram(damaged(wasm.programs.decode));
    if (!small(program)) return;
    const sessions = new Sessions(await WasmDevice.make(code, wasm, PLAIN), { it: program });
    await sessions.prepare();
    await sessions.bound.get("it").run(program.scalars.map(() => 1));
  });
}
console.log(JSON.stringify(seen));
process.exit(0);
