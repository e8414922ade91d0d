// Every kernel, once and alone, against what weft's interpreter gave at export (web/selftest.py).

import { ITEM, WeftError, soundly } from "./program.js";

/**
 * @typedef {{kernel: string, label: string, ok: boolean, error: number, allowed: number,
 *   ms: number, message?: string}} Tested `error` and `allowed` are shares of the largest result
 */

/** @param {import("./model.js").Model} model that need not be started @returns {Promise<any>} */
export async function selftest(model) {
  const { device, programs } = await model.devices.choose();
  const tests = await model.folder.parsed("selftest.json", (all) => all[device.kind]);
  const { devices: { why }, manifest: { name }, options: { progress } } = model;
  /** @type {Tested[]} */
  const kernels = [];
  for (const [kind, number, grid, results, least] of tests.kernels) {
    const step = programs[kind]?.steps[number];
    if (step?.kind !== "dispatch") throw new WeftError("selftest.json is of another export");
    const about = { kernel: step.kernel, label: step.label };
    try {
      const cut = { ...step, grid, least };
      const found = await tested(device, programs[kind], cut, tests, kind, results);
      kernels.push({ ...about, ...found });
    } catch (error) {
      if (device.isLost) throw error;
      const { message } = /** @type {Error} */ (error);
      kernels.push({ ...about, ok: false, error: NaN, allowed: 0, ms: 0, message });
    }
    progress?.({ loaded: kernels.length, total: tests.kernels.length, phase: "kernels" });
  }
  const [ok, target] = [kernels.every((k) => k.ok), device.kind];
  return { name, why, ok, target, ...hardware(device), kernels, untested: tests.untested };
}

/**
 * @param {any} device @param {import("./program.js").Program} program
 * @param {any} step its grid as numbers @param {any} tests @param {string} kind
 * @param {any[]} results
 */
async function tested(device, program, step, tests, kind, results) {
  const specs = step.args.map((/** @type {any} */ arg, /** @type {number} */ n) => {
    const [index, offset, nbytes] = arg;
    const dtype = step.dtypes[n];
    const known = tests.inputs[kind]?.[program.buffers[index].name];
    const data = soundly("selftest.json", () => content(step, n, nbytes, dtype, known, offset));
    return { name: `${n}`, role: "state", dtype, shape: [data.length], nbytes, data };
  });
  const places = specs.map((/** @type {any} */ s) => device.alloc(s.nbytes));
  try {
    specs.forEach((/** @type {any} */ s, /** @type {number} */ n) =>
      device.write(places[n], new Uint8Array(s.data.buffer, 0, s.nbytes)));
    const args = specs.map((/** @type {any} */ s, /** @type {number} */ n) => [n, 0, s.nbytes]);
    const constant = step.grid.map((/** @type {number} */ n) => ["Const", n, "int32"]);
    const steps = [{ ...step, args, grid: constant }];
    const alone = { ...program, buffers: specs, steps, inputs: [], outputs: [] };
    const run = await device.bind(alone, places);
    const begun = performance.now();
    await run(tests.scalars[kind]);
    await device.raw?.queue.onSubmittedWorkDone();
    const ms = performance.now() - begun;
    let worst = { ok: true, error: 0, allowed: 0 };
    for (const [n, ...result] of results) {
      const found = compared(numbers(await device.read(places[n]), step.dtypes[n]), result);
      if (!found.ok || (worst.ok && found.error >= worst.error)) worst = found;
    }
    return { ...worst, ms };
  } finally {
    device.free(places);
  }
}

/** @param {ArrayLike<number>} values @param {any[]} result */
function compared(values, [tolerance, most, sum, sizes, samples]) {
  const scale = Math.max(most, 1);
  let all = 0;
  let error = 0;
  for (let i = 0; i < values.length; i++) all += values[i];
  for (const [index, value] of samples) {
    error = Math.max(error, Math.abs(values[index] - value) / scale);
  }
  error = Math.max(error, Math.abs(all - sum) / Math.max(sizes, 1));
  return { ok: error <= tolerance + 1e-6, error, allowed: tolerance }; // the file has 7 digits
}

/**
 * An argument as it is before the kernel runs.
 * @param {any} step @param {number} n @param {number} nbytes @param {string} dtype
 * @param {[number[], number] | undefined} known @param {number} offset
 */
function content(step, n, nbytes, dtype, known, offset) {
  const size = nbytes / ITEM[/** @type {keyof typeof ITEM} */ (dtype)];
  if (dtype === "int32") {
    const from = offset / 4;
    return Int32Array.from({ length: size }, (_, i) =>
      (known && step.access[n] !== "w" ? known[0][from + i] ?? known[1] : 0));
  }
  const Kind = /** @type {any} */ ({ float32: Float32Array, uint32: Uint32Array,
    float16: Uint16Array, bfloat16: Uint16Array })[dtype] ?? Uint8Array;
  const out = new Kind(size);
  if (step.access[n] === "w") return out;
  const floats = table(dtype, step.least);
  for (let i = 0; i < size; i++) {
    let bits = Math.imul(i + n * 977 + 1, 0x9E3779B1);
    bits = Math.imul(bits ^ (bits >>> 15), 0x85EBCA6B);
    out[i] = floats ? floats[bits >>> 24] : dtype === "uint32" ? bits
      : dtype === "bool" ? bits >>> 31 : bits >>> 24;
  }
  return out;
}

/**
 * The floats that come in: multiples of 1/128 from least / 128 to below 1, as numbers or as bits.
 * @param {string} dtype @param {number} least @returns {ArrayLike<number> | null}
 */
function table(dtype, least) {
  const values = Float32Array.from({ length: 256 }, (_, n) => (least + n % (128 - least)) / 128);
  if (dtype === "float32") return values;
  if (dtype === "bfloat16") return new Uint32Array(values.buffer).map((bits) => bits >>> 16);
  if (dtype !== "float16") return null;
  return Uint16Array.from(values, (v) => {
    if (!v) return 0;
    const e = Math.floor(Math.log2(Math.abs(v)));
    return (v < 0 ? 0x8000 : 0) + ((e + 15) << 10) + (Math.abs(v) / 2 ** e - 1) * 1024;
  });
}

/** @param {Uint8Array} bytes @param {string} dtype @returns {ArrayLike<number>} */
function numbers({ buffer }, dtype) {
  if (dtype === "float16") return Float32Array.from(new Uint16Array(buffer), half);
  if (dtype === "bfloat16") {
    return new Float32Array(Uint32Array.from(new Uint16Array(buffer), (bits) => bits << 16).buffer);
  }
  const Kind = /** @type {any} */ ({ float32: Float32Array, int32: Int32Array, uint32: Uint32Array,
    int8: Int8Array })[dtype] ?? Uint8Array;
  return new Kind(buffer);
}

/** @param {number} bits */
function half(bits) {
  const [e, m] = [(bits >> 10) & 31, bits & 1023];
  const size = e === 31 ? (m ? NaN : Infinity) : e ? (1 + m / 1024) * 2 ** (e - 15) : m * 2 ** -24;
  return bits & 0x8000 ? -size : size;
}

/** What it ran on. @param {any} device */
function hardware({ raw }) {
  if (!raw) return {};
  const { vendor, architecture, device, description } = raw.adapterInfo ?? {};
  const limits = Object.fromEntries(Object.keys(Object.getPrototypeOf(raw.limits) ?? {})
    .concat(Object.keys(raw.limits)).filter((name) => typeof raw.limits[name] === "number")
    .map((name) => [name, raw.limits[name]]));
  const adapter = { vendor, architecture, device, description };
  return { adapter, features: [...raw.features], limits };
}
