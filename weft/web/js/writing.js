// Texts of a language model: what a prompt or a conversation is continued by.

import { Decoder } from "./decoder.js";
import { CHAT, GENERATE, allowed, idsOf } from "./options.js";
import { WeftError, soundly } from "./program.js";
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
  const ids = typeof prompt !== "string" ? idsOf(prompt, vocab) : model.encode(
    sight ? sight.prompt(model, prompt, images) : prompt);
  if (!ids.length) throw new WeftError("the prompt is empty: give at least one character");
  yield* continued(model, ids, options, await formed(model, options));
}

/**
 * The text that follows token ids.
 * @param {Model} model @param {number[]} ids which grow @param {GenerateOptions} options
 * @param {import("./vocabulary.js").Matching | null} form that it must have
 * @returns {AsyncGenerator<Piece, void>}
 */
export async function* continued(model, ids, options, form) {
  const { context, eos } = model.manifest.model;
  const { images = [] } = options;
  if (ids.length > context) {
    throw new WeftError(`the prompt has ${ids.length} tokens; this page holds ${context}: `
      + "shorten it");
  }
  const sight = images.length ? await import("./pictures.js") : null;
  const insets = await sight?.insets(model, ids, images);
  const how = sampling(options);
  const stream = how.temperature > 0
    ? new (await import("./philox.js")).Philox(options.seed ?? 0) : null;
  const text = new StreamDecoder((part) => model.decode(part));
  const stops = new Stops(options.stop ?? []);
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

/**
 * The answer to a conversation, through the model's chat template, as `generate` gives it.
 * @param {Model} model @param {Message[]} messages
 * @param {import("./model.js").ChatOptions} options `variables` of the template, such as
 *   `enable_thinking`; with `slide` the oldest turns leave where the context is full, and the first
 *   piece says in `left` how many messages did
 * @returns {AsyncGenerator<Piece, void>}
 */
export async function* chat(model, messages, options) {
  const { variables, slide, tools, toolChoice, ...how } = allowed(options, CHAT, "chat");
  if (tools?.length && toolChoice !== "none") {
    yield* (await import("./tools.js")).answered(model, messages, options);
    return;
  }
  const most = how.maxNewTokens ?? Infinity;
  const { ids, left, images } = await fitted(model, messages, slide ? most : 0, variables);
  if (left) yield { text: "", ids: [], finish: null, left };
  yield* model.generate(ids, { ...how, images });
}

/**
 * The prompt for messages of which the oldest turns have left until a quarter of the context, or
 * `free` tokens, are free; a system message stays, and the last turn (weft/models/run/talk.py).
 * @param {Model} model @param {Message[]} messages @param {number} free
 * @param {Record<string, any>} [variables]
 * @returns {Promise<{ids: number[], left: number, images: Uint8ClampedArray[]}>}
 */
export async function fitted(model, messages, free, variables) {
  if (!Array.isArray(messages)) throw new WeftError("a conversation is a list of messages");
  const { context } = model.manifest.model;
  const room = Math.min(free, Math.floor(context / 4));
  const first = messages[0]?.role === "system" ? 1 : 0;
  const turns = messages.flatMap(({ role }, i) => (role === "user" && i > first ? [i] : []));
  for (let start = first; ; start = /** @type {number} */ (turns.shift())) {
    const told = [...messages.slice(0, first), ...messages.slice(start)];
    const { text, images } = await rendered(model, told, variables);
    const ids = model.encode(text, false);
    const fits = ids.length + room <= context;
    if (!free || fits || !turns.length) return { ids, left: start - first, images };
  }
}

/**
 * A conversation's prompt, and the pictures in it.
 * @param {Model} model @param {Message[]} messages @param {Record<string, any>} [variables]
 */
async function rendered(model, messages, variables) {
  const { picture } = model.manifest.model;
  const seen = picture?.parts || messages.some(({ content }) => Array.isArray(content));
  if (!seen) return { text: await chatPrompt(model, messages, variables), images: [] };
  const { parted, seeing, spelled } = await import("./pictures.js");
  const { plain, images } = parted(picture, messages);
  const text = await chatPrompt(model, plain, variables);
  return { text: images.length ? spelled(seeing(model), text, images.length) : text, images };
}

/**
 * Renders messages by the template: the text that the model continues.
 * @param {Model} model @param {Message[]} messages @param {Record<string, any>} [variables]
 * @returns {Promise<string>}
 */
export async function chatPrompt(model, messages, variables) {
  const { chat, name } = model.manifest;
  if (chat !== true) throw new WeftError(chat ?? `${name} has no chat template: use generate`);
  const { render } = await import("./template.js");
  const called = Array.isArray(messages) && messages.some((each) => each?.tool_calls);
  const told = called ? (await import("./tools.js")).plain(messages) : messages;
  const data = await model.chatData();
  return soundly("chat.json", () => render(data, told, variables));
}
