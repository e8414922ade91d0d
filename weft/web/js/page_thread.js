// Threads of wasm.js that the page makes for its worker: both sides. In Firefox a worker that makes
// a worker itself at times never goes on.

/** @typedef {{id: number, url?: string, options?: WorkerOptions, message?: any}} Order */

/** @type {Map<number, Thread>} */
const threads = new Map();

/** A Worker as browsers have them, within the page's worker. The page holds the real one. */
export class Thread {
  /** @param {URL} url of the module that it runs @param {WorkerOptions} [options] */
  constructor(url, options) {
    this.id = threads.size;
    threads.set(this.id, this);
    /** @type {(event: {data: any}) => void} */
    this.onmessage = () => {};
    /** @type {(event: {message: string}) => void} */
    this.onerror = () => {};
    this.order({ url: url.href, options });
  }

  /** @param {any} message */
  postMessage(message) {
    this.order({ message });
  }

  terminate() {
    this.order({});
  }

  /** @param {Omit<Order, "id">} what */
  order(what) {
    self.postMessage({ thread: { id: this.id, ...what } });
  }
}

/**
 * Hands what the page says to its thread.
 * @param {{id: number, data?: any, error?: string}} said
 */
export function hear({ id, data, error }) {
  const thread = threads.get(id);
  if (error === undefined) thread?.onmessage({ data });
  else thread?.onerror({ message: error });
}

/** The threads of one worker, in the page. */
export class Threads {
  /** @param {Worker} owner */
  constructor(owner) {
    this.owner = owner;
    /** @type {Map<number, Worker>} */
    this.made = new Map();
  }

  /** @param {Order} order with a url to make one, with a message to pass on, else to end it */
  take({ id, url, options, message }) {
    const say = (/** @type {any} */ said) => this.owner.postMessage({ thread: { id, ...said } });
    if (url !== undefined) {
      try {
        const worker = new Worker(url, options);
        worker.onmessage = ({ data }) => say({ data });
        worker.onerror = ({ message: error }) => say({ error });
        this.made.set(id, worker);
      } catch (error) {
        say({ error: /** @type {Error} */ (error).message });
      }
    } else if (message !== undefined) this.made.get(id)?.postMessage(message);
    else this.made.get(id)?.terminate();
  }

  close() {
    for (const worker of this.made.values()) worker.terminate();
  }
}
