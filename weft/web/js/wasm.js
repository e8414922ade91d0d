// A Program on WebAssembly: buffers are places in one memory, a kernel is an export k<n>.

import { WeftError, groups, whole } from "./program.js";

const PAGE = 65536;
const STACK = 1 << 20;
const ALIGN = 256;
const MOST = 4 * 2 ** 30;
const BREATH = 30; // ms of work, after which messages are looked at: a stop may be one
const WORK = 2e8; // floating-point operations of one call, where a kernel has more
// (module (func (drop (v128.const 0)))), which a browser without SIMD refuses
const SIMD = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 23, 1, 21, 0, 253, 12,
  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 26, 11);

/** @typedef {{at: number, nbytes: number}} Place */

/** What plays Programs in WebAssembly. */
export class WasmDevice {
  /**
   * @param {Uint8Array} code kernels.wasm
   * @param {{start: number, scratch: number}} about where its constants end; room for a kernel
   */
  static async make(code, about) {
    if (!globalThis.WebAssembly?.validate(SIMD)) {
      throw new WeftError("this browser has neither WebGPU nor WebAssembly with SIMD: update it, or "
        + "use another");
    }
    if (!whole(about.start) || !whole(about.scratch) || about.start + about.scratch > MOST / 4) {
      throw new WeftError("wasm.json is damaged: export the folder again");
    }
    const device = new WasmDevice(about);
    const env = {
      __linear_memory: device.memory,
      __stack_pointer: new WebAssembly.Global({ value: "i32", mutable: true }, device.stack),
      // what C calls for the rest of a division
      fmodf: (/** @type {number} */ a, /** @type {number} */ b) => a % b,
    };
    try {
      const made = await WebAssembly.instantiate(/** @type {any} */ (code), { env });
      device.kernels = /** @type {any} */ (made.instance.exports);
    } catch (error) {
      throw new WeftError(`kernels.wasm is refused (${/** @type {Error} */ (error).message}): does `
        + "the page's Content-Security-Policy allow 'wasm-unsafe-eval'?", { cause: error });
    }
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
    this.breathed = performance.now();
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

  /** Gives back what was taken since `first`, and `first`. @param {Place[]} places */
  free([first]) {
    this.top = first?.at ?? this.top;
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
   * @returns {Promise<(scalars: number[], signal?: AbortSignal) => Promise<void>>}
   */
  async bind(program, places) {
    const scalars = this.alloc(4 * Math.max(program.scalars.length, 1));
    const at = (/** @type {import("./program.js").Ref} */ ref) => places[ref[0]].at + ref[1];
    /** @type {((values: number[]) => Iterable<void> | undefined)[]} */
    const steps = program.steps.map((step) => {
      if (step.kind === "copy") {
        const [from, to, size] = [at(step.from), at(step.to), step.to[2]];
        return () => void new Uint8Array(this.memory.buffer).copyWithin(to, from, from + size);
      }
      if (step.kind === "fill") {
        const [to, size, byte] = [at(step.to), step.to[2], step.byte];
        return () => void new Uint8Array(this.memory.buffer).fill(byte, to, to + size);
      }
      const kernel = this.kernels[`k${step.code}`];
      if (!whole(step.code) || !kernel) {
        throw new WeftError(`kernels.wasm has no kernel ${step.code}: export the folder again`);
      }
      const list = this.alloc(4 * step.args.length);
      this.write(list, new Uint8Array(Uint32Array.from(step.args, at).buffer));
      return (/** @type {number[]} */ values) => this.calls(step, kernel, list.at, scalars.at, values);
    });
    return async (values, signal) => {
      this.write(scalars, new Uint8Array(Int32Array.from(values).buffer));
      try {
        for (const step of steps) {
          for (const _ of step(values) ?? []) await this.breathe(signal);
        }
      } catch (error) {
        if (!(error instanceof WebAssembly.RuntimeError)) throw error;
        throw new WeftError(`a kernel failed (${error.message}): export the folder again`);
      }
    };
  }

  /**
   * Calls a kernel, for a part of its groups at a time where it has much to do.
   * @param {any} step @param {Function} kernel @param {number} list @param {number} scalars
   * @param {number[]} values
   */
  *calls(step, kernel, list, scalars, values) {
    const [x, y, z] = groups(step.grid, values);
    const all = x * y * z;
    const size = Math.ceil(all / Math.max(1, step.flops / WORK));
    for (let from = 0; from < all; from += size) {
      kernel(list, scalars, x, y, z, from, Math.min(from + size, all), this.scratch);
      yield;
    }
  }

  /** Lets messages in, if it is time. @param {AbortSignal} [signal] */
  async breathe(signal) {
    if (performance.now() - this.breathed < BREATH) return;
    await new Promise((done) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => (port1.close(), done(undefined));
      port2.postMessage(0);
    });
    this.breathed = performance.now();
    signal?.throwIfAborted();
  }
}

/** @param {number} n @param {number} by */
export const round = (n, by) => Math.ceil(n / by) * by;

/** @param {number} bytes */
const mib = (bytes) => Math.ceil(bytes / 2 ** 20);
