// The Chat tab: a conversation as turns. The model's template makes the prompt (template.js). The
// browser keeps the conversation and the draft until a new one begins.

import { $, copy, element, onEscape, own, recall, remember, sentence, swap } from "./fetching.js";

/** @typedef {import("./model.js").Message} Message */
/**
 * A conversation. The model no longer reads the first `left` turns.
 * @typedef {{system: string, turns: {role: "user" | "assistant", content: string}[], left: number}}
 *   Talk
 */

/** @type {Record<string, string>} */
const NAMES = { user: "You", assistant: "Model" };
const NEAR = 40; // pixels: who reads the end of a conversation sees it grow
const KEPT = own("chat");
const VARIED = 0.7; // the temperature of another answer where the visitor's own is 0

/**
 * Shows the tab of a model that can chat.
 * @param {import("./weft.js").PageModel} model
 * @param {(signal: AbortSignal) => import("./model.js").GenerateOptions} options
 */
export function bindChat(model, options) {
  const chat = new Chat(model, options);
  const end = () => (chat.log.scrollTop = chat.log.scrollHeight);
  // the conversation scrolls only once it has its style
  document.head.append(element("link", { rel: "stylesheet", href: "chat.css", onload: end }));
  $("chat").append(chat.log, chat.form, chat.note);
  chat.note.textContent = $("note").textContent; // of the load; Write shows it too
  $("tab-chat").hidden = false;
  $("chat").addEventListener("open", () => {
    chat.options.append($("options"));
    requestAnimationFrame(end); // once it is seen
  });
  $("write").addEventListener("open", () => $("form").append($("options")));
}

/** @returns {Talk} */
const fresh = () => ({ system: "", turns: [], left: 0 });

/** @returns {{talk?: Talk, draft: string}} what the browser has kept, if it makes sense */
function kept() {
  try {
    const { system, turns, left, draft } = JSON.parse(recall(KEPT) ?? "");
    const whole = [system, draft, ...turns.map((/** @type {any} */ turn) => turn.content)];
    const sound = whole.every((text) => typeof text === "string") && left <= turns.length
      && turns.every((/** @type {any} */ { role }, /** @type {number} */ n) =>
        role === (n % 2 ? "assistant" : "user"));
    if (sound) return { talk: { system, turns, left: Math.max(0, Math.trunc(left)) }, draft };
  } catch {
    // nothing, or another version's
  }
  return { draft: "" };
}

/** @returns {boolean} whether the browser keeps anything for this page */
function keeps() {
  const key = own("kept?");
  remember(key, "1");
  const found = recall(key);
  remember(key, null);
  return found !== null;
}

class Chat {
  /**
   * @param {import("./weft.js").PageModel} model
   * @param {(signal: AbortSignal) => import("./model.js").GenerateOptions} asked
   */
  constructor(model, asked) {
    this.model = model;
    this.asked = asked;
    this.talk = fresh();
    /** @type {AbortController | null} */
    this.running = null;
    const about = { role: "log", tabIndex: 0, ariaLabel: "Conversation", id: "turns" };
    this.log = element("div", about);
    this.said = element("textarea", {
      id: "say", rows: 2, dir: "auto", autocomplete: "off", enterKeyHint: "send",
      placeholder: "Enter sends, Shift and Enter begins a line",
    });
    this.send = element("button", { type: "submit" }, "Send");
    this.stop = element("button", { type: "button", disabled: true }, "Stop");
    this.anew = element("button", { type: "button" }, "New conversation");
    this.options = element("div");
    this.system = element("textarea", {
      id: "system", rows: 2, dir: "auto", autocomplete: "off",
    });
    this.form = element("form", { id: "chat-form" },
      element("label", { htmlFor: "say" }, "Message"), this.said,
      element("div", { className: "row" }, this.send, this.stop, this.anew), this.options,
      element("details", {}, element("summary", {}, "Instructions to the model"),
        element("label", { htmlFor: "system" }, "System message, for models that have one"),
        this.system),
      element("p", { className: "quiet" }, keeps()
        ? "This browser keeps the conversation until you begin a new one."
        : "This browser does not keep the conversation: a reload ends it."));
    this.another = element("button", { type: "button" }, "Regenerate");
    this.edit = element("button", { type: "button" }, "Edit question");
    this.free = this.forgot = this.full = false;
    this.note = element("p", { id: "chat-note", role: "status" });
    this.bind();
    const { talk, draft } = kept();
    this.begin(talk);
    this.said.value = draft;
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
    this.form.addEventListener("input", () => this.keep());
    this.stop.addEventListener("click", () => this.running?.abort());
    onEscape($("chat"), () => this.running?.abort());
    this.anew.addEventListener("click", () => {
      this.begin();
      remember(KEPT, null);
      this.said.focus();
    });
    this.another.addEventListener("click", () => this.again());
    this.edit.addEventListener("click", () => this.takeBack());
  }

  /** A new conversation, or a kept one. @param {Talk} [talk] */
  begin(talk = fresh()) {
    this.running?.abort();
    this.talk = talk;
    this.forgot = talk.left > 0; // whether the oldest turns have left
    this.full = false; // and nobody was told yet
    this.log.replaceChildren();
    this.note.textContent = "";
    for (const { role, content } of talk.turns) this.bubble(role, content);
    if (talk.turns.length) this.system.value = talk.system;
    this.settle();
  }

  keep() {
    const { turns } = this.talk;
    const system = turns.length ? this.talk.system : this.system.value;
    remember(KEPT, JSON.stringify({ ...this.talk, system, draft: this.said.value }));
  }

  /** Puts the last turn's buttons where they belong. */
  settle() {
    this.log.lastChild?.lastChild.append(this.another, this.edit);
    this.log.scrollTop = this.log.scrollHeight;
    document.body.dataset.turns = String(this.talk.turns.length);
  }

  /** @param {"user" | "assistant"} role @returns {any} the turn */
  bubble(role, text = "") {
    const said = element("div", { className: "said", dir: "auto" }, text);
    const turn = element("div", { className: `turn ${role}` },
      element("span", { className: "who" }, NAMES[role]), said);
    if (role === "assistant") {
      const button = element("button", { type: "button" }, "Copy");
      button.onclick = () => copy(said.textContent, this.note);
      turn.append(element("div", { className: "acts" }, button));
    }
    this.log.append(turn);
    this.log.scrollTop = this.log.scrollHeight;
    return turn;
  }

  /** Sends the user's words to the model; a turn that fails is removed. */
  async turn() {
    const content = this.said.value.trim();
    if (this.running || !content) return;
    const { talk } = this;
    if (!talk.turns.length) talk.system = this.system.value.trim();
    talk.turns.push({ role: "user", content });
    const shown = this.bubble("user", content);
    this.said.value = "";
    if (await this.reply(talk)) return;
    talk.turns.pop();
    shown.remove();
    if (talk === this.talk) this.said.value ||= content;
    this.settle();
  }

  /** Another answer to the last question; the old one stays if it fails. */
  async again() {
    if (this.running) return;
    const { talk } = this;
    const old = /** @type {any} */ (talk.turns.pop());
    const shown = this.log.lastChild;
    this.busy(true); // Stop has the focus before the pressed button goes: Escape is heard there
    shown.remove();
    if (await this.reply(talk, true)) return;
    talk.turns.push(old);
    if (talk === this.talk) this.log.append(shown);
    this.settle();
  }

  /** Makes the last question the draft, without its answer. */
  takeBack() {
    if (this.running) return;
    const [asked] = this.talk.turns.splice(-2);
    this.said.value = asked.content;
    for (let n = 0; n < 2; n++) this.log.lastChild.remove();
    this.settle();
    this.keep();
    this.said.focus();
  }

  /**
   * The model's answer to the last turn.
   * @param {Talk} talk @param {boolean} [varied] another than before
   * @returns {Promise<boolean>} whether there is one
   */
  async reply(talk, varied) {
    const stop = (this.running = new AbortController());
    const shown = this.bubble("assistant");
    const place = shown.querySelector(".said");
    this.busy(true);
    try {
      const finish = await this.answer(talk, place, stop.signal, varied);
      if (!place.textContent) stop.signal.throwIfAborted(); // nothing of it to keep
      talk.turns.push({ role: "assistant", content: place.textContent });
      if (talk === this.talk) {
        this.tell(finish);
        this.keep();
      }
      return true;
    } catch (error) {
      shown.remove();
      if (talk === this.talk) this.note.textContent = sentence(error);
      return false;
    } finally {
      this.running = null;
      this.busy(false);
      this.settle();
    }
  }

  /** Leaves the oldest turns out of the prompt. @param {Talk} talk @param {number} left */
  forget(talk, left) {
    if (!left) return;
    talk.left += left;
    this.full = talk === this.talk && !this.forgot;
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
    if (on) swap([this.send, this.another, this.edit], [this.stop]);
    else swap([this.stop], [this.send, this.another, this.edit]);
    this.log.ariaBusy = String(on);
    if (on) this.note.textContent = "The model reads …";
  }

  /**
   * @param {Talk} talk @param {any} place of the text @param {AbortSignal} signal
   * @param {boolean} [varied]
   */
  async answer(talk, place, signal, varied) {
    const begun = performance.now();
    let [count, first] = [0, 0];
    /** @type {import("./model.js").Piece["finish"]} */
    let ended = null;
    const how = { ...this.asked(signal), slide: true };
    if (varied) {
      how.seed = crypto.getRandomValues(new Uint32Array(1))[0];
      how.temperature ||= VARIED;
    }
    // without a limit from the user an answer ends by itself
    this.free = $("tokens").value === $("tokens").defaultValue;
    if (this.free) how.maxNewTokens = this.model.about.model.context;
    /** @type {Message[]} */
    const messages = talk.turns.slice(talk.left);
    if (talk.system) messages.unshift({ role: "system", content: talk.system });
    for await (const { text, ids, finish, left = 0 } of this.model.chat(messages, how)) {
      this.forget(talk, left);
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
