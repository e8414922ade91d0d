// The page's side of a training; fetched when a training begins.

import { GENERATE, TRAIN, allowed } from "./options.js";

/** A training in a model's worker; another one of the same model takes its place. */
export class PageTrainer {
  /** @param {import("./weft.js").PageModel} model @param {any} about */
  constructor(model, about) {
    this.model = model;
    this.about = about;
  }

  /**
   * Trains on a text; each step comes as it is done, and leaving the loop stops.
   * @param {string} text @param {import("./trainer.js").TrainOptions} [options]
   * @returns {AsyncGenerator<import("./trainer.js").Step, void>}
   */
  train(text, options = {}) {
    return this.model.pieces("train", { text }, allowed(options, TRAIN, "train"));
  }

  /**
   * Generates text with the weights trained so far.
   * @param {string} prompt @param {import("./model.js").GenerateOptions} [options]
   * @returns {AsyncGenerator<import("./model.js").Piece, void>}
   */
  generate(prompt, options = {}) {
    return this.model.pieces("write", { prompt }, allowed(options, GENERATE, "generate"));
  }

  /** @returns {Promise<{name: string, bytes: Uint8Array}[]>} the files of what was trained */
  files() {
    return this.model.call("trained", {});
  }
}
