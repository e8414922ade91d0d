// Files of a folder: fetched in pieces, resumed after a cut, checked by hash, kept for next time.

import { WeftError } from "./program.js";

const TRIES = 4;
const WAIT = 500; // ms before the second try; doubled each time
const STALL = 30_000; // ms without a byte, after which a try is given up
const JSON_SIZE = 2 ** 24; // characters of a file that no manifest lists
const CACHE = "weft-files-1";

/**
 * @typedef {[name: string, nbytes: number, sha256: string]} File
 * @typedef {(done: number) => void} Counted
 */

/** Reads the files that a manifest lists. */
export class Store {
  /**
   * @param {string} base the folder's address, with a slash at its end (before a "?", if any)
   * @param {{signal?: AbortSignal, note?: (text: string) => void}} [options]
   */
  constructor(base, { signal, note } = {}) {
    const signed = base.indexOf("?");
    this.base = signed < 0 ? base : base.slice(0, signed);
    this.query = signed < 0 ? "" : base.slice(signed); // goes with each file
    this.signal = signal;
    this.note = note ?? (() => {});
    this.fetched = 0; // bytes over the network
    /** @type {Promise<Cache | null> | null} */
    this.kept = null;
  }

  /** @returns {Promise<Cache | null>} where files are kept; null where the browser keeps nothing */
  cache() {
    this.kept ??= (async () => {
      try {
        return await caches.open(CACHE);
      } catch {
        this.note("This browser keeps no files for this page: the next visit fetches them again.");
        return null;
      }
    })();
    return this.kept;
  }

  /**
   * @param {string} name of a folder in this one
   * @param {{signal?: AbortSignal, note?: any}} [options]
   */
  inside(name, options = {}) {
    return new Store(`${this.base}${name}/${this.query}`, options);
  }

  /** @param {File} file @returns {Promise<boolean>} whether it need not be fetched */
  async has(file) {
    const cache = await this.cache();
    return Boolean(await cache?.match(this.key(file)).catch(() => null));
  }

  /** Drops what an older export of this folder kept. @param {File[]} files of the manifest */
  async prune(files) {
    const cache = await this.cache();
    const wanted = new Set(files.map((file) => this.key(file)));
    const own = (/** @type {string} */ url) => url.startsWith(this.base)
      && !url.slice(this.base.length).includes("/");
    const kept = await cache?.keys().catch(() => []) ?? [];
    for (const { url } of kept) if (own(url) && !wanted.has(url)) await cache?.delete(url);
  }

  /** @param {File} file under which name it is kept */
  key([name, , sha256]) {
    return new URL(`${this.base}${name}?${sha256}`).href;
  }

  /**
   * The bytes of a file, from what is kept or from the network.
   * @param {File} file @param {Counted} [counted] called with the bytes that have come so far
   * @param {ArrayBuffer} [room] for what is fetched, if it is large enough
   * @returns {Promise<Uint8Array>}
   */
  async file(file, counted = () => {}, room = undefined) {
    const [name, nbytes, sha256] = file;
    const cache = await this.cache();
    const key = this.key(file);
    const known = await this.known(cache, key);
    if (known && await matches(known, nbytes, sha256)) {
      counted(nbytes);
      return known;
    }
    const bytes = await this.fetchAll(name, nbytes, counted, room);
    await this.keep(cache, key, await checked(bytes, file));
    return bytes;
  }

  /** @param {Cache | null} cache @param {string} key @returns {Promise<Uint8Array | null>} */
  async known(cache, key) {
    try {
      const found = await cache?.match(key);
      return found ? new Uint8Array(await found.arrayBuffer()) : null;
    } catch {
      return null; // the browser lost it
    }
  }

  /** @param {Cache | null} cache @param {string} key @param {Uint8Array} bytes */
  async keep(cache, key, bytes) {
    try {
      await cache?.put(key, new Response(/** @type {any} */ (bytes)));
    } catch {
      this.note("There is no room to keep the model: the next visit fetches it again.");
      this.kept = Promise.resolve(null);
    }
  }

  /**
   * @param {string} name @param {number} nbytes @param {Counted} counted
   * @param {ArrayBuffer} [room]
   */
  async fetchAll(name, nbytes, counted, room = new ArrayBuffer(0)) {
    const fits = nbytes <= room.byteLength;
    const bytes = fits ? new Uint8Array(room, 0, nbytes) : new Uint8Array(nbytes);
    let have = 0;
    let most = 0;
    for (let tried = 1; ; tried++) {
      try {
        for await (const part of this.parts(name, have)) {
          if (part.restart) have = 0;
          if (have + part.bytes.length > nbytes) {
            throw new WeftError(`${name} is longer than the manifest says: upload the folder `
              + "again");
          }
          bytes.set(part.bytes, have);
          have += part.bytes.length;
          this.fetched += part.bytes.length;
          counted(have);
        }
        if (have === nbytes) return bytes;
        throw new TypeError("it is shorter than the manifest says");
      } catch (error) {
        if (this.signal?.aborted || error instanceof WeftError) throw error;
        if (have === nbytes) return bytes; // cut after its last byte
        if (have > most) tried = 1; // it moves: a cut is not a failure
        most = Math.max(most, have);
        if (tried >= TRIES) {
          const why = globalThis.navigator?.onLine === false ? "you are offline"
            : /** @type {Error} */ (error).message;
          throw new WeftError(`${name} could not be fetched in ${TRIES} tries (${why}): try again `
            + "later; the files that have come whole are kept", { cause: error });
        }
        await new Promise((done) => setTimeout(done, WAIT * 2 ** (tried - 1)));
      }
    }
  }

  /** @param {string} name @param {number} from */
  async *parts(name, from) {
    /** @type {Record<string, string>} */
    const headers = from ? { Range: `bytes=${from}-` } : {};
    const stall = new AbortController();
    const signal = this.signal ? AbortSignal.any([stall.signal, this.signal]) : stall.signal;
    /** @template T @param {Promise<T>} news @returns {Promise<T>} */
    const inTime = async (news) => {
      const late = () => stall.abort(new TypeError(`nothing came for ${STALL / 1000} s`));
      const timer = setTimeout(late, STALL);
      return await news.finally(() => clearTimeout(timer));
    };
    // this store keeps the files; the browser's own cache may have those of an older export
    const address = this.base + name + this.query;
    const response = await inTime(fetch(address, { headers, signal, cache: "no-store" }));
    if (response.status === 404 || response.status === 403) {
      throw new WeftError(`${name} is not there (${response.status}): the folder was not uploaded `
        + "whole");
    }
    if (!response.ok || !response.body) throw new TypeError(`the server says ${response.status}`);
    let restart = from > 0 && response.status !== 206;
    const first = /bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "")?.[1];
    if (!restart && first && Number(first) !== from) {
      throw new TypeError("the server sends another part");
    }
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await inTime(reader.read());
      if (done) return;
      yield { bytes: value, restart };
      restart = false;
    }
  }

  /** @param {string} name a small file that is not listed in the manifest: the manifest */
  async json(name) {
    const decoder = new TextDecoder();
    let text = "";
    try {
      for await (const { bytes } of this.parts(name, 0)) {
        text += decoder.decode(bytes, { stream: true });
        if (text.length > JSON_SIZE) throw new WeftError(`${name} never ends: it is not weft's`);
      }
    } catch (error) {
      if (error instanceof WeftError || this.signal?.aborted) throw error;
      const { message } = /** @type {Error} */ (error);
      throw new WeftError(`${name} could not be fetched (${message}): check the connection`,
        { cause: error });
    }
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new WeftError(`${name} is damaged: upload the folder again`, { cause: error });
    }
  }
}

/**
 * Returns the bytes if they match the manifest; throws a WeftError otherwise.
 * @param {Uint8Array} bytes @param {File} file
 */
export async function checked(bytes, [name, nbytes, sha256]) {
  if (await matches(bytes, nbytes, sha256)) return bytes;
  throw new WeftError(`${name} is not what the manifest says (its hash differs): the server `
    + "has a damaged or another file; reload, or upload the folder again");
}

/** @param {Uint8Array} bytes @param {number} nbytes @param {string} sha256 */
async function matches(bytes, nbytes, sha256) {
  if (bytes.length !== nbytes) return false;
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) {
    throw new WeftError("this page is neither on https nor on localhost, so the browser cannot "
      + "check what it fetches: serve it from there");
  }
  const digest = new Uint8Array(await subtle.digest("SHA-256", /** @type {any} */ (bytes)));
  return Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("") === sha256;
}
