// Asking the server, over the same protocol that every other client speaks.

/** @typedef {import("./talks.js").Message} Message */

/** An error: the server's refusal, or the reason why it was not reached. */
export class Refusal extends Error {}

/** @param {Response} response */
async function refused(response) {
  const body = await response.json().catch(() => null);
  const wait = response.headers.get("retry-after");
  const said = body?.error?.message ?? `the server answered ${response.status}`;
  return new Refusal(wait ? `${said} (in ${wait} s)` : said);
}

/** @param {string} path @param {RequestInit} [given] */
async function reach(path, given) {
  let response;
  try {
    response = await fetch(path, given);
  } catch (error) {
    if (/** @type {Error} */ (error).name === "AbortError") throw error;
    throw new Refusal("the server cannot be reached; is it still running?");
  }
  if (!response.ok) throw await refused(response);
  return response;
}

/** @returns {Promise<{ id: string, chat?: boolean, sampling?: { temperature?: number, top_p?: number } }[]>} */
export async function models() {
  return (await (await reach("/v1/models")).json()).data;
}

/** Whether a model has a chat template; it is loaded for that where it is not. @param {string} id */
export async function chatting(id) {
  const found = await reach(`/tokenizer_info?model=${encodeURIComponent(id)}`);
  return (await found.json()).chat_template !== null;
}

const SHARE = 4; // a quarter of the context is kept free for the answer, where nobody says how much
const NEW_TOKENS = 256; // of what goes on from a text, which may never end

/**
 * Where a conversation begins that the context holds: the oldest turns leave it. The last message
 * stays, and `system` before all.
 * @param {Message[]} messages @param {number} start where it began before
 * @param {{ model: string, max_tokens?: number, system?: string, chat: boolean }} how
 * @param {AbortSignal} signal
 * @returns {Promise<{ start: number, room: number }>} `room`: how many new tokens may follow
 */
export async function beginning(messages, start, { model, max_tokens, system, chat }, signal) {
  const turns = messages.flatMap(({ role }, i) => (role === "user" && i > start ? [i] : []));
  if (!turns.length && chat) return { start, room: Infinity };
  for (let at = start; ; at = /** @type {number} */ (turns.shift())) {
    const asked = promptOf(messages.slice(at), system, chat);
    const response = await reach("/tokenize", {
      method: "POST", headers: JSON_BODY, body: JSON.stringify({ model, ...asked }), signal,
    });
    const { count, max_model_len: most } = await response.json();
    const room = most - count + 1;
    const free = max_tokens ?? Math.floor(most / SHARE);
    if (free > most) return { start, room }; // which is refused, and says why
    if (room > free || !turns.length) return { start: at, room };
  }
}

const JSON_BODY = { "content-type": "application/json" };

/** @param {Message[]} messages @param {string | undefined} system @param {boolean} chat */
function promptOf(messages, system, chat) {
  if (!chat) return { prompt: messages.map((m) => m.content).join("") };
  const before = system ? [{ role: "system", content: system }] : [];
  return { messages: [...before, ...messages.map(({ role, content }) => ({ role, content }))] };
}

/**
 * The parts of an answer as they come. Models without a chat template go on from the text instead.
 * @param {Message[]} messages @param {string | undefined} system
 * @param {Record<string, any>} options @param {number} room for new tokens @param {boolean} chat
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{ content?: string, reasoning?: string, finish?: string, usage?: any }>}
 */
export async function* answer(messages, system, options, room, chat, signal) {
  const most = chat ? {} : { max_tokens: Math.max(1, Math.min(NEW_TOKENS, room)) };
  const asked = { ...promptOf(messages, system, chat), ...most };
  const response = await reach(chat ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST",
    headers: JSON_BODY,
    body: JSON.stringify({
      ...asked, ...options, stream: true, stream_options: { include_usage: true },
    }),
    signal,
  });
  for await (const data of events(/** @type {ReadableStream<BufferSource>} */ (response.body))) {
    if (data === "[DONE]") return;
    const { choices, usage, error } = JSON.parse(data);
    if (error) throw new Refusal(error.message);
    if (usage) yield { usage };
    for (const { delta, text, finish_reason: finish } of choices ?? []) {
      const content = chat ? (delta.content ?? "") + called(delta.tool_calls) : text;
      yield { content, reasoning: delta?.reasoning ?? "", finish };
    }
  }
}

/** Calls of tools, which this page has none of, as they were written. @param {any[]} [calls] */
function called(calls = []) {
  return calls.map(({ function: { name, arguments: given } }) =>
    (name ? `\n\`${name}\` ` : "") + given).join("");
}

/** The data of server-sent events. @param {ReadableStream<BufferSource>} body */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop() ?? "";
    for (const part of parts) {
      for (const line of part.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  }
}
