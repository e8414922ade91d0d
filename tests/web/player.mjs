// Plays Programs for the tests as a page would: `node player.mjs PLAYER_FOLDER wasm|webgpu`.
// A message each way: its JSON's bytes (uint32), its data's bytes (uint32), both.

import { pathToFileURL } from "node:url";
import path from "node:path";

const [folder, kind] = process.argv.slice(2);
const js = (name) => import(pathToFileURL(path.join(folder, name)).href);
const { readProgram } = await js("program.js");
const { WasmDevice } = await js("wasm.js");
const { GpuDevice } = await js("webgpu.js");
const { Thread } = await js("node_thread.js");

const bound = new Map();
let gpu = null;
if (kind === "webgpu") {
  const { create, globals } = await import("webgpu");
  Object.assign(globalThis, globals);
  gpu = create([]);
}

const CALLS = {
  async bind({ id, program, shaders, about }, code) {
    const read = readProgram(program);
    const device = kind === "wasm"
      ? await WasmDevice.make(code, about, { ...about, Worker: Thread })
      : await GpuDevice.make(await gpu.requestAdapter(), shaders);
    const errors = [];
    device.raw?.addEventListener("uncapturederror", (event) => errors.push(event.error.message));
    const places = read.buffers.map((b) => device.alloc(b.nbytes));
    bound.set(id, { device, read, places, errors, run: await device.bind(read, places) });
    return [{}, []];
  },
  async run({ id, scalars }, data) {
    const { device, read, places, run, errors } = bound.get(id);
    let at = 0;
    read.buffers.forEach((b, n) => {
      device.write(places[n], data.subarray(at, at + b.nbytes));
      at += b.nbytes;
    });
    await run(scalars);
    const out = await Promise.all(read.buffers.map((b, n) => device.read(places[n], b.nbytes)));
    if (errors.length) throw new Error(errors.splice(0).join("\n"));
    return [{}, out];
  },
  async drop({ id }) {
    bound.get(id)?.device.raw?.destroy();
    bound.get(id)?.device.close?.();
    bound.delete(id);
    return [{}, []];
  },
};

function answer(head, parts) {
  const json = Buffer.from(JSON.stringify(head));
  const sizes = Buffer.alloc(8);
  sizes.writeUInt32LE(json.length, 0);
  sizes.writeUInt32LE(parts.reduce((sum, p) => sum + p.length, 0), 4);
  process.stdout.write(Buffer.concat([sizes, json, ...parts]));
}

let held = Buffer.alloc(0);
let turn = Promise.resolve();
process.stdin.on("data", (chunk) => {
  held = Buffer.concat([held, chunk]);
  while (held.length >= 8 && held.length >= 8 + held.readUInt32LE(0) + held.readUInt32LE(4)) {
    const [head, data] = [held.readUInt32LE(0), held.readUInt32LE(4)];
    const { call, ...args } = JSON.parse(held.subarray(8, 8 + head).toString());
    const bytes = Uint8Array.from(held.subarray(8 + head, 8 + head + data));
    held = held.subarray(8 + head + data);
    turn = turn.then(() => CALLS[call](args, bytes)).then(
      ([said, parts]) => answer(said, parts), (error) => answer({ error: error.message }, []));
  }
});
process.stdin.on("end", () => process.exit(0));
