// Programs as data: what a Program may be, checked before anything is played.
// The layout is that of docs/file-format.md, with the code of one target beside each step.

/** An error that says what was found and what to do. */
export class WeftError extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = "WeftError";
  }
}

/** Bytes of one element. */
export const ITEM = {
  float32: 4, int32: 4, uint32: 4, float16: 2, bfloat16: 2, int8: 1, uint8: 1, bool: 1,
};

const ROLES = new Set(["input", "output", "state", "weight", "const", "arena"]);
const MAX_BYTES = 2 ** 32;

/**
 * @typedef {[buffer: number, offset: number, nbytes: number]} Ref
 * @typedef {{name: string, role: string, dtype: string, shape: number[], nbytes: number}} BufferSpec
 * @typedef {{kind: "dispatch", args: Ref[], grid: Expr[], code: any, access: string[],
 *   label: string}
 *   | {kind: "copy", from: Ref, to: Ref} | {kind: "fill", to: Ref, byte: number}} Step
 * @typedef {["Const", number, string] | ["Param", string, number] | ["Binary", string, any, any, string]} Expr
 * @typedef {{whole: string, start: number, rows: number, lanes: number, item: number}} Recipe
 * @typedef {{name: string, buffers: BufferSpec[], steps: Step[], scalars: string[],
 *   inputs: number[], outputs: number[], rows: Record<string, string>,
 *   recipes: Record<string, Recipe>}} Program
 */

/** @param {boolean} holds @param {string} what */
function need(holds, what) {
  if (!holds) throw new WeftError(`the Program is damaged: ${what}; export the folder again`);
}

/** @param {unknown} x @returns {x is number} */
const whole = (x) => Number.isInteger(x) && /** @type {number} */ (x) >= 0;

/**
 * A Program from JSON, or a WeftError that names what is wrong with it.
 * @param {any} raw @returns {Program}
 */
export function readProgram(raw) {
  need(raw?.format === 2, `format ${raw?.format}, and this player knows 2`);
  const buffers = raw.buffers.map((/** @type {any} */ b) => readBuffer(b));
  const steps = raw.steps.map((/** @type {any} */ s, /** @type {number} */ n) =>
    readStep(s, raw.code[n], raw.kernels, buffers, raw.scalars.length));
  for (const i of [...raw.inputs, ...raw.outputs]) need(whole(i) && i < buffers.length, "an input");
  const recipes = Object.fromEntries(Object.entries(raw.recipes).map(([name, r]) => {
    const [from, start, rows, lanes, item = 1] = /** @type {any} */ (r);
    need([start, rows, lanes, item].every(whole) && lanes > 0, `the recipe of ${name}`);
    return [name, { whole: from, start, rows, lanes, item }];
  }));
  return {
    name: raw.name, buffers, steps, scalars: raw.scalars, inputs: raw.inputs,
    outputs: raw.outputs, rows: raw.rows, recipes,
  };
}

/** @param {any} raw @returns {BufferSpec} */
function readBuffer(raw) {
  const [name, role, dtype, shape, nbytes] = raw;
  const item = ITEM[/** @type {keyof typeof ITEM} */ (dtype)];
  need(ROLES.has(role) && item > 0 && shape.every(whole), `buffer ${name}`);
  const content = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, item);
  need(whole(nbytes) && content <= nbytes && nbytes < MAX_BYTES, `the size of buffer ${name}`);
  return { name, role, dtype, shape, nbytes };
}

/**
 * @param {any} raw @param {any} code @param {any[]} kernels @param {BufferSpec[]} buffers
 * @param {number} scalars @returns {Step}
 */
function readStep(raw, code, kernels, buffers, scalars) {
  const place = (/** @type {Ref} */ ref, /** @type {boolean} */ written) => {
    const [buffer, offset, nbytes] = ref;
    const spec = whole(buffer) ? buffers[buffer] : undefined;
    need(spec !== undefined && whole(offset) && whole(nbytes)
      && offset + nbytes <= spec.nbytes, `a step goes beyond buffer ${spec?.name ?? buffer}`);
    need(!written || !["input", "weight", "const"].includes(/** @type {any} */ (spec).role),
      `a step writes to ${spec?.role} ${spec?.name}`);
    return ref;
  };
  if (raw[0] === "copy") return { kind: "copy", from: place(raw[1], false), to: place(raw[2], true) };
  if (raw[0] === "fill") return { kind: "fill", to: place(raw[1], true), byte: raw[2] };
  need(raw[0] === "dispatch" && whole(raw[1]) && raw[1] < kernels.length, `a step ${raw[0]}`);
  const kernel = kernels[raw[1]];
  need(raw[2].length === kernel.buffers.length, `the arguments of ${kernel.name}`);
  const access = kernel.buffers.map((/** @type {any} */ b) => b[3]);
  const args = raw[2].map((/** @type {Ref} */ ref, /** @type {number} */ n) => {
    const item = ITEM[/** @type {keyof typeof ITEM} */ (kernel.buffers[n][1])];
    need(kernel.buffers[n][2] * item <= ref[2], `an argument of ${kernel.name}`);
    return place(ref, access[n] !== "r");
  });
  for (const e of kernel.grid) checkGrid(e, scalars, 0);
  return { kind: "dispatch", args, grid: kernel.grid, code, access, label: raw[3] };
}

/** @param {any} e @param {number} scalars @param {number} depth */
function checkGrid(e, scalars, depth) {
  need(depth < 64, "a grid");
  if (e[0] === "Const") need(Number.isInteger(e[1]), "a grid");
  else if (e[0] === "Param") need(whole(e[2]) && e[2] < scalars, "a grid");
  else {
    need(e[0] === "Binary" && e[1] in GRID, "a grid");
    checkGrid(e[2], scalars, depth + 1);
    checkGrid(e[3], scalars, depth + 1);
  }
}

/** @type {Record<string, (a: number, b: number) => number>} */
const GRID = {
  add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b,
  div: (a, b) => Math.floor(a / b), rem: (a, b) => a - b * Math.floor(a / b),
  min: Math.min, max: Math.max,
};

/**
 * How many groups a grid's axis has for these runtime scalars.
 * @param {any} e @param {ArrayLike<number>} scalars @returns {number}
 */
export function evaluate(e, scalars) {
  if (e[0] === "Const") return e[1];
  if (e[0] === "Param") return scalars[e[2]];
  return GRID[e[1]](evaluate(e[2], scalars), evaluate(e[3], scalars));
}

/**
 * Groups along each axis; all zero where an axis has none.
 * @param {any[]} grid @param {ArrayLike<number>} scalars @returns {[number, number, number]}
 */
export function groups(grid, scalars) {
  const [x, y, z] = grid.map((e) => Math.max(evaluate(e, scalars), 0));
  return x * y * z ? [x, y, z] : [0, 0, 0];
}
