// A thread of wasm.js: it takes groups of the running kernel until none is left.

// Indices of the words that threads share. OPEN is the number of the call that is being
// played, 0 between calls; ACTIVE counts the threads that may be in it besides the first; FAILED is
// 1 after a kernel's error in one of these; a call is code, list, scalars, x, y, z, end and chunk.
export const [OPEN, NEXT, ACTIVE, SLEEPERS, FAILED, CALL] = [0, 1, 2, 3, 4, 5];
export const SLOTS = CALL + 8;
const PATIENCE = 20000; // looks at OPEN before a thread sleeps

/**
 * The exports of a module of kernels.
 * @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory
 * @param {number} top of its stack
 * @returns {Promise<Record<string, (...args: number[]) => void>>}
 */
export async function kernelsOf(module, memory, top) {
  const env = {
    __linear_memory: memory,
    __stack_pointer: new WebAssembly.Global({ value: "i32", mutable: true }, top),
    // fmod, which the kernels import
    fmodf: (/** @type {number} */ a, /** @type {number} */ b) => a % b,
  };
  return /** @type {any} */ ((await WebAssembly.instantiate(module, { env })).exports);
}

/**
 * Runs groups of the call until none is left.
 * @param {Int32Array} shared @param {Record<string, (...args: number[]) => void>} kernels
 * @param {number} scratch
 */
export function play(shared, kernels, scratch) {
  const [code, list, scalars, x, y, z, end, chunk] = shared.subarray(CALL, SLOTS);
  const kernel = kernels[`k${code}`];
  for (;;) {
    const from = Atomics.add(shared, NEXT, chunk);
    if (from >= end) return;
    kernel(list, scalars, x, y, z, from, Math.min(from + chunk, end), scratch);
  }
}

/** Waits for a call other than `last`. @param {Int32Array} shared @param {number} last */
function awaited(shared, last) {
  for (let n = 0; ; n++) {
    const open = Atomics.load(shared, OPEN);
    if (open && open !== last) return open;
    if (n < PATIENCE) continue;
    Atomics.add(shared, SLEEPERS, 1);
    Atomics.wait(shared, OPEN, open);
    Atomics.sub(shared, SLEEPERS, 1);
    n = 0;
  }
}

/** @param {MessageEvent} event */
async function begin({ data: { module, memory, control, top } }) {
  const kernels = await kernelsOf(module, memory, top)
    .catch((error) => self.postMessage(error.message));
  if (!kernels) return;
  const shared = new Int32Array(memory.buffer, control, SLOTS);
  self.postMessage(""); // it is ready
  for (let last = 0; ;) {
    last = awaited(shared, last);
    Atomics.add(shared, ACTIVE, 1);
    // the first thread waits for ACTIVE after it closes a call: what is open now stays until then
    try {
      if (Atomics.load(shared, OPEN)) play(shared, kernels, top);
    } catch {
      Atomics.store(shared, FAILED, 1);
    }
    Atomics.sub(shared, ACTIVE, 1);
  }
}

if (globalThis.self?.name === "weft-thread") self.onmessage = begin;
