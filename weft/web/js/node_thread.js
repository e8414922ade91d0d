// A thread of wasm.js in Node, whose workers are not those of browsers: both its sides.

import { Worker, parentPort, workerData } from "node:worker_threads";

const MARK = "weft-thread"; // of a worker that is one of these

/** A Worker as browsers have them, which does not keep Node running. */
export class Thread {
  /** @param {URL} url of the module that it runs @param {{name?: string}} [options] */
  constructor(url, { name } = {}) {
    // execArgv is empty: the process may have options that a worker rejects
    const workerData = [MARK, name, url.href];
    this.own = new Worker(new URL(import.meta.url), { workerData, execArgv: [] });
    /** @type {(event: {data: any}) => void} */
    this.onmessage = () => {};
    /** @type {(event: {message: string}) => void} */
    this.onerror = () => {};
    this.own.on("message", (data) => {
      this.onmessage({ data });
      this.own.unref();
    });
    this.own.on("error", (error) => this.onerror(error));
  }

  /** @param {any} data */
  postMessage(data) {
    this.own.postMessage(data);
  }

  terminate() {
    this.own.terminate();
  }
}

if (parentPort && workerData?.[0] === MARK) {
  const [port, [, name, url]] = [parentPort, workerData];
  const self = { name, postMessage: (/** @type {any} */ data) => port.postMessage(data) };
  Object.assign(globalThis, { self });
  await import(url);
  port.on("message", (data) => /** @type {any} */ (self).onmessage({ data }));
}
