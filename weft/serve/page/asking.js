// Asking the server, over the same protocol that every other client speaks.

/** @typedef {import("./talks.js").Message} Message */

/** What the server said no to, or why it was not reached. */
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

/** @returns {Promise<{ id: string, chat?: boolean }[]>} */
export async function models() {
  return (await (await reach("/v1/models")).json()).data;
}

/** Whether a model has a chat template; it is loaded for that where it is not. @param {string} id */
export async function chatting(id) {
  const found = await reach(`/tokenizer_info?model=${encodeURIComponent(id)}`);
  return (await found.json()).chat_template !== null;
}

/**
 * The parts of an answer as they come. Models without a chat template go on from the text instead.
 * @param {Message[]} messages @param {Record<string, any>} options @param {boolean} chat
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{ content?: string, reasoning?: string, finish?: string, usage?: any }>}
 */
export async function* answer(messages, options, chat, signal) {
  const asked = chat
    ? { messages: messages.map(({ role, content }) => ({ role, content })) }
    : { prompt: messages.map((m) => m.content).join(""), max_tokens: 256 };
  const response = await reach(chat ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
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
