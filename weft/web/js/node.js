// weft in Node: the model lives in this thread, its folder on the disk or on a server.

import { readFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { fileURLToPath, pathToFileURL } from "node:url";

import { Model } from "./model.js";
import { Thread } from "./node_thread.js";
import { ACCESS } from "./options.js";
import { WeftError } from "./program.js";
import { ranked } from "./ranked.js";
import { Store, checked } from "./store.js";

export { WeftError, ranked };

const THREADS = { threads: availableParallelism(), Worker: Thread };

/**
 * Loads a folder that `weft export web` wrote: a path, or the address of one (also `file:`).
 * WebGPU plays it where `options.gpu` is given (npm's `webgpu`: `create([])`), else WebAssembly, in
 * as many threads as the machine has cores, at most eight (`options.threads`: at most these).
 * @param {string | URL} given @param {import("./model.js").LoadOptions} [options]
 * @returns {Promise<Model>}
 */
export async function load(given, options = {}) {
  if (typeof given !== "string" && !(given instanceof URL)) {
    throw new WeftError(`the folder is ${given}; expected a path or an address`);
  }
  const folder = /^file:/.test(`${given}`) ? fileURLToPath(given) : `${given}`;
  const far = /^https?:/.test(folder);
  const odd = Object.keys(ACCESS).find((name) => name in options);
  if (!far && odd) {
    throw new WeftError(`${odd} is for a folder on a server; ${folder} is a path: leave it out`);
  }
  if (!far) return Model.load(new Disk(folder), { ...THREADS, ...options });
  const url = new URL(folder);
  url.pathname = url.pathname.replace(/\/?$/, "/");
  const store = new Store(url.href, options);
  return Model.load(store, { ...THREADS, ...options });
}

/**
 * The training of a loaded model's folder: "scratch" or "lora", as exported (--train).
 * @param {Model} model @param {string} kind @param {import("./model.js").LoadOptions} [options]
 */
export async function trainer(model, kind, options = {}) {
  const { Trainer } = await import("./trainer.js");
  return Trainer.beside(model, model.store.inside(kind), { ...THREADS, ...options });
}

/** Files of a folder on the disk. */
class Disk {
  /** @param {string} folder */
  constructor(folder) {
    this.base = pathToFileURL(folder.replace(/\/?$/, "/"));
    this.fetched = 0;
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
