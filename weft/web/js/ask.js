// The page's questions about a picture of the visitor's, which stays on this device.

import { $, element, onEscape, sentence, swap } from "./fetching.js";
import { dropPlace } from "./drop.js";
import { fitted } from "./fitted.js";
import { panel } from "./tabs.js";

/** @typedef {(signal: AbortSignal) => import("./model.js").GenerateOptions} Options */

/**
 * Makes the tab. @param {import("./weft.js").PageModel} model @param {Options} options
 */
export function bindAsk(model, options) {
  document.head.append(element("link", { rel: "stylesheet", href: "ask.css" }));
  $("about").textContent = "Answers questions about your pictures. They stay on this device.";
  new Ask(model, options).bind(panel("ask", "Ask", true));
}

class Ask {
  /** @param {import("./weft.js").PageModel} model @param {Options} options */
  constructor(model, options) {
    this.model = model;
    this.options = options;
    this.shown = element("canvas", { id: "ask-picture", hidden: true });
    this.shown.setAttribute("role", "img");
    this.question = element("input", {
      id: "ask-question", autocomplete: "off", enterKeyHint: "send", value: "What is this?",
    });
    this.send = element("button", { id: "ask-send", type: "submit", textContent: "Ask" });
    this.stop = element("button", { id: "ask-stop", type: "button", textContent: "Stop" });
    this.form = element("form", { id: "ask-form" },
      element("label", { htmlFor: "ask-question", textContent: "Question" }),
      element("div", { className: "row" }, this.question, this.send, this.stop));
    this.answer = element("p", { id: "ask-answer", ariaLive: "polite" });
    this.note = element("p", { id: "ask-note", role: "status" });
    /** @type {Uint8ClampedArray | null} the picture in the model's own size */
    this.image = null;
    /** @type {AbortController | null} */
    this.running = null;
  }

  /** @param {HTMLElement} place */
  bind(place) {
    this.place = place;
    this.stop.disabled = true;
    const drop = dropPlace(place, {
      id: "ask-file", accept: "image/*", title: "Drop a picture here",
      hint: "or choose or paste one. It stays on this device.",
    }, (file) => this.take(file).catch((error) => this.say(sentence(error))));
    place.append(drop, this.shown, this.form, this.answer, this.note);
    this.form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      this.ask();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    onEscape(place, () => this.running?.abort());
  }

  /** @param {File} file */
  async take(file) {
    let picture;
    try {
      picture = await createImageBitmap(file);
    } catch {
      return this.say(`The browser cannot read ${file.name || "this"} as a picture: choose a PNG, `
        + "JPEG or WebP file.");
    }
    this.running?.abort();
    const { width, height } = picture;
    const { picture: how } = this.model.about.model;
    this.image = fitted(element("canvas"), how, picture, width, height, "white").data;
    [this.shown.width, this.shown.height] = [width, height];
    this.shown.getContext("2d").drawImage(picture, 0, 0);
    this.shown.setAttribute("aria-label", file.name || "Your picture");
    this.shown.hidden = false;
    picture.close();
    this.answer.textContent = "";
    this.say("");
    this.question.focus();
    if (this.place) this.place.dataset.state = "shown";
  }

  async ask() {
    const text = this.question.value.trim();
    if (this.running) return;
    if (!this.image || !text) return this.say("Choose a picture, and ask something about it.");
    const stop = (this.running = new AbortController());
    swap([this.send], [this.stop]);
    this.answer.textContent = "";
    this.answer.ariaBusy = "true";
    if (this.place) this.place.dataset.state = "asking";
    this.say("Looking at the picture …");
    const [begun, count] = [performance.now(), { tokens: 0, first: 0 }];
    try {
      for await (const { text: fresh, ids, finish } of this.pieces(text, stop.signal)) {
        count.first ||= performance.now();
        count.tokens += ids.length;
        this.answer.append(fresh);
        const seconds = ((count.first - begun) / 1000).toFixed(1);
        const rate = (1000 * (count.tokens - 1)) / (performance.now() - count.first);
        this.say(finish === "aborted" ? "Stopped." : `First token after ${seconds} s`
          + `${count.tokens > 2 ? `, then ${rate.toFixed(1)} tokens/s` : ""}.`);
      }
    } catch (error) {
      this.say(sentence(error));
    }
    this.running = null;
    this.answer.ariaBusy = "false";
    swap([this.stop], [this.send]);
    if (this.place) this.place.dataset.state = "answered";
  }

  /** @param {string} text @param {AbortSignal} signal */
  pieces(text, signal) {
    const image = /** @type {Uint8ClampedArray} */ (this.image);
    const how = this.options(signal);
    if (this.model.about.chat !== true) {
      return this.model.generate(text, { ...how, images: [image] });
    }
    return this.model.chat([{ role: "user", content: [
      { type: "image", image }, { type: "text", text },
    ] }], how);
  }

  /** @param {string} text */
  say(text) {
    this.note.textContent = text;
  }
}
