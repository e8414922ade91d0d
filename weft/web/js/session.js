// Programs with their buffers: weights and state are shared by name, arenas by all.

import { ITEM, WeftError, whole } from "./program.js";

const ROWS = 2 ** 18; // bytes of rows, or more, that are put in another order at a time

/**
 * @typedef {import("./program.js").Program} Program
 * @typedef {import("./program.js").BufferSpec} BufferSpec
 * @typedef {{place: any, spec: BufferSpec, recipe: import("./program.js").Recipe | undefined,
 *   lanes?: Lanes}} Use
 */

/** Several Programs of one model on one device. Weights are written as they arrive (`put`). */
export class Sessions {
  /** @param {any} device @param {Record<string, Program>} programs */
  constructor(device, programs) {
    this.device = device;
    this.programs = programs;
    /** @type {Map<string, Use[]>} what is made of a tensor, by the tensor's name */
    this.uses = new Map();
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
    /** @type {ArrayBuffer[][]} what turns rows; the collector would free new ones too late */
    this.spare = [];
  }

  /** Compiles and binds the given Programs (by default all), before or after the weights arrive. */
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
   * Takes `bytes` of a tensor of `total` bytes, from its byte `start` on, in order.
   * @param {string} tensor @param {number} start @param {Uint8Array} bytes @param {number} total
   */
  put(tensor, start, bytes, total) {
    for (const use of this.uses.get(tensor) ?? []) {
      const { place, spec, recipe } = use;
      const row = total / (recipe?.rows ?? 1);
      const first = (recipe?.start ?? 0) * row;
      const size = Math.min(spec.nbytes, total - first);  // zeros fill up the last band
      const short = spec.nbytes - size;
      if (!whole(row) || (recipe ? short >= recipe.lanes * row : total !== spec.nbytes)) {
        throw new WeftError(`${spec.name} cannot be made of the ${total} bytes of ${tensor}`);
      }
      const from = Math.max(start, first);
      const part = bytes.subarray(from - start, Math.max(first + size - start, 0));
      if (!part.length) continue;
      if (!recipe) {
        this.device.write(place, part, start);
        continue;
      }
      use.lanes ??= new Lanes(spec, recipe, row, size, this.spare.pop());
      use.lanes.put(part, (rows, at) => this.device.write(place, rows, at));
      if (use.lanes.left) continue;
      this.spare.push(use.lanes.rooms);
      use.lanes = undefined;
    }
  }

  /**
   * Runs a Program once. Inputs are typed arrays by name; returns the outputs' bytes.
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

/** Rows, `lanes` of them at a time, with an item of each in turn (weft/program/recipe.py). */
class Lanes {
  /**
   * @param {BufferSpec} spec @param {import("./program.js").Recipe} recipe
   * @param {number} row bytes of one @param {number} come bytes of all
   * @param {ArrayBuffer[]} [rooms] two that another has done with
   */
  constructor({ name, dtype, nbytes }, recipe, row, come, rooms = []) {
    const size = ITEM[/** @type {keyof typeof ITEM} */ (dtype)] * recipe.item;
    const kind = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[size];
    const block = row * recipe.lanes;
    if (!kind || row % size || nbytes % block) {
      throw new WeftError(`the order of ${name} is damaged: export the folder again`);
    }
    this.lanes = recipe.lanes;
    this.depth = row / size;
    // rows wait here until there are enough; a GPU takes whole words of 4 bytes
    const bytes = block * 4 * Math.ceil(Math.min(ROWS, nbytes) / (4 * block));
    this.rooms = [0, 1].map((n) =>
      (rooms[n]?.byteLength >= bytes ? rooms[n] : new ArrayBuffer(bytes)));
    this.from = new kind(this.rooms[0], 0, bytes / size);
    this.to = new kind(this.rooms[1], 0, bytes / size);
    this.held = new Uint8Array(this.rooms[0], 0, bytes);
    this.have = this.at = 0;
    this.left = nbytes;
    this.come = come;
  }

  /** @param {Uint8Array} bytes @param {(rows: Uint8Array, at: number) => void} write */
  put(bytes, write) {
    while (bytes.length) {
      const part = bytes.subarray(0, this.held.length - this.have);
      this.held.set(part, this.have);
      this.have += part.length;
      this.come -= part.length;
      bytes = bytes.subarray(part.length);
      if (!this.come) {
        this.held.fill(0, this.have, this.left);
        this.have = this.left;
      }
      if (this.have < Math.min(this.held.length, this.left)) return;
      this.turn();
      write(new Uint8Array(this.to.buffer, 0, this.have), this.at);
      this.at += this.have;
      this.left -= this.have;
      this.have = 0;
    }
  }

  turn() {
    const { from, to, lanes, depth } = this;
    if (lanes === 1) return to.set(from);
    let at = 0;
    for (let first = 0; first < to.length; first += lanes * depth) {
      for (let k = 0; k < depth; k++) {
        for (let lane = 0; lane < lanes; lane++) to[at++] = from[first + lane * depth + k];
      }
    }
  }
}
