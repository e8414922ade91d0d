// Training: a folder beside the model's, whose Programs make steps and write with the result.

import { readManifest } from "./manifest.js";
import { Model } from "./model.js";
import { Philox } from "./philox.js";
import { LOAD, TEXT, TRAIN, allowed, fit } from "./options.js";
import { WeftError, isText, soundly, whole } from "./program.js";

/**
 * @typedef {{steps?: number, lr?: number, seed?: number | bigint,
 *   signal?: AbortSignal}} TrainOptions
 * @typedef {{step: number, loss: number, norm: number, rate: number, seconds: number,
 *   tokens: number}} Step
 */

/** The weights in training, on a device of their own. */
export class Trainer extends Model {
  /**
   * @param {Model} model whose page it is @param {any} store of the training's own folder
   * @param {import("./model.js").LoadOptions} [options] @returns {Promise<Trainer>}
   */
  static async beside(model, store, options = {}) {
    allowed(options, LOAD, "trainer");
    const manifest = readManifest(await store.json("manifest.json"));
    const trainer = new Trainer(store, readTraining(manifest), options);
    trainer.tokenizer = model.tokenizer;
    await trainer.start();
    return trainer;
  }

  /** @param {any} store @param {any} manifest @param {import("./model.js").LoadOptions} options */
  constructor(store, manifest, options) {
    super(store, manifest, options);
    this.done = 0; // steps, over all calls of `train`
  }

  /**
   * Trains on a text, from where the last call ended; each step is yielded when it is done.
   * @param {string} text @param {TrainOptions} [options] @returns {AsyncGenerator<Step, void>}
   */
  async *train(text, options = {}) {
    const { batch, length, end, warmup } = this.manifest.train;
    const asked = allowed(options, TRAIN, "train");
    const { steps = 200, lr = this.manifest.train.lr, seed = 0, signal } = asked;
    const tokenizer = /** @type {any} */ (this.tokenizer);
    const ids = [...tokenizer.encode(fit(text, TEXT, "the text of train"), false), ...end];
    const batches = new Batches(ids, batch, length, seed);
    if (!this.sessions) await this.start(); // it was lost: from the beginning
    for (let n = 0; n < steps && !signal?.aborted; n++) {
      const begun = performance.now();
      const rate = schedule(lr, n, steps, Math.min(warmup, steps));
      const [x, y] = batches.at(this.done);
      const inputs = { ids: x, targets: y, rate: Float32Array.of(rate) };
      const [loss, norm, good] = (await this.play("train", inputs)).map((out) =>
        new Float32Array(out.buffer, out.byteOffset, 1)[0]);
      if (!good || !Number.isFinite(loss)) {
        throw new WeftError(`step ${this.done + 1}: the loss is ${loss}, the gradient's norm `
          + `${norm}. Nothing was changed by this step: lower the learning rate`);
      }
      this.done += 1;
      const seconds = (performance.now() - begun) / 1000;
      yield { step: this.done, loss, norm, rate, seconds, tokens: ids.length };
      await new Promise((done) => setTimeout(done)); // a stop is a message
    }
  }

  /**
   * The trained weights are on the device only, and are lost with it.
   * @template T @param {(sessions: import("./session.js").Sessions) => Promise<T>} work
   * @returns {Promise<T>}
   */
  async held(work) {
    const gone = "what was trained is gone: start the training again";
    try {
      const { sessions } = this;
      if (!sessions) throw new WeftError(gone);
      return await this.inTurn(() => work(sessions));
    } catch (error) {
      const why = this.sessions && await this.failure(/** @type {Error} */ (error));
      if (!why) throw error;
      this.sessions = null;
      this.done = 0;
      throw new WeftError(`${why}; ${gone}`, { cause: error });
    }
  }

  /**
   * A step is never cut short.
   * @param {string} kind @param {Record<string, ArrayBufferView>} inputs
   */
  play(kind, inputs) {
    return this.held((sessions) => sessions.run(kind, inputs, {}));
  }

  /** The logits after a window: the last ids of a text. @param {number[]} ids */
  async logits(ids) {
    const window = new Int32Array(this.manifest.train.length);
    const last = ids.slice(-window.length);
    window.set(last);
    const [out] = await this.play("next", { ids: window, last: Int32Array.of(last.length - 1) });
    return new Float32Array(out.buffer, out.byteOffset, this.manifest.model.vocab);
  }

  /**
   * Returns files with the trained weights, as transformers or PEFT and weft read them.
   * @returns {Promise<{name: string, bytes: Uint8Array}[]>}
   */
  async files() {
    const { weights: [name, head, states], config } = this.manifest.train.save;
    const text = new TextEncoder();
    const size = new Uint8Array(8);
    const header = text.encode(head);
    new DataView(size.buffer).setUint32(0, header.length, true);
    const parts = await this.held((sessions) =>
      Promise.all(states.map((/** @type {string} */ state) => sessions.read(state))));
    const bytes = new Uint8Array(await new Blob([size, header, ...parts]).arrayBuffer());
    return [{ name, bytes }, { name: config[0], bytes: text.encode(config[1]) }];
  }
}

/** @param {any} manifest @returns {any} the same, or a WeftError that says what is wrong with it */
function readTraining(manifest) {
  return soundly("the training's manifest", () => {
    const { batch, length, warmup, lr, end, save } = manifest.train;
    const [name, head, states] = save.weights;
    const right = [batch, length].every((n) => whole(n) && n > 0 && n <= 2 ** 16)
      && [warmup, ...end].every(whole) && lr >= 0
      && [name, save.config[0]].every((file) => /^\w[\w.-]*$/.test(file))
      && [head, save.config[1], ...states].every(isText);
    if (!right) throw new WeftError("the training's manifest is damaged; export the folder again");
    return manifest;
  });
}

/**
 * The learning rate of step `n`: up in `warmup` steps, then half a cosine down to zero.
 * @param {number} lr @param {number} n @param {number} steps @param {number} warmup
 */
export function schedule(lr, n, steps, warmup) {
  if (n < warmup) return (lr * (n + 1)) / warmup;
  return (lr * (Math.cos((Math.PI * (n - warmup)) / Math.max(steps - warmup, 1)) + 1)) / 2;
}

/** Windows of a text in the order of weft train (weft/training/tokens.py). */
export class Batches {
  /**
   * @param {number[]} ids @param {number} batch @param {number} length
   * @param {bigint | number} seed
   */
  constructor(ids, batch, length, seed) {
    this.ids = ids;
    this.batch = batch;
    this.length = length;
    this.seed = seed;
    this.windows = Math.floor((ids.length - length) / length); // room for each offset below length
    if (this.windows < 1) {
      throw new WeftError(`the text has ${ids.length} tokens, and training takes at least `
        + `${2 * length}: paste more text`);
    }
    this.epoch = -1;
    this.order = new Uint32Array();
    this.offset = 0;
  }

  /**
   * Ids and targets of batch `number`.
   * @param {number} number @returns {[Int32Array, Int32Array]}
   */
  at(number) {
    const { batch, length } = this;
    const [ids, targets] = [new Int32Array(batch * length), new Int32Array(batch * length)];
    for (let row = 0; row < batch; row++) {
      const start = this.start(number * batch + row);
      ids.set(this.ids.slice(start, start + length), row * length);
      targets.set(this.ids.slice(start + 1, start + length + 1), row * length);
    }
    return [ids, targets];
  }

  /** @param {number} index of a window, over all epochs */
  start(index) {
    const epoch = Math.floor(index / this.windows);
    if (epoch !== this.epoch) {
      const stream = new Philox(this.seed, epoch);
      this.epoch = epoch;
      this.order = stream.permutation(this.windows);
      this.offset = stream.below(this.length);
    }
    return this.offset + this.order[index % this.windows] * this.length;
  }
}
