// Texts of a language model: what a prompt or a conversation is continued by.

import { Decoder } from "./decoder.js";
import { GENERATE, allowed, idsOf } from "./options.js";
import { WeftError } from "./program.js";
import { choose, sampling } from "./sampler.js";
import { Stops, StreamDecoder } from "./text.js";

/**
 * @typedef {import("./model.js").Model} Model
 * @typedef {import("./model.js").Message} Message
 * @typedef {import("./model.js").GenerateOptions} GenerateOptions
 * @typedef {import("./model.js").Piece} Piece
 */

/** @param {import("./session.js").Sessions} sessions @param {any} about the model */
export const make = (sessions, about) => new Decoder(sessions, about);

/**
 * The text that follows, piece by piece. The last piece says why it ended.
 * @param {Model} model @param {string | number[]} prompt @param {GenerateOptions} options
 * @returns {AsyncGenerator<Piece, void>}
 */
export async function* generate(model, prompt, options) {
  allowed(options, GENERATE, "generate");
  const { vocab } = model.manifest.model;
  const { images = [] } = options;
  const sight = images.length ? await import("./pictures.js") : null;
  const ids = typeof prompt !== "string" ? idsOf(prompt, vocab)
    : encoded(model, sight ? sight.prompt(model, prompt, images) : prompt);
  if (!ids.length) throw new WeftError("the prompt is empty: give at least one character");
  yield* continued(model, ids, options, await formed(model, options));
}

/**
 * The ids of a prompt. One that is far too long is refused at once: its ids would take seconds.
 * @param {Model} model @param {string} text @param {boolean} [special] @returns {number[]}
 */
export function encoded(model, text, special) {
  const { context } = model.manifest.model;
  const least = model.tokenizer?.least(text) ?? 0;
  if (least > context) throw tooLong(`at least ${least}`, context);
  return model.encode(text, special);
}

/** @param {string | number} tokens @param {number} context */
const tooLong = (tokens, context) => new WeftError(`the prompt has ${tokens} tokens; this page `
  + `holds ${context}: shorten it`);

/**
 * The text that follows token ids.
 * @param {Model} model @param {number[]} ids which grow @param {GenerateOptions} options
 * @param {import("./vocabulary.js").Matching | null} form that it must have
 * @param {StreamDecoder} text of the new tokens, in which stop strings are looked for
 * @returns {AsyncGenerator<Piece, void>}
 */
export async function* continued(model, ids, options, form,
  text = new StreamDecoder((part) => model.decode(part))) {
  const { context, eos } = model.manifest.model;
  const { images = [] } = options;
  if (ids.length > context) throw tooLong(ids.length, context);
  const sight = images.length ? await import("./pictures.js") : null;
  const insets = await sight?.insets(model, ids, images);
  const how = sampling(options);
  const stream = how.temperature > 0
    ? new (await import("./philox.js")).Philox(options.seed ?? 0) : null;
  const stops = new Stops([options.stop ?? []].flat());
  const first = ids.length;
  const most = Math.min(options.maxNewTokens ?? 64, context - first + 1);
  /** @type {Piece["finish"]} */
  let finish = most > 0 ? null : "length";
  while (!finish) {
    if (options.signal?.aborted) break;
    const logits = await model.logits(ids, options.signal, insets);
    if (!logits) break;
    const token = choose(logits, ids, how, stream, form?.allowed());
    if (eos.includes(token)) {
      finish = "eos";
      break;
    }
    ids.push(token);
    form?.accept(token);
    const shown = stops.push(text.push(token));
    if (stops.stopped) finish = "stop";
    else if (form?.ended) finish = "eos";
    else if (ids.length - first >= most) finish = "length";
    yield { text: shown, ids: [token], finish: null };
  }
  const rest = stops.push(text.flush(), true);
  if (stops.stopped && finish === "length") finish = "stop";
  yield { text: rest, ids: [], finish: finish ?? "aborted" };
}

/**
 * The form that an answer must have; null where any text may come.
 * @param {Model} model @param {GenerateOptions} options
 */
async function formed(model, options) {
  if (options.schema === undefined && options.responseFormat === undefined) return null;
  const { matching, schemaOf } = await import("./forced.js");
  const schema = schemaOf(options);
  return schema === undefined ? null : matching(model, schema);
}

/** What chats, where the model has a template. @param {Model} model */
function talking({ manifest: { chat: can, name } }) {
  if (can !== true) throw new WeftError(can ?? `${name} has no chat template: use generate`);
  return import("./talk.js");
}

/**
 * The answer to a conversation (talk.js).
 * @param {Model} model @param {Message[]} messages
 * @param {import("./model.js").ChatOptions} options @returns {AsyncGenerator<Piece, void>}
 */
export async function* chat(model, messages, options) {
  yield* (await talking(model)).chat(model, messages, options);
}

/**
 * The text that the model continues in a conversation (talk.js).
 * @param {Model} model @param {Message[]} messages @param {Record<string, any>} [variables]
 * @returns {Promise<string>}
 */
export async function chatPrompt(model, messages, variables) {
  return (await talking(model)).chatPrompt(model, messages, variables);
}
