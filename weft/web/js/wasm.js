// A Program on WebAssembly: buffers are places in one memory, a kernel is an export k<n>. Where the
// page may share memory, threads (thread.js) take groups of a kernel's grid: the bits are the same.

import { WeftError, groups, whole } from "./program.js";
import { ACTIVE, CALL, FAILED, NEXT, OPEN, SLEEPERS, SLOTS, kernelsOf, play } from "./thread.js";

const PAGE = 65536;
const STACK = 1 << 20;
const ALIGN = 256;
const MOST = 4 * 2 ** 30;
const BREATH = 30; // ms of work, after which messages are looked at: a stop may be one
const WORK = 2e8; // floating-point operations of one call, where a kernel has more
const CHUNKS = 8; // of a grid that each thread takes, if all are as fast
const SHARED = 3; // flags of a memory that threads share, with a limit
// (module (func (drop (v128.const 0)))), which a browser without SIMD refuses
const SIMD = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 23, 1, 21, 0, 253, 12,
  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 26, 11);

/** @typedef {{at: number, nbytes: number}} Place */

/** @typedef {{modules: Record<string, [start: number, flags: number]>, scratch: number}} About */

// A module of one function that uses i8x16.relaxed_swizzle.
const RELAXED = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10,
  15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11);
const THREADS = 8; // at most

/** The module that runs fastest on this machine: its name in wasm.json. */
export const moduleName = () =>
  globalThis.WebAssembly?.validate(RELAXED) ? "kernels-relaxed.wasm" : "kernels.wasm";

/**
 * The number of threads that a page may have, and the reason for the limit.
 * @param {number} [asked] @param {any} [Worker] what makes them
 */
export function threadsOf(asked, Worker = globalThis.Worker) {
  if (globalThis.crossOriginIsolated === false) {
    return { count: 1, why: "the server sends no COOP and COEP" };
  }
  if (!Worker) return { count: 1, why: "no workers here" };
  const cores = globalThis.navigator?.hardwareConcurrency ?? 1;
  return { count: Math.max(1, Math.min(asked ?? cores, THREADS)), why: "" };
}

/** Runs Programs in WebAssembly. */
export class WasmDevice {
  /**
   * @param {Uint8Array} code a module of the folder
   * @param {About} about
   * @param {{name?: string, threads?: number, room?: number, Worker?: any}} [options] `name`: which
   *   of the modules it is; `room`: bytes of all that will be placed; `Worker`: what makes threads
   */
  static async make(code, about, options = {}) {
    const { name = moduleName(), threads, room = MOST, Worker = globalThis.Worker } = options;
    if (!globalThis.WebAssembly?.validate(SIMD)) {
      throw new WeftError("this browser has neither WebGPU nor WebAssembly with SIMD: update it, "
        + "or use another");
    }
    const [start, flags] = about.modules?.[name] ?? [];
    if (!whole(start) || !whole(about.scratch) || start + about.scratch > MOST / 4
      || !whole(flags) || code[flags] !== 1) {
      throw new WeftError("wasm.json is damaged: export the folder again");
    }
    const found = threadsOf(threads, Worker);
    const begun = async (/** @type {{count: number, why: string}} */ how) => {
      const device = new WasmDevice(start, about.scratch, how, room);
      device.relaxed = name !== "kernels.wasm";
      await device.begin(code, name, flags, Worker).catch((error) => {
        device.close();
        throw error;
      });
      return device;
    };
    if (found.count === 1) return begun(found);
    return begun(found).catch(() =>
      begun({ count: 1, why: "the browser refused what threads need" }));
  }

  /**
   * @param {Uint8Array} code @param {string} name
   * @param {number} flags where those of its memory stand @param {any} Worker
   */
  async begin(code, name, flags, Worker) {
    const bytes = this.count > 1 ? Uint8Array.from(code) : code;
    if (this.count > 1) bytes[flags] = SHARED;
    try {
      const module = await WebAssembly.compile(/** @type {any} */ (bytes));
      this.kernels = await kernelsOf(module, this.memory, this.tops[0]);
      await this.spawn(module, Worker);
    } catch (error) {
      throw new WeftError(`${name} is refused (${/** @type {Error} */ (error).message}): does `
        + "the page's Content-Security-Policy allow 'wasm-unsafe-eval'?", { cause: error });
    }
  }

  /**
   * @param {number} start @param {number} scratch @param {{count: number, why: string}} found
   * @param {number} room
   */
  constructor(start, scratch, found, room) {
    this.kind = "wasm";
    this.isLost = false;
    this.relaxed = false;
    this.count = found.count;
    this.why = found.why;
    this.control = round(start, ALIGN);
    // each thread's stack grows down to the one before it, its scratch lies above
    this.top = this.control + round(4 * SLOTS, ALIGN);
    const each = STACK + round(scratch, ALIGN);
    this.tops = Array.from({ length: this.count }, (_, n) => this.top + n * each + STACK);
    this.top += this.count * each;
    const shared = this.count > 1; // then its most is set aside at once, which phones refuse
    const most = shared ? Math.min(this.top + room, MOST) : MOST;
    try {
      this.memory = new WebAssembly.Memory({
        initial: Math.ceil(this.top / PAGE), maximum: Math.ceil(most / PAGE), shared,
      });
    } catch {
      throw refused(this.top);
    }
    this.shared = new Int32Array(this.memory.buffer, this.control, SLOTS);
    this.turn = 0;
    this.breathed = performance.now();
    /** @type {Worker[]} */
    this.workers = [];
    /** @type {Record<string, (...args: number[]) => void>} */
    this.kernels = {};
  }

  /** Starts the other threads. @param {WebAssembly.Module} module @param {any} Worker */
  async spawn(module, Worker) {
    await Promise.all(this.tops.slice(1).map((top) => new Promise((done, fail) => {
      const worker = new Worker(new URL("./thread.js", import.meta.url),
        { type: "module", name: "weft-thread" });
      this.workers.push(worker);
      const failed = (/** @type {string} */ why) => fail(new WeftError(`a thread failed: ${why}`));
      worker.onmessage = (/** @type {{data: string}} */ { data }) =>
        (data ? failed(data) : done(data));
      worker.onerror = (/** @type {{message: string}} */ { message }) => failed(message);
      worker.postMessage({ module, memory: this.memory, control: this.control, top });
    })));
  }

  /** Ends the other threads. */
  close() {
    for (const worker of this.workers) worker.terminate();
  }

  /** The text for the page's panel. */
  about() {
    return {
      Threads: this.why ? `${this.count}: ${this.why}` : this.count,
      SIMD: this.relaxed ? "128 bits, relaxed" : "128 bits",
    };
  }

  /** Bytes in use. */
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
      throw refused(top);
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
      if (!whole(step.code) || !this.kernels[`k${step.code}`]) {
        throw new WeftError(`kernels.wasm has no kernel ${step.code}: export the folder again`);
      }
      const list = this.alloc(4 * step.args.length);
      this.write(list, new Uint8Array(Uint32Array.from(step.args, at).buffer));
      return (/** @type {number[]} */ values) => this.calls(step, list.at, scalars.at, values);
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
   * @param {any} step @param {number} list @param {number} scalars @param {number[]} values
   */
  *calls(step, list, scalars, values) {
    const [x, y, z] = groups(step.grid, values);
    const all = x * y * z;
    const size = Math.ceil(all / Math.max(1, step.flops / WORK));
    for (let from = 0; from < all; from += size) {
      this.play([step.code, list, scalars, x, y, z, from, Math.min(from + size, all)]);
      yield;
    }
  }

  /** Plays groups of a kernel, by as many threads as come in time. @param {number[]} call */
  play(call) {
    const { shared } = this;
    const [code, list, scalars, x, y, z, from, to] = call;
    if (this.count === 1 || to - from === 1) {
      return this.kernels[`k${code}`](list, scalars, x, y, z, from, to, this.tops[0]);
    }
    const chunk = Math.max(1, Math.floor((to - from) / (this.count * CHUNKS)));
    shared.set([code, list, scalars, x, y, z, to, chunk], CALL);
    Atomics.store(shared, NEXT, from);
    this.turn = (this.turn % 2 ** 30) + 1;
    Atomics.store(shared, OPEN, this.turn);
    if (Atomics.load(shared, SLEEPERS)) Atomics.notify(shared, OPEN);
    try {
      play(shared, this.kernels, this.tops[0]);
    } finally {
      Atomics.store(shared, OPEN, 0);
      while (Atomics.load(shared, ACTIVE));
    }
    if (Atomics.exchange(shared, FAILED, 0)) throw new WebAssembly.RuntimeError("in a thread");
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
const refused = (bytes) => new WeftError(
  `the browser gives no ${Math.ceil(bytes / 2 ** 20)} MiB of memory: close other tabs, or take a `
  + "smaller model");
