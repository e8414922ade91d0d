// Programs with their buffers: weights and state are shared by name, arenas by all.

import { ITEM, WeftError } from "./program.js";

/**
 * @typedef {import("./program.js").Program} Program
 * @typedef {import("./program.js").BufferSpec} BufferSpec
 * @typedef {{place: any, spec: BufferSpec, recipe: import("./program.js").Recipe | undefined}} Use
 */

/** Several Programs of one model on one device. Weights are poured in as they arrive (`put`). */
export class Sessions {
  /** @param {any} device @param {Record<string, Program>} programs */
  constructor(device, programs) {
    this.device = device;
    this.programs = programs;
    /** @type {Map<string, Use[]>} what is made of a tensor, by the tensor's name */
    this.uses = new Map();
    /** @type {Map<string, Uint8Array>} tensors of which a part has arrived */
    this.partial = new Map();
    /** @type {Map<string, any>} */
    this.shared = new Map();
    /** @type {Map<string, {program: Program, places: any[],
     *   run: (scalars: number[], signal?: AbortSignal) => Promise<void>}>} */
    this.bound = new Map();
    const arenas = Object.values(programs).map((p) => p.buffers.filter(isArena));
    const most = Math.max(0, ...arenas.map((each) => each.length));
    this.arenas = Array.from({ length: most }, (_, n) =>
      device.alloc(Math.max(...arenas.map((each) => each[n]?.nbytes ?? 0))));
    this.places = Object.fromEntries(Object.entries(programs).map(([kind, program]) =>
      [kind, program.buffers.map((spec) => this.place(kind, program, spec))]));
  }

  /** Compiles and binds Programs, without others all; needs no weights to be there. */
  async prepare(kinds = Object.keys(this.programs)) {
    await Promise.all(kinds.map(async (kind) => {
      const [program, places] = [this.programs[kind], this.places[kind]];
      this.bound.set(kind, { program, places, run: await this.device.bind(program, places) });
    }));
  }

  /** @param {string} kind @param {Program} program @param {BufferSpec} spec */
  place(kind, program, spec) {
    if (isArena(spec)) return this.arenas[program.buffers.filter(isArena).indexOf(spec)];
    const key = `${spec.role} ${spec.name}`;
    if (spec.role !== "weight" && spec.role !== "state") {
      const own = this.device.alloc(spec.nbytes);
      if (spec.role === "const") {
        const tensor = `${this.device.kind}/${kind}/${spec.name}`;
        this.use(tensor, { place: own, spec, recipe: undefined });
      }
      return own;
    }
    let made = this.shared.get(key);
    if (!made) {
      this.shared.set(key, (made = this.device.alloc(spec.nbytes)));
      const recipe = program.recipes[spec.name];
      this.use(recipe?.whole ?? spec.name, { place: made, spec, recipe });
    } else if (made.nbytes < spec.nbytes) {
      throw new WeftError(`${program.name}: two sizes of ${spec.name}; export the folder again`);
    }
    return made;
  }

  /** @param {string} name of a state @returns {Promise<Uint8Array>} */
  read(name) {
    const place = this.shared.get(`state ${name}`);
    if (!place) throw new WeftError(`no Program has the state ${name}; export the folder again`);
    return this.device.read(place, place.nbytes);
  }

  /** @param {string} tensor @param {Use} use */
  use(tensor, use) {
    this.uses.set(tensor, [...(this.uses.get(tensor) ?? []), use]);
  }

  /**
   * Takes `bytes` of a tensor of `total` bytes, from byte `start` of it on. Pieces come in order.
   * @param {string} tensor @param {number} start @param {Uint8Array} bytes @param {number} total
   */
  put(tensor, start, bytes, total) {
    const uses = this.uses.get(tensor) ?? [];
    for (const { place, spec } of uses.filter((use) => !use.recipe)) {
      if (total !== spec.nbytes) {
        throw new WeftError(`tensor ${tensor} has ${total} bytes of ${spec.nbytes}`);
      }
      this.device.write(place, bytes, start);
    }
    const made = uses.filter((use) => use.recipe);
    if (!made.length) return;
    let whole = bytes;
    if (bytes.length < total) {
      whole = this.partial.get(tensor) ?? new Uint8Array(total);
      whole.set(bytes, start);
      this.partial.set(tensor, whole);
      if (start + bytes.length < total) return;
      this.partial.delete(tensor);
    }
    for (const use of made) this.device.write(use.place, followed(whole, use));
  }

  /**
   * Plays a Program once. Inputs are typed arrays by name; the outputs' bytes come back.
   * @param {string} kind @param {Record<string, ArrayBufferView>} inputs
   * @param {Record<string, number>} scalars @param {AbortSignal} [signal]
   * @returns {Promise<Uint8Array[]>}
   */
  async run(kind, inputs, scalars, signal) {
    const found = this.bound.get(kind);
    if (!found) throw new WeftError(`this folder has no Program ${kind}`);
    const { program, places, run } = found;
    for (const i of program.inputs) {
      const spec = program.buffers[i];
      const given = inputs[spec.name];
      if (!given || given.byteLength > spec.nbytes) {
        throw new WeftError(`${program.name}: input ${spec.name} takes ${spec.nbytes} bytes`);
      }
      const bytes = new Uint8Array(given.buffer, given.byteOffset, given.byteLength);
      this.device.write(places[i], bytes);
    }
    await run(program.scalars.map((name) => scalars[name] ?? 0), signal);
    return Promise.all(program.outputs.map((i) =>
      this.device.read(places[i], program.buffers[i].nbytes)));
  }
}

/** @param {BufferSpec} spec */
const isArena = (spec) => spec.role === "arena";

/** What a recipe makes of a tensor. @param {Uint8Array} whole @param {Use} use */
function followed(whole, { spec, recipe }) {
  if (!recipe) return whole;
  const row = whole.length / recipe.rows;
  const rows = whole.subarray(recipe.start * row);
  if (!Number.isInteger(row) || rows.length < spec.nbytes) {
    throw new WeftError(`tensor ${recipe.whole} is not what ${spec.name} is made of`);
  }
  if (recipe.lanes === 1) return rows.subarray(0, spec.nbytes);
  const item = ITEM[/** @type {keyof typeof ITEM} */ (spec.dtype)] * recipe.item;
  return interleaved(rows, row, item, recipe.lanes, spec);
}

/**
 * Rows, `lanes` of them at a time, with `size` bytes of each in turn (weft/program/recipe.py).
 * @param {Uint8Array} rows @param {number} row @param {number} size @param {number} lanes
 * @param {BufferSpec} spec
 */
function interleaved(rows, row, size, lanes, spec) {
  const kind = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[size];
  if (!kind) throw new WeftError(`weight ${spec.name} is ordered by ${size} bytes`);
  const { buffer, byteOffset, length } = rows.byteOffset % size ? rows.slice() : rows;
  const from = new kind(/** @type {ArrayBuffer} */ (buffer), byteOffset, Math.floor(length / size));
  const to = new kind(spec.nbytes / size);
  const depth = row / size;
  let at = 0;
  for (let first = 0; first < to.length; first += lanes * depth) {
    for (let k = 0; k < depth; k++) {
      for (let lane = 0; lane < lanes; lane++) to[at++] = from[first + lane * depth + k];
    }
  }
  return new Uint8Array(to.buffer);
}
