// The Chat tab: a conversation as turns. The model's template makes the prompt (template.js).

import { $, element, onEscape, sentence, swap } from "./fetching.js";

/** @typedef {import("./model.js").Message} Message */

/** @type {Record<string, string>} */
const NAMES = { user: "You", assistant: "Model" };
const NEAR = 40; // pixels: who reads the end of a conversation sees it grow

/**
 * Shows the tab of a model that can chat.
 * @param {import("./weft.js").PageModel} model
 * @param {(signal: AbortSignal) => import("./model.js").GenerateOptions} options
 */
export function bindChat(model, options) {
  document.head.append(element("link", { rel: "stylesheet", href: "chat.css" }));
  const chat = new Chat(model, options);
  $("chat").append(chat.log, chat.form, chat.note);
  $("tab-chat").hidden = false;
  $("chat").addEventListener("open", () => chat.options.append($("options")));
  $("write").addEventListener("open", () => $("form").append($("options")));
}

class Chat {
  /**
   * @param {import("./weft.js").PageModel} model
   * @param {(signal: AbortSignal) => import("./model.js").GenerateOptions} asked
   */
  constructor(model, asked) {
    this.model = model;
    this.asked = asked;
    /** @type {Message[]} */
    this.messages = [];
    /** @type {AbortController | null} */
    this.running = null;
    const about = { role: "log", tabIndex: 0, ariaLabel: "Conversation", id: "turns" };
    this.log = element("div", about);
    this.said = element("textarea", {
      id: "say", rows: 2, autocomplete: "off", enterKeyHint: "send",
      placeholder: "Enter sends, Shift and Enter begins a line",
    });
    this.send = element("button", { type: "submit" }, "Send");
    this.stop = element("button", { type: "button", disabled: true }, "Stop");
    this.anew = element("button", { type: "button" }, "New conversation");
    this.options = element("div");
    this.system = element("textarea", { id: "system", rows: 2, autocomplete: "off" });
    this.form = element("form", { id: "chat-form" },
      element("label", { htmlFor: "say" }, "Message"), this.said,
      element("div", { className: "row" }, this.send, this.stop, this.anew), this.options,
      element("details", {}, element("summary", {}, "Instructions to the model"),
        element("label", { htmlFor: "system" }, "System message, for models that have one"),
        this.system));
    this.free = this.forgot = this.full = false;
    this.note = element("p", { id: "chat-note", role: "status" });
    this.bind();
    this.begin();
  }

  bind() {
    this.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.turn();
    });
    this.said.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.form.requestSubmit();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    onEscape($("chat"), () => this.running?.abort());
    this.anew.addEventListener("click", () => {
      this.begin();
      this.said.focus();
    });
  }

  /** A new conversation. */
  begin() {
    this.running?.abort();
    this.messages = [];
    this.forgot = this.full = false; // whether the oldest turns have left, and nobody was told yet
    this.log.replaceChildren();
    this.note.textContent = "";
  }

  /** @param {"user" | "assistant"} role @returns {any} where the turn's text goes */
  bubble(role, text = "") {
    const said = element("div", { className: "said" }, text);
    const name = element("span", { className: "who" }, NAMES[role]);
    this.log.append(element("div", { className: `turn ${role}` }, name, said));
    this.log.scrollTop = this.log.scrollHeight;
    return said;
  }

  /** Sends the user's words to the model; a turn that fails is removed. */
  async turn() {
    const text = this.said.value.trim();
    if (this.running || !text) return;
    const stop = (this.running = new AbortController());
    const { messages } = this;
    const system = this.system.value.trim();
    if (!messages.length && system) messages.push({ role: "system", content: system });
    messages.push({ role: "user", content: text });
    const asked = this.bubble("user", text);
    const answer = this.bubble("assistant");
    this.busy(true);
    try {
      const finish = await this.answer(messages, answer, stop.signal);
      messages.push({ role: "assistant", content: answer.textContent });
      if (messages === this.messages) this.tell(finish);
    } catch (error) {
      messages.splice(messages.length - 1);
      asked.parentNode.remove();
      answer.parentNode.remove();
      if (messages === this.messages) {
        this.said.value ||= text;
        this.note.textContent = sentence(error);
      }
    } finally {
      this.running = null;
      this.busy(false);
      document.body.dataset.turns = String(this.messages.length);
    }
  }

  /**
   * Leaves the oldest turns out of the prompt.
   * @param {Message[]} messages @param {number} left
   */
  forget(messages, left) {
    if (!left) return;
    messages.splice(messages[0].role === "system" ? 1 : 0, left);
    this.full = messages === this.messages && !this.forgot;
    this.forgot ||= this.full;
  }

  /** What is said once an answer has ended. @param {import("./model.js").Piece["finish"]} finish */
  tell(finish) {
    const said = [];
    if (finish === "length") {
      said.push(this.free ? "Cut off: the context is full."
        : "Stopped at the number of tokens that Options allow.");
    }
    if (this.full) said.push("To make room, the oldest turns are no longer read.");
    if (said.length) this.note.textContent = said.join(" ");
    this.full = false;
  }

  /** @param {boolean} on */
  busy(on) {
    if (on) swap([this.send], [this.stop]);
    else swap([this.stop], [this.send]);
    this.log.ariaBusy = String(on);
    if (on) {
      this.said.value = "";
      this.note.textContent = "The model reads …";
    }
  }

  /**
   * @param {Message[]} messages @param {any} place of the text @param {AbortSignal} signal
   * @returns {Promise<import("./model.js").Piece["finish"]>}
   */
  async answer(messages, place, signal) {
    const begun = performance.now();
    let [count, first] = [0, 0];
    /** @type {import("./model.js").Piece["finish"]} */
    let ended = null;
    const how = { ...this.asked(signal), slide: true };
    // without a limit from the user an answer ends by itself
    this.free = $("tokens").value === $("tokens").defaultValue;
    if (this.free) how.maxNewTokens = this.model.about.model.context;
    for await (const { text, ids, finish, left = 0 } of this.model.chat(messages, how)) {
      this.forget(messages, left);
      const { scrollHeight, scrollTop, clientHeight } = this.log;
      place.append(text);
      const near = scrollHeight - scrollTop - clientHeight < NEAR;
      if (near) this.log.scrollTop = this.log.scrollHeight;
      ended = finish;
      count += ids.length;
      first ||= performance.now();
      const seconds = (performance.now() - first) / 1000;
      const rate = seconds ? `${((count - 1) / seconds).toFixed(1)} tokens/s, ` : "";
      const drawn = how.temperature ? `, seed ${how.seed}` : "";
      this.note.textContent = `${rate}first after ${((first - begun) / 1000).toFixed(2)} s${drawn}`;
    }
    return ended;
  }
}
