// weft in Node: the model lives in this thread, its folder on the disk or on a server.

import { readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { fileURLToPath, pathToFileURL } from "node:url";

import { described, readManifest } from "./manifest.js";
import { Model } from "./model.js";
import { Thread } from "./node_thread.js";
import { ACCESS, FOLDER, LOAD, addressOf, allowed, fit, oneOf } from "./options.js";
import { WeftError } from "./program.js";
import { ranked } from "./ranked.js";
import { Store, checked } from "./store.js";

export { WeftError, ranked };

const THREADS = { threads: availableParallelism(), Worker: Thread };

/** A model in this thread. */
class Own extends Model {
  /** @param {string} kind @param {import("./model.js").LoadOptions} [options] */
  trainer(kind, options) {
    return trainer(this, kind, options);
  }
}

/**
 * Loads a folder that `weft export web` wrote: a path, or the address of one (also `file:`).
 * WebGPU plays it where `options.gpu` is given (npm's `webgpu`: `create([])`), else WebAssembly, in
 * as many threads as the machine has cores, at most eight (`options.threads`: at most these).
 * @param {string | URL} given @param {import("./model.js").LoadOptions} [options]
 * @returns {Promise<Own>}
 */
export async function load(given, options = {}) {
  const store = placed(given, allowed(options, LOAD, "load"), "load");
  return /** @type {Own} */ (await Own.load(store, { ...THREADS, ...options }));
}

/**
 * Describes a folder before anything large is fetched.
 * @param {string | URL} given @param {import("./store.js").Access} [access]
 */
export async function describe(given, access = {}) {
  return described(placed(given, allowed(access, ACCESS, "describe"), "describe"));
}

/**
 * Runs every kernel of a folder's Programs against reference values.
 * @param {string | URL} given @param {import("./model.js").LoadOptions} [options]
 * @returns {Promise<any>} the report
 */
export async function selftest(given, options = {}) {
  const store = placed(given, allowed(options, LOAD, "selftest"), "selftest");
  const manifest = readManifest(await store.json("manifest.json"));
  return new Model(store, manifest, { ...THREADS, ...options }).selftest();
}

/**
 * The files of a folder.
 * @param {string | URL} given @param {import("./store.js").StoreOptions} options
 * @param {string} call that is given them @returns {Disk | Store}
 */
function placed(given, options, call) {
  fit(given, [FOLDER[0], "a path or an address"], `the folder of ${call}`);
  const folder = /^file:/.test(`${given}`) ? fileURLToPath(given) : `${given}`;
  if (!/^https?:/.test(folder)) {
    const odd = Object.keys(ACCESS).find((name) => name in options);
    if (!odd) return new Disk(folder);
    throw new WeftError(`${odd} is for a folder on a server; ${folder} is a path: leave it out`);
  }
  return new Store(addressOf(folder, call), options);
}

/**
 * The training of a loaded model's folder: "scratch" or "lora", as exported (--train).
 * @param {Model} model @param {string} kind @param {import("./model.js").LoadOptions} [options]
 */
export async function trainer(model, kind, options = {}) {
  fit(model, [(v) => v instanceof Model, "what load gave"], "the model of trainer");
  fit(kind, oneOf(model.manifest.train), "the kind of trainer");
  const all = { ...THREADS, ...allowed(options, LOAD, "trainer") };
  const { Trainer } = await import("./trainer.js");
  return Trainer.beside(model, model.store.inside(kind), all);
}

/** Files of a folder on the disk. */
class Disk {
  /** @param {string} folder */
  constructor(folder) {
    this.base = pathToFileURL(folder.replace(/\/?$/, "/"));
    this.fetched = 0;
  }

  /** Nothing of it is fetched. */
  async has() {
    return true;
  }

  /** @param {string} name of a folder in this one */
  inside(name) {
    return new Disk(`${fileURLToPath(this.base)}${name}`);
  }

  /** @param {string} name @returns {Promise<Uint8Array>} */
  read(name) {
    return readFile(new URL(name, this.base)).catch((error) => {
      throw new WeftError(`${name} cannot be read (${error.code}): is ${this.base.pathname} what `
        + "weft export web wrote?", { cause: error });
    });
  }

  /** @param {import("./store.js").File} file */
  async file(file) {
    return checked(await this.read(file[0]), file);
  }

  /** @param {string} name */
  async json(name) {
    const text = new TextDecoder().decode(await this.read(name));
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new WeftError(`${name} is damaged: export the folder again`, { cause: error });
    }
  }
}
