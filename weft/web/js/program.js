// Programs as data, checked before anything runs.
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

export const READ_ONLY = ["input", "weight", "const"];
const ROLES = [...READ_ONLY, "output", "state", "arena"];
const MAX_BYTES = 2 ** 32;
const MAX_GROUPS = 2 ** 31;

/**
 * @typedef {[buffer: number, offset: number, nbytes: number]} Ref
 * @typedef {{name: string, role: string, dtype: string, shape: number[],
 *   nbytes: number}} BufferSpec
 * @typedef {{kind: "dispatch", args: Ref[], grid: Expr[], code: any, access: string[],
 *   label: string, kernel: string, dtypes: string[], flops: number}
 *   | {kind: "copy", from: Ref, to: Ref} | {kind: "fill", to: Ref, byte: number}} Step
 * @typedef {["Const", number, string] | ["Param", string, number]
 *   | ["Binary", string, any, any, string]} Expr
 * @typedef {{whole: string, start: number, rows: number, lanes: number, item: number}} Recipe
 * @typedef {{name: string, buffers: BufferSpec[], steps: Step[], scalars: string[],
 *   inputs: number[], outputs: number[], rows: Record<string, string>,
 *   recipes: Record<string, Recipe>}} Program
 */

/** @param {boolean} holds @param {string} what @returns {asserts holds} */
function need(holds, what) {
  if (!holds) throw new WeftError(`the Program is damaged: ${what}; export the folder again`);
}

/**
 * Reads untrusted data by `read`; any exception while reading counts as damage.
 * @template T @param {string} what @param {() => T} read @returns {T}
 */
export function soundly(what, read) {
  try {
    return read();
  } catch (error) {
    if (error instanceof WeftError) throw error;
    throw new WeftError(`${what} is damaged (${/** @type {Error} */ (error).message}); export the `
      + "folder again", { cause: error });
  }
}

/** @param {unknown} x @returns {x is number} */
export const whole = (x) => Number.isSafeInteger(x) && /** @type {number} */ (x) >= 0;

/** @param {unknown} x @returns {x is string} */
export const isText = (x) => typeof x === "string";

/**
 * Reads a Program from JSON; throws a WeftError that names the fault. Its steps reach
 * only the buffers that it names, within their sizes.
 * @param {any} raw @returns {Program}
 */
export function readProgram(raw) {
  return soundly("the Program", () => read(raw));
}

/** @param {any} raw @returns {Program} */
function read(raw) {
  need(raw?.format === 2, `format ${raw?.format}, and this player knows 2`);
  const { name, scalars, inputs, outputs, rows } = raw;
  need(isText(name) && scalars.every(isText), "its names are no text");
  const buffers = raw.buffers.map(readBuffer);
  need(raw.code.length === raw.steps.length, "steps without code");
  const steps = raw.steps.map((/** @type {any} */ s, /** @type {number} */ n) =>
    readStep(s, raw.code[n], raw.kernels, buffers, scalars.length));
  const roles = (/** @type {number[]} */ list, /** @type {string} */ role) =>
    list.every((i) => whole(i) && buffers[i]?.role === role);
  need(roles(inputs, "input") && roles(outputs, "output"), "its inputs and outputs");
  const known = new Set(inputs.map((/** @type {number} */ i) => buffers[i].name));
  for (const [input, scalar] of Object.entries(rows)) {
    need(known.has(input) && scalars.includes(scalar), `the rows of ${input}`);
  }
  return {
    name, buffers, steps, scalars, inputs, outputs, rows, recipes: readRecipes(raw.recipes),
  };
}

/** @param {any} raw @returns {Record<string, Recipe>} */
function readRecipes(raw) {
  return Object.fromEntries(Object.entries(raw).map(([name, r]) => {
    const [from, start, rows, lanes, item = 1] = /** @type {any} */ (r);
    need(isText(from) && [start, rows, lanes, item].every((n) => whole(n) && n < MAX_BYTES)
      && rows > 0 && lanes > 0 && item > 0, `the recipe of ${name}`);
    return [name, { whole: from, start, rows, lanes, item }];
  }));
}

/** @param {any} raw @returns {BufferSpec} */
function readBuffer(raw) {
  const [name, role, dtype, shape, nbytes] = raw;
  need(isText(name) && ROLES.includes(role) && Object.hasOwn(ITEM, dtype) && shape.every(whole),
    `buffer ${name}`);
  const item = ITEM[/** @type {keyof typeof ITEM} */ (dtype)];
  const content = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, item);
  need(whole(nbytes) && content <= nbytes && nbytes < MAX_BYTES, `the size of buffer ${name}`);
  return { name, role, dtype, shape, nbytes };
}

/**
 * @param {any} raw @param {any} code @param {any[]} kernels @param {BufferSpec[]} buffers
 * @param {number} scalars @returns {Step}
 */
function readStep(raw, code, kernels, buffers, scalars) {
  const place = (/** @type {any} */ given, /** @type {boolean} */ written) => {
    const [buffer, offset, nbytes] = given;
    const spec = whole(buffer) ? buffers[buffer] : undefined;
    need(spec !== undefined && whole(offset) && whole(nbytes)
      && offset + nbytes <= spec.nbytes, `a step goes beyond buffer ${spec?.name ?? buffer}`);
    need(!written || !READ_ONLY.includes(spec.role), `a step writes to ${spec.role} ${spec.name}`);
    return /** @type {Ref} */ ([buffer, offset, nbytes]);
  };
  if (raw[0] === "copy") {
    const [from, to] = [place(raw[1], false), place(raw[2], true)];
    need(from[2] === to[2] && !overlap(from, to), "a copy");
    return { kind: "copy", from, to };
  }
  if (raw[0] === "fill") {
    need(whole(raw[2]) && raw[2] < 256, "a fill");
    return { kind: "fill", to: place(raw[1], true), byte: raw[2] };
  }
  need(raw[0] === "dispatch" && whole(raw[1]) && raw[1] < kernels.length, `a step ${raw[0]}`);
  const kernel = kernels[raw[1]];
  need(isText(kernel.name) && isText(raw[3]) && raw[2].length === kernel.buffers.length,
    `the arguments of ${kernel.name}`);
  const access = kernel.buffers.map((/** @type {any} */ b) => b[3]);
  /** @type {Ref[]} */
  const args = raw[2].map((/** @type {any} */ given, /** @type {number} */ n) => {
    const [, dtype, count] = kernel.buffers[n];
    const ref = place(given, access[n] !== "r");
    const item = Object.hasOwn(ITEM, dtype) ? ITEM[/** @type {keyof typeof ITEM} */ (dtype)] : 0;
    need(item > 0 && whole(count) && count * item === ref[2] && ref[1] % item === 0,
      `an argument of ${kernel.name}`);
    return ref;
  });
  args.forEach((ref, n) => need(access[n] === "r"
    || args.every((other, m) => m === n || !overlap(ref, other)),
  `${kernel.name} writes what it also reads`));
  need(kernel.grid.length === 3, "a grid");
  for (const e of kernel.grid) checkGrid(e, scalars, 0);
  return {
    kind: "dispatch", args, grid: kernel.grid, code, access, label: raw[3], kernel: kernel.name,
    dtypes: kernel.buffers.map((/** @type {any} */ b) => b[1]),
    flops: whole(kernel.flops) ? kernel.flops : 0,
  };
}

/** Whether two places share a byte. @param {Ref} a @param {Ref} b */
const overlap = (a, b) => a[0] === b[0] && a[2] > 0 && b[2] > 0
  && a[1] < b[1] + b[2] && b[1] < a[1] + a[2];

/** @param {any} e @param {number} scalars @param {number} depth */
function checkGrid(e, scalars, depth) {
  need(depth < 64, "a grid");
  if (e[0] === "Const") need(Number.isSafeInteger(e[1]), "a grid");
  else if (e[0] === "Param") need(whole(e[2]) && e[2] < scalars, "a grid");
  else {
    need(e[0] === "Binary" && Object.hasOwn(GRID, e[1]), "a grid");
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
 * The number of groups along a grid's axis for these runtime scalars.
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
  need(whole(x) && whole(y) && whole(z) && x * y * z < MAX_GROUPS, `a grid of ${x} x ${y} x ${z}`);
  return x * y * z ? [x, y, z] : [0, 0, 0];
}
