// Calls of WebGPU and what a token adds to a sum, in a page, in a worker and in Node.

/** Counts a thread's calls of WebGPU from now on; `take` gives them and begins anew. */
export function counted() {
  const count = { dispatches: 0, passes: 0, submits: 0, groups: 0, writes: 0, maps: 0, copies: 0 };
  const wrap = (kind, name, what) => {
    const own = globalThis[kind]?.prototype;
    if (!own) return;
    const call = own[name];
    own[name] = function (...args) { count[what]++; return call.apply(this, args); };
  };
  wrap("GPUComputePassEncoder", "dispatchWorkgroups", "dispatches");
  wrap("GPUCommandEncoder", "beginComputePass", "passes");
  wrap("GPUCommandEncoder", "copyBufferToBuffer", "copies");
  wrap("GPUQueue", "submit", "submits");
  wrap("GPUQueue", "writeBuffer", "writes");
  wrap("GPUDevice", "createBindGroup", "groups");
  wrap("GPUBuffer", "mapAsync", "maps");
  globalThis.take = () => {
    const taken = { ...count };
    for (const key of Object.keys(count)) count[key] = 0;
    return taken;
  };
}

/**
 * What each token after the first few adds to sums, by name.
 * @param {number} tokens @param {(count: number) => Promise<Record<string, number>>} sums
 *   of a text of so many tokens
 */
export async function perToken(tokens, sums) {
  const [few, many] = [await sums(4), await sums(4 + tokens)];
  return Object.fromEntries(Object.keys(many).map((key) =>
    [key, (many[key] - (few[key] ?? 0)) / tokens]));
}
