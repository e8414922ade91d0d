// The files of a folder that `weft export web` wrote, each checked against its manifest.

import { bytesOf } from "./manifest.js";
import { WeftError, readProgram, soundly } from "./program.js";

const SURE = 500; // ms of fetching that say how fast it is

/** The files of a store, by a checked manifest (manifest.js). */
export class Folder {
  /**
   * @param {{fetched: number, file: (file: any, counted?: (done: number) => void,
   *   room?: ArrayBuffer) => Promise<Uint8Array>}} store
   * @param {any} manifest
   */
  constructor(store, manifest) {
    this.store = store;
    this.manifest = manifest;
  }

  /** @param {string} target the Programs of one, and what is beside them */
  programs(target) {
    return this.parsed(`${target}.json`, (about) => {
      const programs = Object.fromEntries(Object.entries(about.programs).map(([name, raw]) =>
        [name, readProgram(raw)]));
      return { programs, about };
    });
  }

  /**
   * Reads a JSON file and converts it by `read`.
   * @template T @param {string} name @param {(data: any) => T} read @returns {Promise<T>}
   */
  async parsed(name, read) {
    const bytes = await this.part(name);
    return soundly(name, () => read(JSON.parse(new TextDecoder().decode(bytes))));
  }

  /** @param {string} name @returns {Promise<Uint8Array>} a file that the manifest lists */
  part(name) {
    const [nbytes, sha256] = this.manifest.files[name] ?? [];
    if (sha256 === undefined) {
      throw new WeftError(`the manifest lists no ${name}: export the folder again`);
    }
    return this.store.file([name, nbytes, sha256]);
  }

  /**
   * Fetches the shards, two at a time, and hands over the tensors in them.
   * @param {import("./session.js").Sessions} sessions
   * @param {import("./model.js").LoadOptions["progress"]} [progress]
   */
  async pour(sessions, progress) {
    const { shards, tensors } = this.manifest;
    const total = bytesOf(shards);
    /** @type {number[]} */
    const done = shards.map(() => 0);
    // two buffers in turn: the garbage collector would free new ones too late
    const size = Math.max(0, ...shards.map((/** @type {any} */ shard) => shard[1]));
    const rooms = [new ArrayBuffer(size), new ArrayBuffer(size)];
    const left = pace(this.store);
    const begin = (/** @type {number} */ n) =>
      this.store.file(shards[n], (/** @type {number} */ bytes) => {
        done[n] = bytes;
        const loaded = done.reduce((a, b) => a + b, 0);
        progress?.({ loaded, total, phase: "weights", left: left(total - loaded) });
      }, rooms[n % 2]);
    const wanted = Object.entries(tensors).map(([name, [, , start, nbytes]]) =>
      ({ name, start, end: start + nbytes })).sort((a, b) => a.start - b.start);
    let next = shards.length ? begin(0) : null;
    for (let n = 0, at = 0; n < shards.length; n++) {
      const bytes = await /** @type {Promise<Uint8Array>} */ (next);
      next = n + 1 < shards.length ? begin(n + 1) : null;
      next?.catch(() => {}); // it is awaited in its turn
      for (const { name, start, end } of wanted) {
        const [from, to] = [Math.max(start, at), Math.min(end, at + bytes.length)];
        const part = bytes.subarray(from - at, Math.max(from, to) - at);
        if (from < to) sessions.put(name, from - start, part, end - start);
      }
      at += bytes.length;
    }
    free(rooms);
  }
}

/**
 * Frees memory at once, by a port that leads nowhere. The collector comes after the first tokens,
 * and until then what hashed or kept the bytes holds them, also where they are detached otherwise.
 * @param {ArrayBuffer[]} rooms
 */
function free(rooms) {
  const { port1, port2 } = new MessageChannel();
  port2.close();
  port1.postMessage(null, rooms);
}

/**
 * Makes a function that says in how many seconds so many bytes come, at the network's pace so far;
 * undefined where nothing has come long enough.
 * @param {{fetched: number}} store
 */
function pace(store) {
  const before = store.fetched;
  let begun = 0;
  return (/** @type {number} */ bytes) => {
    const now = performance.now();
    const come = store.fetched - before;
    if (come) begun ||= now;
    return now - begun < SURE || !come ? undefined : (bytes * (now - begun)) / come / 1000;
  };
}
