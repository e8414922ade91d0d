// A Program on WebGPU: buffers and bind groups made once, pipelines built while weights arrive.

import { READ_ONLY, WeftError, groups, soundly, whole } from "./program.js";

const MOST_GROUPS = 65535;
const UNIT = 16; // bytes by which buffers grow
// A submit is short, so that neither the page nor a watchdog stalls, and few are in flight, so
// that a stop takes effect at once.
const PER_SUBMIT = 64; // steps
const WORK = 5e8; // floating-point operations
const UNDER_WAY = 2;
const NEWS = 200; // ms by which the news of a loss may come after what it broke

/** Runs Programs on WebGPU. */
export class GpuDevice {
  /**
   * @param {GPUAdapter} adapter @param {string[]} shaders WGSL of webgpu.json
   * @param {GPUFeatureName} [feature] that these shaders use
   */
  static async make(adapter, shaders, feature) {
    const limits = adapter.limits;
    const raw = await adapter.requestDevice({
      requiredFeatures: feature ? [feature] : [],
      requiredLimits: {
        maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
        maxBufferSize: limits.maxBufferSize,
      },
    });
    return new GpuDevice(raw, shaders, adapter.info);
  }

  /** @param {GPUDevice} raw @param {string[]} shaders @param {GPUAdapterInfo} info */
  constructor(raw, shaders, info) {
    this.kind = "webgpu";
    this.info = info;
    this.raw = raw;
    this.shaders = shaders;
    this.bytes = 0;
    this.isLost = false;
    /** @type {Map<string, {layout: GPUBindGroupLayout, pipeline: GPUPipelineLayout}>} */
    this.layouts = new Map();
    /** @type {Map<number, Promise<GPUComputePipeline>>} */
    this.pipelines = new Map();
    /** @type {Promise<never>} rejects when the device is lost */
    this.lost = raw.lost.then((info) => {
      this.isLost = true;
      throw new WeftError(`the GPU was lost (${info.message || info.reason})`);
    });
    this.lost.catch(() => {});
    /** @type {WeftError | null} what the GPU says in its own time */
    this.wrong = null;
    raw.addEventListener("uncapturederror", ({ error }) => {
      const full = error.constructor.name === "GPUOutOfMemoryError";
      this.wrong ??= new WeftError(full
        ? `the GPU has no ${mb(this.bytes)} MB of memory for this`
        : `the GPU refused a step (${error.message})`);
    });
  }

  /** Throws the first error since the last call. */
  check() {
    if (this.wrong) throw this.wrong;
  }

  /** Waits for all submitted work; throws its first error. */
  async settled() {
    await Promise.race([this.raw.queue.onSubmittedWorkDone(), this.lost]);
    this.check();
  }

  /** @returns {Promise<string>} why it is lost; "" where it is not */
  gone() {
    const news = this.lost.catch((error) => error.message);
    return Promise.race([news, new Promise((done) => setTimeout(done, NEWS, ""))]);
  }

  /** Frees everything. */
  close() {
    this.raw.destroy();
  }

  /** The text for the page's panel: what the browser tells of the GPU. */
  about() {
    const { vendor, architecture, device, description } = this.info ?? {};
    return { GPU: [vendor, architecture, device, description].filter(Boolean).join(", ")
      || "the browser does not name it" };
  }

  /** @param {number} nbytes @param {number} more usage @returns {GPUBuffer & {nbytes: number}} */
  alloc(nbytes, more = 0) {
    const size = Math.ceil(Math.max(nbytes, 1) / UNIT) * UNIT;
    const most = this.raw.limits.maxBufferSize;
    if (size > most) throw new WeftError(tooLarge(size, most));
    const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    const made = this.raw.createBuffer({ size, usage: more | STORAGE | COPY_SRC | COPY_DST });
    this.bytes += size;
    return Object.assign(made, { nbytes });
  }

  /** @param {GPUBuffer[]} buffers */
  free(buffers) {
    for (const buffer of buffers) buffer.destroy();
  }

  /** @param {GPUBuffer} buffer @param {Uint8Array} data @param {number} [offset] */
  write(buffer, data, offset = 0) {
    const even = data.length - (data.length % 4);
    this.raw.queue.writeBuffer(buffer, offset, /** @type {any} */ (data), 0, even);
    if (even === data.length) return;
    const rest = new Uint8Array(4); // whole words of 4 bytes only
    rest.set(data.subarray(even));
    this.raw.queue.writeBuffer(buffer, offset + even, rest);
  }

  /** @param {GPUBuffer & {nbytes: number}} buffer @param {number} [nbytes] */
  async read(buffer, nbytes = buffer.nbytes) {
    const size = Math.ceil(nbytes / 4) * 4;
    const staging = this.staging(buffer);
    const encoder = this.raw.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, staging, 0, size);
    this.raw.queue.submit([encoder.finish()]);
    // a lost device ends the wait with an AbortError, which may come before the news itself
    await Promise.race([this.lost, staging.mapAsync(GPUMapMode.READ).catch((error) => {
      if (error.name !== "AbortError") throw error;
      return this.lost;
    })]);
    this.check();
    const out = new Uint8Array(staging.getMappedRange(0, size)).slice(0, nbytes);
    staging.unmap();
    return out;
  }

  /** What a buffer is read through, one read at a time. @param {any} buffer @returns {GPUBuffer} */
  staging(buffer) {
    if (!buffer.staging) {
      const { MAP_READ, COPY_DST } = GPUBufferUsage;
      buffer.staging = this.raw.createBuffer({ size: buffer.size, usage: MAP_READ | COPY_DST });
      this.bytes += buffer.size;
    }
    return buffer.staging;
  }

  /** @param {(boolean | null)[]} written null: a uniform buffer */
  layout(written) {
    const key = written.join();
    let found = this.layouts.get(key);
    if (!found) {
      const layout = this.raw.createBindGroupLayout({
        entries: written.map((w, binding) => ({
          binding,
          visibility: GPUShaderStage.COMPUTE,
          buffer: { type: w === null ? "uniform" : w ? "storage" : "read-only-storage" },
        })),
      });
      const pipeline = this.raw.createPipelineLayout({ bindGroupLayouts: [layout] });
      this.layouts.set(key, (found = { layout, pipeline }));
    }
    return found;
  }

  /** @param {number} shader @param {(boolean | null)[]} written */
  pipeline(shader, written) {
    let found = this.pipelines.get(shader);
    if (!found) {
      const module = this.raw.createShaderModule({ code: this.shaders[shader] });
      found = this.raw.createComputePipelineAsync({
        layout: this.layout(written).pipeline,
        compute: { module, entryPoint: "main" },
      }).catch((error) => {
        throw (this.wrong ??= new WeftError(`this GPU does not take shader ${shader} `
          + `(${error.message}): try WebAssembly, and tell us`, { cause: error }));
      });
      this.pipelines.set(shader, found);
    }
    return found;
  }

  /**
   * Begins to build every pipeline of a Program.
   * @param {import("./program.js").Program} program
   */
  warm(program) {
    return Promise.all(program.steps.flatMap((step) => {
      if (step.kind !== "dispatch") return [];
      soundly("the Program", () => checkCode(program, step, this.shaders.length));
      return [this.pipeline(step.code[0], step.code[1].map((/** @type {any} */ b) => b[3]))];
    }));
  }

  /**
   * A Program over these buffers, one for each of its own, as a function of the runtime scalars.
   * @param {import("./program.js").Program} program @param {any[]} buffers
   * @returns {Promise<(scalars: number[], signal?: AbortSignal) => Promise<void>>}
   */
  async bind(program, buffers) {
    await Promise.race([this.warm(program), this.lost]); // a device that is gone builds for ever
    for (const n of program.outputs) this.staging(buffers[n]);
    const scalars = this.alloc(Math.max(4 * program.scalars.length, 16), GPUBufferUsage.UNIFORM);
    const steps = await Promise.all(program.steps.map((step) => {
      if (step.kind === "dispatch") return this.call(step, buffers, scalars);
      return step.kind === "copy" ? this.copy(step, buffers) : this.fill(step, buffers);
    }));
    this.check();
    const runs = submits(program.steps).map(([from, to]) => steps.slice(from, to));
    return async (values, signal) => {
      if (values.length) this.raw.queue.writeBuffer(scalars, 0, Int32Array.from(values));
      /** @type {Promise<undefined>[]} */
      const waiting = [];
      for (const run of runs) {
        if (waiting.length === UNDER_WAY) {
          await Promise.race([waiting.shift(), this.lost]);
          signal?.throwIfAborted();
        }
        this.raw.queue.submit([this.encoded(run, values)]);
        if (runs.length > UNDER_WAY) waiting.push(this.raw.queue.onSubmittedWorkDone());
      }
    };
  }

  /** @param {any[]} steps @param {number[]} values @returns {GPUCommandBuffer} */
  encoded(steps, values) {
    const encoder = this.raw.createCommandEncoder();
    /** @type {GPUComputePassEncoder | null} */
    let pass = null;
    for (const step of steps) {
      if ("pipeline" in step) {
        const [x, y, z] = folded(groups(step.grid, values), step.fold);
        if (!x) continue;
        pass ??= encoder.beginComputePass();
        pass.setPipeline(step.pipeline);
        pass.setBindGroup(0, step.group);
        pass.dispatchWorkgroups(x, y, z);
      } else {
        pass?.end();
        pass = null;
        step.encode(encoder);
      }
    }
    pass?.end();
    return encoder.finish();
  }

  /** @param {any} step @param {any[]} buffers @param {GPUBuffer} scalars */
  async call(step, buffers, scalars) {
    const [shader, bindings, fold] = step.code;
    const written = bindings.map((/** @type {any} */ b) => b[3]);
    const entries = bindings.map((/** @type {number[]} */ b, /** @type {number} */ binding) => {
      if (b[0] < 0) return { binding, resource: { buffer: scalars } };
      const [index, start] = step.args[b[0]];
      const buffer = buffers[index];
      const offset = start + b[1];
      return { binding, resource: { buffer, offset, size: Math.min(b[2], buffer.size - offset) } };
    });
    const group = this.raw.createBindGroup({ layout: this.layout(written).layout, entries });
    return { pipeline: await this.pipeline(shader, written), group, grid: step.grid, fold };
  }

  /** @param {any} step @param {any[]} buffers */
  copy(step, buffers) {
    const [from, to] = [buffers[step.from[0]], buffers[step.to[0]]];
    const size = Math.ceil(step.to[2] / 4) * 4;
    const between = from === to ? this.alloc(size) : null; // WebGPU copies within no buffer
    return {
      encode: (/** @type {GPUCommandEncoder} */ encoder) => {
        if (between) {
          encoder.copyBufferToBuffer(from, step.from[1], between, 0, size);
          encoder.copyBufferToBuffer(between, 0, to, step.to[1], size);
        } else {
          encoder.copyBufferToBuffer(from, step.from[1], to, step.to[1], size);
        }
      },
    };
  }

  /** @param {any} step @param {any[]} buffers */
  fill(step, buffers) {
    const [index, start, nbytes] = step.to;
    const size = Math.ceil(nbytes / 4) * 4;
    let pattern = null;
    if (step.byte) {
      pattern = this.alloc(size);
      this.write(pattern, new Uint8Array(size).fill(step.byte));
    }
    return {
      encode: (/** @type {GPUCommandEncoder} */ encoder) => {
        if (pattern) encoder.copyBufferToBuffer(pattern, 0, buffers[index], start, size);
        else encoder.clearBuffer(buffers[index], start, size);
      },
    };
  }
}

/** From where to where the steps of each submit go. @param {import("./program.js").Step[]} steps */
function submits(steps) {
  const cuts = [0];
  let work = 0;
  steps.forEach((step, n) => {
    work += step.kind === "dispatch" ? step.flops : 0;
    if (work >= WORK || n + 1 - cuts[cuts.length - 1] >= PER_SUBMIT) {
      cuts.push(n + 1);
      work = 0;
    }
  });
  return cuts.map((from, n) => [from, cuts[n + 1] ?? steps.length])
    .filter(([from, to]) => from < to);
}

/** @param {number} bytes */
const mb = (bytes) => Math.ceil(bytes / 1e6);

/** @param {number} size @param {number} most @returns {string} */
export const tooLarge = (size, most) => `this GPU takes buffers of ${mb(most)} MB, and this model `
  + `needs one of ${mb(size)} MB: use WebAssembly, or export it in int4`;

/**
 * Checks that a step binds memory within its arguments (rounded up as buffers are), writable only
 * where their role allows.
 * @param {import("./program.js").Program} program @param {any} step @param {number} shaders
 */
function checkCode(program, { code, args, kernel }, shaders) {
  const [shader, bindings] = code;
  const sound = bindings.every((/** @type {any} */ b) => {
    const [arg, offset, nbytes, written] = b;
    if (arg === -1) return offset === 0 && !written;
    const ref = args[arg];
    return ref && whole(offset) && whole(nbytes) && nbytes > 0 && (ref[1] + offset) % 256 === 0
      && offset + nbytes <= Math.ceil(ref[2] / UNIT) * UNIT
      && !(written && READ_ONLY.includes(program.buffers[ref[0]].role));
  });
  if (!whole(shader) || shader >= shaders || !sound) {
    throw new WeftError(`the code of ${kernel} is damaged: export the folder again`);
  }
}

/**
 * The groups to dispatch: those of a folded grid go through x, then y, as the shader expects.
 * @param {[number, number, number]} grid @param {boolean} fold @returns {[number, number, number]}
 */
function folded([x, y, z], fold) {
  const all = x * y * z;
  if (!fold || !all) return [x, y, z];
  const rows = Math.ceil(all / MOST_GROUPS);
  return [Math.ceil(all / rows), rows, 1];
}
