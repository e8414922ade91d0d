// Files of a folder: fetched in pieces, resumed after a cut, checked by hash, kept for next time.

import { Kept, reading } from "./kept.js";
import { WeftError } from "./program.js";

const TRIES = 4;
const WAIT = 500; // ms before the second try; doubled each time
const STALL = 30_000; // ms without a byte, after which a try is given up
const JSON_SIZE = 2 ** 24; // characters of a file that no manifest lists
const EXPIRED = [400, 401, 403, 410]; // what servers say of a signature or token that is too old

/**
 * @typedef {[name: string, nbytes: number, sha256: string]} File
 * @typedef {(done: number) => void} Counted
 * @typedef {(name: string, again: boolean) => string | URL | Promise<string | URL>} Addressed
 *   where a file is; `again`: the server has refused the last answer
 * @typedef {(address: string, how: RequestInit) => Promise<Response>} Fetch
 * @typedef {{fetch?: Fetch, headers?: Record<string, string>,
 *   address?: Addressed | Record<string, string>}} Access how files are asked for
 * @typedef {Access & {signal?: AbortSignal, note?: (text: string) => void}} StoreOptions
 */

/** Reads the files that a manifest lists. */
export class Store {
  /**
   * @param {string} base the folder's address, with a slash at its end (before a "?", if any)
   * @param {StoreOptions} [options] @param {string} [within] the folder's path in that of `address`
   */
  constructor(base, { signal, note = () => {}, ...access } = {}, within = "") {
    const signed = base.indexOf("?");
    this.base = signed < 0 ? base : base.slice(0, signed);
    this.query = signed < 0 ? "" : base.slice(signed); // goes with each file
    this.access = access;
    this.within = within;
    this.signal = signal;
    this.fetched = 0; // bytes over the network
    this.kept = new Kept(this.base, note);
  }

  /** @param {string} name of a folder in this one @param {StoreOptions} [options] */
  inside(name, options = {}) {
    const within = `${this.within}${name}/`;
    return new Store(`${this.base}${name}/${this.query}`, { ...this.access, ...options }, within);
  }

  /** @param {File} file @returns {Promise<boolean>} whether it need not be fetched */
  has(file) {
    return this.kept.has(file);
  }

  /** Drops what an older export of this folder kept. @param {File[]} files of the manifest */
  prune(files) {
    return this.kept.prune(files);
  }

  /**
   * The bytes of a file, from what is kept or from the network.
   * @param {File} file @param {Counted} [counted] called with the bytes that have come so far
   * @param {ArrayBuffer} [room] for them, if it is large enough
   * @returns {Promise<Uint8Array>}
   */
  async file(file, counted = () => {}, room = new ArrayBuffer(0)) {
    const [, nbytes] = file;
    const bytes = nbytes <= room.byteLength ? new Uint8Array(room, 0, nbytes)
      : new Uint8Array(nbytes);
    return this.kept.alone(file, this.signal, async () => {
      const have = await this.kept.read(file, bytes);
      counted(have);
      const at = { have, saved: have };
      await this.fetchAll(file, bytes, at, counted);
      if (have && !await matches(bytes, file)) { // what was kept is not this file
        await this.kept.drop(file);
        Object.assign(at, { have: 0, saved: 0 });
        await this.fetchAll(file, bytes, at, counted);
      }
      try {
        await checked(bytes, file);
      } catch (error) {
        await this.kept.drop(file);
        throw error;
      }
      await this.kept.keep(file, bytes, at, true);
      return bytes;
    });
  }

  /**
   * Fetches what is missing of a file.
   * @param {File} file @param {Uint8Array} bytes @param {{have: number, saved: number}} at
   * @param {Counted} counted
   */
  async fetchAll(file, bytes, at, counted) {
    const [name, nbytes] = file;
    let whole = false; // a server may count the bytes of what it packs, so that no part fits
    for (let [tried, most] = [1, at.have]; at.have < nbytes; tried++) {
      const before = at.have;
      let fresh = whole;
      let answers = false;
      try {
        for await (const part of this.parts(name, whole ? 0 : before)) {
          answers = true;
          if (part.restart || fresh) at.have = 0;
          fresh = false;
          if (at.have + part.bytes.length > nbytes) {
            throw new WeftError(`${name} is longer than the manifest says: upload the folder `
              + "again");
          }
          bytes.set(part.bytes, at.have);
          at.have += part.bytes.length;
          this.fetched += part.bytes.length;
          counted(at.have);
          await this.kept.keep(file, bytes, at);
        }
        if (at.have < nbytes) throw new TypeError("it is shorter than the manifest says");
      } catch (error) {
        if (this.signal?.aborted || error instanceof WeftError) throw error;
        if (at.have === nbytes) return; // cut after its last byte
        whole = answers && at.have === before;
        if (at.have > most) tried = 1; // it moves: a cut is not a failure
        most = Math.max(most, at.have);
        if (tried >= TRIES) {
          const why = globalThis.navigator?.onLine === false ? "you are offline"
            : /** @type {Error} */ (error).message;
          throw new WeftError(`${name} could not be fetched in ${TRIES} tries (${why}): try again `
            + "later; what has come is kept", { cause: error });
        }
        await new Promise((done) => setTimeout(done, WAIT * 2 ** (tried - 1)));
      }
    }
  }

  /** Where a file is. @param {string} name @param {boolean} again */
  async address(name, again) {
    const { address } = this.access;
    const path = this.within + name;
    const given = typeof address === "function" ? await address(path, again) : address?.[path];
    return given === undefined ? this.base + name + this.query : new URL(given, this.base).href;
  }

  /**
   * The server's answer. It is asked once more if it refuses what can be renewed.
   * @param {string} name @param {RequestInit} how
   */
  async answer(name, how) {
    const { address, fetch: own } = this.access;
    for (let again = false; ; again = true) {
      const at = await this.address(name, again);
      // this store keeps the files; the browser's own cache may have those of an older export
      const response = await (own ?? fetch)(at, { ...how, cache: "no-store" });
      const renewed = own || typeof address === "function";
      if (again || !renewed || !EXPIRED.includes(response.status)) return response;
    }
  }

  /** @param {string} name @param {number} from */
  async *parts(name, from) {
    const headers = { ...this.access.headers, ...from && { Range: `bytes=${from}-` } };
    const stall = new AbortController();
    const signal = this.signal ? AbortSignal.any([stall.signal, this.signal]) : stall.signal;
    /** @template T @param {Promise<T>} news @returns {Promise<T>} */
    const inTime = async (news) => {
      const late = () => stall.abort(new TypeError(`nothing came for ${STALL / 1000} s`));
      const timer = setTimeout(late, STALL);
      return await news.finally(() => clearTimeout(timer));
    };
    const response = await inTime(this.answer(name, { headers, signal }));
    const wrong = REFUSALS[response.status];
    if (wrong) throw new WeftError(`${name} ${wrong}`);
    if (from && [206, 416].includes(response.status)) {
      yield { bytes: new Uint8Array(), restart: false }; // it answers
    }
    if (!response.ok || !response.body) throw new TypeError(`the server says ${response.status}`);
    let restart = from > 0 && response.status !== 206;
    const first = /bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "")?.[1];
    if (!restart && first && Number(first) !== from) {
      throw new TypeError("the server sends another part");
    }
    const read = reading(response.body);
    for (;;) {
      const bytes = await inTime(read());
      if (!bytes) return;
      yield { bytes, restart };
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

/** @type {Record<number, string>} answers that another try does not change */
const REFUSALS = {
  401: "needs a token or login (401): give load its headers, or a newer token",
  403: "is not there or refused (403): the folder was not uploaded whole, or the address or token "
    + "has expired",
  404: "is not there (404): the folder was not uploaded whole",
  410: "is no longer there (410): the address has expired",
};

/**
 * Returns the bytes if they match the manifest; throws a WeftError otherwise.
 * @param {Uint8Array} bytes @param {File} file
 */
export async function checked(bytes, file) {
  if (await matches(bytes, file)) return bytes;
  throw new WeftError(`${file[0]} is not what the manifest says (its hash differs): the server `
    + "has a damaged or another file; reload, or upload the folder again");
}

/** @param {Uint8Array} bytes @param {File} file */
async function matches(bytes, [, nbytes, sha256]) {
  if (bytes.length !== nbytes) return false;
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) {
    throw new WeftError("this page is neither on https nor on localhost, so the browser cannot "
      + "check what it fetches: serve it from there");
  }
  const digest = new Uint8Array(await subtle.digest("SHA-256", /** @type {any} */ (bytes)));
  return Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("") === sha256;
}
