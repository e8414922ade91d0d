// A page's own functions for its worker, to which no function can be sent: where a file is
// (`address`), and how it is fetched (`fetch`). Both sides.

/**
 * @typedef {{id: number, name?: string, again?: boolean, address?: string,
 *   headers?: Record<string, string>}} Asked without a name and an address: it is no longer wanted
 * @typedef {{id: number, value?: string, status?: number, headers?: [string, string][],
 *   chunk?: Uint8Array, end?: boolean, error?: string}} Told
 */

/** @type {Map<number, (told: Told) => void>} */
const asked = new Map();
let last = 0;

/** Hands on what the page says. @param {Told} told */
export const hear = (told) => asked.get(told.id)?.(told);

/**
 * The worker's side: what stands for the page's functions.
 * @param {string[]} names of those that the page has
 * @returns {import("./store.js").Access}
 */
export function access(names) {
  const all = { address, fetch: remote };
  return Object.fromEntries(Object.entries(all).filter(([name]) => names.includes(name)));
}

/** @param {Omit<Asked, "id">} what @param {(told: Told) => void} on @returns {number} */
function ask(what, on) {
  asked.set(++last, on);
  self.postMessage({ ask: { id: last, ...what } });
  return last;
}

/** @param {string} name @param {boolean} again @returns {Promise<string>} */
function address(name, again) {
  return new Promise((done, fail) => {
    const id = ask({ name, again }, ({ value, error }) => {
      asked.delete(id);
      if (error === undefined) done(/** @type {string} */ (value));
      else fail(new TypeError(error));
    });
  });
}

/** @param {string} at @param {RequestInit} how @returns {Promise<Response>} */
function remote(at, { headers, signal }) {
  return new Promise((done, fail) => {
    /** @type {ReadableStreamDefaultController<Uint8Array>} */
    let body;
    const stream = new ReadableStream({
      start: (controller) => void (body = controller),
      cancel: () => stop(),
    });
    const over = () => {
      asked.delete(id);
      signal?.removeEventListener("abort", abort);
    };
    const stop = () => {
      over();
      self.postMessage({ ask: { id } });
    };
    const broken = (/** @type {any} */ error) => {
      fail(error);
      body.error(error);
    };
    const abort = () => {
      stop();
      broken(signal?.reason);
    };
    const given = { address: at, headers: /** @type {Record<string, string>} */ (headers) };
    const id = ask(given, ({ status, headers: said, chunk, end, error }) => {
      if (status !== undefined) {
        const empty = [101, 204, 205, 304].includes(status);
        done(new Response(empty ? null : stream, { status, headers: said }));
      }
      if (chunk) body.enqueue(chunk);
      if (error === undefined && !end) return;
      over();
      if (end) body.close();
      else broken(new TypeError(error));
    });
    signal?.addEventListener("abort", abort);
  });
}

/** The page's side, for one worker. */
export class Answers {
  /** @param {Worker} worker @param {import("./store.js").Access} own */
  constructor(worker, own) {
    this.worker = worker;
    this.own = own;
    /** @type {Map<number, AbortController>} */
    this.running = new Map();
  }

  /** @param {Asked} asked */
  async take({ id, name, again = false, address: at, headers }) {
    /** @param {Omit<Told, "id">} what @param {Transferable[]} [moved] */
    const tell = (what, moved = []) => this.worker.postMessage({ told: { id, ...what } }, moved);
    const { address: where, fetch: get } = this.own;
    try {
      if (name !== undefined && typeof where === "function") {
        const value = await where(name, again);
        tell({ value: value === undefined ? value : String(value) });
      } else if (at !== undefined && get) {
        const stop = new AbortController();
        this.running.set(id, stop);
        const response = await get(at, { headers, signal: stop.signal, cache: "no-store" });
        tell({ status: response.status, headers: [...response.headers] });
        for (const reader = response.body?.getReader(); reader;) {
          const { done, value } = await reader.read();
          if (done) break;
          const chunk = new Uint8Array(value); // the page may go on using its own
          tell({ chunk }, [chunk.buffer]);
        }
        tell({ end: true });
      } else this.running.get(id)?.abort();
    } catch (error) {
      tell({ error: /** @type {Error} */ (error)?.message ?? String(error) });
    } finally {
      if (at !== undefined) this.running.delete(id);
    }
  }
}
