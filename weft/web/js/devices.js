// Chooses the device of a folder: a GPU, or WebAssembly if there is none or the model does not fit.

import { WeftError } from "./program.js";

/** @type {GPUFeatureName[]} of which the exporter writes shaders of their own */
const VARIANTS = ["shader-f16"];
const ANSWER = 20_000; // ms in which a GPU is found, or never will be

/** Chooses among the available devices. */
export class Devices {
  /**
   * @param {import("./folder.js").Folder} folder @param {import("./model.js").LoadOptions} options
   */
  constructor(folder, options) {
    this.folder = folder;
    this.options = options;
    this.why = ""; // it chose as it did
    this.unfit = ""; // why the GPU that is there cannot play this model
  }

  /** What plays, and the Programs for it. @param {number} [room] bytes for WebAssembly */
  async choose(room) {
    const adapter = await this.adapter();
    // a software WebGPU is many times slower than WebAssembly
    const software = adapter && this.options.target !== "webgpu" && imitates(adapter);
    const played = adapter && !software && await this.onGpu(adapter);
    if (played) return played;
    if (!software) return this.onWasm(room);
    this.why = "this browser's WebGPU is software, and WebAssembly is faster";
    try {
      return await this.onWasm(room);
    } catch (error) {
      const gpu = await this.onGpu(adapter);
      this.why = "WebAssembly does not play it here";
      if (!gpu) throw error;
      return gpu;
    }
  }

  /** @returns {Promise<GPUAdapter | null>} null where WebAssembly plays, `why` says why */
  async adapter() {
    const { target = "auto", gpu = globalThis.navigator?.gpu, powerPreference } = this.options;
    this.why = this.unfit || "as asked";
    if (target === "wasm" || this.unfit) return null;
    const found = gpu && await inTime(
      gpu.requestAdapter({ powerPreference }).catch(() => null), undefined);
    this.why = found ? "WebGPU is there" : !gpu ? `${HERE} has no WebGPU`
      : found === null ? `${HERE} has WebGPU, but no GPU that it would use` : SILENT;
    if (!found && target === "webgpu") throw new WeftError(`${this.why}: ${!gpu && IN_NODE
      ? "give it by the option gpu (npm's webgpu makes one)" : "try without asking for it"}`);
    return found ?? null;
  }

  /**
   * Returns the Programs and their device, or null if it is too small for them.
   * @param {GPUAdapter} adapter
   */
  async onGpu(adapter) {
    const feature = VARIANTS.find((name) =>
      adapter.features.has(name) && this.folder.manifest.files[`webgpu-${name}.json`]);
    const [{ programs, about }, { GpuDevice, tooLarge }] = await Promise.all([
      this.folder.programs(feature ? `webgpu-${feature}` : "webgpu"), import("./webgpu.js")]);
    const sizes = Object.values(programs).flatMap((p) => p.buffers.map((b) => b.nbytes));
    const [most, needed] = [adapter.limits.maxBufferSize, Math.max(0, ...sizes)];
    try {
      if (needed > most) throw new WeftError(tooLarge(needed, most));
      const device = await inTime(GpuDevice.make(adapter, about.shaders, feature), null);
      if (!device) throw new WeftError(SILENT);
      return { programs, device };
    } catch (error) {
      if (this.options.target === "webgpu") throw error;
      this.why = /** @type {Error} */ (error).message;
      return null;
    }
  }

  /** @param {number} [room] */
  async onWasm(room) {
    const [{ programs, about }, { WasmDevice, moduleName }] = await Promise.all([
      this.folder.programs("wasm"), import("./wasm.js")]);
    const code = await this.folder.part(moduleName());
    return { programs, device: await WasmDevice.make(code, about, { ...this.options, room }) };
  }
}

const SILENT = "the GPU does not answer";
const IN_NODE = Boolean(/** @type {any} */ (globalThis).process?.versions?.node);
const HERE = IN_NODE ? "Node" : "this browser";

/** @param {any} adapter @returns {boolean} whether it is software */
const imitates = ({ info, isFallbackAdapter }) =>
  Boolean(info?.isFallbackAdapter ?? isFallbackAdapter);

/** @template T, E @param {Promise<T>} news @param {E} otherwise @returns {Promise<T | E>} */
function inTime(news, otherwise) {
  /** @type {any} */
  let timer;
  const late = new Promise((done) => (timer = setTimeout(done, ANSWER, otherwise)));
  return Promise.race([news, late]).finally(() => clearTimeout(timer));
}
