// Conversations: messages as the server takes them (weft/serve/openai/chat.py), through the model's
// chat template. Fetched where a page chats.

import { CHAT, OBJECT, allowed, fit, shown } from "./options.js";
import { WeftError, soundly } from "./program.js";
import { render } from "./template.js";
import { encoded } from "./writing.js";

/**
 * @typedef {import("./model.js").Model} Model
 * @typedef {import("./model.js").Message} Message
 * @typedef {import("./model.js").Piece} Piece
 */

const ROLES = ["system", "developer", "user", "assistant", "tool"];

/** @param {any} content @returns {any} text, or parts where there are pictures */
function contentOf(content) {
  if (content === undefined || content === null) return "";
  if (typeof content === "string") return content;
  const parts = Array.isArray(content) ? content : [content];
  const odd = parts.find((part) => part?.type !== "image"
    && !(part?.type === "text" && typeof part.text === "string"));
  if (odd !== undefined || parts !== content) {
    throw new WeftError("the content of a message has "
      + `${JSON.stringify(odd ?? content)?.slice(0, 60)}; expected a text, or a list of `
      + '{type: "text", text} and {type: "image", image}');
  }
  return parts.some(({ type }) => type === "image") ? parts
    : parts.map(({ text }) => text).join("\n");
}

/** @param {any} call a call of a tool, whose arguments are an object where they are one */
function callOf(call) {
  let made = call.function?.arguments;
  try {
    made = JSON.parse(made);
  } catch {
    // a text
  }
  return typeof made === "object" && made !== null && !Array.isArray(made)
    ? { ...call, function: { ...call.function, arguments: made } } : call;
}

/** @param {Message[]} messages @returns {Message[]} */
export function told(messages) {
  if (!Array.isArray(messages)) {
    throw new WeftError(`a conversation is ${shown(messages)}; expected a list of messages`);
  }
  return messages.map((message) => {
    fit(message, [(v) => OBJECT[0](v) && !Array.isArray(v), "{role, content}"], "a message");
    const { role, content, tool_calls: calls, ...more } = message;
    if (!ROLES.includes(role)) {
      throw new WeftError(`the role of a message is ${shown(role)}; expected ${ROLES.join(", ")}`);
    }
    return { role: role === "developer" ? "system" : role, content: contentOf(content), ...more,
      ...Array.isArray(calls) && calls.length && { tool_calls: calls.map(callOf) } };
  });
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
  const offered = toolChoice !== "none" && (tools?.length || (toolChoice ?? "auto") !== "auto");
  const formed = how.schema !== undefined || how.responseFormat !== undefined;
  const thinks = async () => (await model.chatData()).calls?.thinking;
  if (offered || (formed && await thinks())) {
    const given = offered ? options : { ...options, tools: [], toolChoice: "none" };
    yield* (await import("./tools.js")).answered(model, messages, given);
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
  const all = told(messages);
  if (!all.length) throw new WeftError("a conversation is empty; expected at least one message");
  const { context } = model.manifest.model;
  const room = Math.min(free, Math.floor(context / 4));
  const first = all[0].role === "system" ? 1 : 0;
  const turns = all.flatMap(({ role }, i) => (role === "user" && i > first ? [i] : []));
  for (let start = first; ; start = /** @type {number} */ (turns.shift())) {
    const kept = [...all.slice(0, first), ...all.slice(start)];
    const { text, images } = await rendered(model, kept, variables);
    const least = model.tokenizer?.least(text) ?? 0; // who is sure that it is too long goes on
    if (free && turns.length && least > context) continue;
    const ids = encoded(model, text, false);
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
  const data = await model.chatData();
  const all = told(messages);
  return soundly("chat.json", () => render(data, all, variables));
}
