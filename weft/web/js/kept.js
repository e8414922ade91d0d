// Files that the browser keeps for the next visit. Weights are kept in parts while they come, so
// that a closed tab loses little; files of the page itself are whole, as sw.js takes them.

import { whole } from "./program.js";

/** @typedef {import("./store.js").File} File */

const CACHE = "weft-files-1";
const SIZE = "X-Size"; // header of a part: its bytes
const PART = 2 ** 21; // bytes of a file under way that are kept at a time
const ROOM = 2 ** 18; // bytes that are read at a time, at most

export class Kept {
  /** @param {string} base the folder's address @param {(text: string) => void} note */
  constructor(base, note) {
    this.base = base;
    this.note = note;
    /** @type {Promise<Cache | null> | null} */
    this.opened = null;
  }

  /** @returns {Promise<Cache | null>} null where the browser keeps nothing */
  cache() {
    this.opened ??= (async () => {
      try {
        return await caches.open(CACHE);
      } catch {
        this.note("This browser keeps no files for this page: the next visit fetches them again.");
        return null;
      }
    })();
    return this.opened;
  }

  /** @param {File} file under which name its first part is kept */
  key([name, , sha256]) {
    return new URL(`${this.base}${name}?${sha256}`).href;
  }

  /**
   * The parts that are here, from the first byte on, without a gap. A folder that has kept a file
   * with the same content lends it.
   * @param {File} file @returns {Promise<{at: number, size: number, part: Response}[]>}
   */
  async parts(file) {
    const [, nbytes, sha256] = file;
    const cache = await this.cache();
    const found = [];
    try {
      let key = this.key(file);
      if (!await cache?.match(key)) {
        key = (await cache?.keys())?.find(({ url }) => url.endsWith(`?${sha256}`))?.url ?? key;
      }
      for (let at = 0; at < nbytes;) {
        const part = await cache?.match(at ? `${key}&${at}` : key);
        const size = Number(part?.headers.get(SIZE) ?? nbytes); // none: it is the whole file
        if (!part || !whole(size) || !size || at + size > nbytes) break;
        found.push({ at, size, part });
        at += size;
      }
    } catch {
      // the browser lost it
    }
    return found;
  }

  /** @param {File} file @returns {Promise<boolean>} whether it need not be fetched */
  async has(file) {
    const [last] = (await this.parts(file)).slice(-1);
    return last?.at + last?.size === file[1];
  }

  /** Reads what is here. @param {File} file @param {Uint8Array} bytes @returns {Promise<number>} */
  async read(file, bytes) {
    let have = 0;
    try {
      for (const { at, size, part } of await this.parts(file)) {
        const read = reading(/** @type {ReadableStream<Uint8Array>} */ (part.body));
        let come = at;
        for (let piece; (piece = await read()); come += piece.length) bytes.set(piece, come);
        if (come !== at + size) break;
        have = come;
      }
    } catch {
      // the browser lost it
    }
    return have;
  }

  /**
   * Keeps what has come of a file since the last call, where it is enough; all of it at its `end`.
   * @param {File} file @param {Uint8Array} bytes @param {{saved: number, have: number}} at
   * @param {boolean} [end]
   */
  async keep(file, bytes, at, end = false) {
    const parted = file[0].startsWith("weights-");
    const enough = end ? at.have > at.saved
      : parted && at.have - at.saved >= PART && at.have < file[1];
    if (!enough) return;
    const part = bytes.subarray(at.saved, at.have);
    const key = this.key(file) + (at.saved ? `&${at.saved}` : "");
    at.saved = at.have;
    const headers = { [SIZE]: String(part.length) };
    try {
      await (await this.cache())?.put(key, new Response(/** @type {any} */ (part), { headers }));
    } catch {
      this.note("There is no room to keep the model: the next visit fetches it again.");
      this.opened = Promise.resolve(null);
    }
  }

  /** Drops a file that is damaged. @param {File} file */
  async drop(file) {
    await this.delete((url) => url.split("&")[0] === this.key(file));
  }

  /** Drops what an older export of this folder kept. @param {File[]} files of the manifest */
  async prune(files) {
    const wanted = new Set(files.map((file) => this.key(file)));
    await this.delete((url) => url.startsWith(this.base)
      && !url.slice(this.base.length).includes("/") && !wanted.has(url.split("&")[0]));
  }

  /** @param {(url: string) => boolean} which */
  async delete(which) {
    const cache = await this.cache();
    const kept = await cache?.keys().catch(() => []) ?? [];
    for (const { url } of kept) if (which(url)) await cache?.delete(url).catch(() => {});
  }

  /**
   * Has one tab, or one model of a page, get a file at a time: the next finds it kept.
   * @template T @param {File} file @param {AbortSignal | undefined} signal
   * @param {() => Promise<T>} work @returns {Promise<T>}
   */
  async alone([, , sha256], signal, work) {
    const locks = await this.cache() && globalThis.navigator?.locks;
    return locks ? locks.request(`weft ${sha256}`, { signal }, work) : work();
  }
}

/**
 * Makes what reads a body, each piece into the memory of the last one if the browser can: new ones
 * would pile up, since the collector comes late.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {() => Promise<Uint8Array | undefined>} undefined at its end
 */
export function reading(body) {
  try {
    const reader = body.getReader({ mode: "byob" });
    let room = new ArrayBuffer(ROOM);
    return async () => {
      const { done, value } = await reader.read(new Uint8Array(room));
      if (done) return undefined;
      room = value.buffer;
      return value;
    };
  } catch { // a stream that is not of bytes
    const reader = body.getReader();
    return async () => (await reader.read()).value;
  }
}
