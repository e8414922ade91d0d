// A Program on WebAssembly: buffers are places in one memory, a kernel is an export k<n>.

import { WeftError, groups } from "./program.js";

const PAGE = 65536;
const STACK = 1 << 20;
const ALIGN = 256;
const MOST = 4 * 2 ** 30;

/** @typedef {{at: number, nbytes: number}} Place */

/** What plays Programs in WebAssembly. */
export class WasmDevice {
  /**
   * @param {WebAssembly.Module} module kernels.wasm
   * @param {{start: number, scratch: number}} about where its constants end; room for a kernel
   */
  static async make(module, about) {
    const device = new WasmDevice(about);
    const env = {
      __linear_memory: device.memory,
      __stack_pointer: new WebAssembly.Global({ value: "i32", mutable: true }, device.stack),
      // what C calls for the rest of a division
      fmodf: (/** @type {number} */ a, /** @type {number} */ b) => a % b,
    };
    const instance = await WebAssembly.instantiate(module, { env });
    device.kernels = /** @type {any} */ (instance.exports);
    return device;
  }

  /** @param {{start: number, scratch: number}} about */
  constructor(about) {
    this.kind = "wasm";
    this.isLost = false;
    this.stack = round(about.start, ALIGN) + STACK;
    this.scratch = this.stack;
    this.top = this.scratch + round(about.scratch, ALIGN);
    this.memory = new WebAssembly.Memory({ initial: Math.ceil(this.top / PAGE) });
    /** @type {Record<string, (...args: number[]) => void>} */
    this.kernels = {};
  }

  /** Bytes that are taken. */
  get bytes() {
    return this.memory.buffer.byteLength;
  }

  /** @param {number} nbytes @returns {Place} */
  alloc(nbytes) {
    const at = this.top;
    const top = at + round(Math.max(nbytes, 1), ALIGN);
    const pages = Math.ceil((top - this.memory.buffer.byteLength) / PAGE);
    try {
      if (top > MOST) throw new RangeError();
      if (pages > 0) this.memory.grow(pages);
    } catch {
      throw new WeftError(`the browser gives no ${mib(top)} MiB of memory: close other tabs, or `
        + "take a smaller model");
    }
    this.top = top;
    return { at, nbytes };
  }

  /** @param {Place} place @param {Uint8Array} data @param {number} [offset] */
  write(place, data, offset = 0) {
    new Uint8Array(this.memory.buffer, place.at + offset, data.length).set(data);
  }

  /** @param {Place} place @param {number} [nbytes] @returns {Promise<Uint8Array>} a copy */
  async read(place, nbytes = place.nbytes) {
    return new Uint8Array(this.memory.buffer, place.at, nbytes).slice();
  }

  /**
   * A Program over these places, one for each of its buffers, as a function of the runtime scalars.
   * @param {import("./program.js").Program} program @param {Place[]} places
   * @returns {Promise<(scalars: number[]) => void>}
   */
  async bind(program, places) {
    const scalars = this.alloc(4 * Math.max(program.scalars.length, 1));
    const at = (/** @type {import("./program.js").Ref} */ ref) => places[ref[0]].at + ref[1];
    const steps = program.steps.map((step) => {
      if (step.kind === "copy") {
        const [from, to, size] = [at(step.from), at(step.to), step.to[2]];
        return () => new Uint8Array(this.memory.buffer).copyWithin(to, from, from + size);
      }
      if (step.kind === "fill") {
        const [to, size, byte] = [at(step.to), step.to[2], step.byte];
        return () => new Uint8Array(this.memory.buffer).fill(byte, to, to + size);
      }
      const kernel = this.kernels[`k${step.code}`];
      if (!kernel) throw new WeftError(`kernels.wasm has no kernel ${step.code}: export again`);
      const list = this.alloc(4 * step.args.length);
      this.write(list, new Uint8Array(Uint32Array.from(step.args, at).buffer));
      return (/** @type {number[]} */ values) => {
        const [x, y, z] = groups(step.grid, values);
        if (x) kernel(list.at, scalars.at, x, y, z, 0, x * y * z, this.scratch);
      };
    });
    return (values) => {
      this.write(scalars, new Uint8Array(Int32Array.from(values).buffer));
      for (const step of steps) step(values);
    };
  }
}

/** @param {number} n @param {number} by */
export const round = (n, by) => Math.ceil(n / by) * by;

/** @param {number} bytes */
const mib = (bytes) => Math.ceil(bytes / 2 ** 20);
