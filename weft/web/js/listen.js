// The page of a model of speech: what is said in a file or into the microphone, with its times.

import { $, copy, element, onEscape, sentence } from "./fetching.js";
import { dropPlace } from "./drop.js";
import { Recording, decoded } from "./sound.js";
import { FORMS, clock } from "./subtitles.js";
import { panel } from "./tabs.js";

const MIME = { txt: "text/plain", srt: "application/x-subrip", vtt: "text/vtt" };

/** @typedef {import("./speech.js").Segment} Segment */

/** Makes the tab. @param {import("./weft.js").PageModel} model */
export function bind(model) {
  $("about").textContent = "Writes down what is said. What it hears stays on this device.";
  document.head.append(element("link", { rel: "stylesheet", href: "listen.css" }));
  new Listen(model).bind(panel("listen", "Listen"));
}

/** The name of a language. @param {string} code @returns {string} */
function spoken(code) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code) ?? code;
  } catch {
    return code; // the model's author has another code for it
  }
}

class Listen {
  /** @param {import("./weft.js").PageModel} model */
  constructor(model) {
    this.model = model;
    this.about = model.about.model;
    const button = (/** @type {string} */ id, /** @type {string} */ textContent) =>
      element("button", { id: `listen-${id}`, type: "button", textContent });
    this.record = button("record", "Record");
    this.stop = button("stop", "Stop");
    this.level = element("meter", { id: "listen-level", max: 0.3, ariaLabel: "Loudness" });
    this.player = element("audio", { id: "listen-player", controls: true });
    this.bar = element("progress", { id: "listen-bar", max: 1, ariaLabel: "Heard" });
    this.note = element("p", { id: "listen-note", role: "status" });
    this.lines = element("ol", { id: "listen-lines", ariaLabel: "Transcript" });
    this.growing = element("p", { id: "listen-growing", ariaHidden: "true" });
    this.saves = element("div", { id: "listen-saves", className: "row" },
      ...Object.keys(FORMS).map((form) => Object.assign(button(form, `Save .${form}`),
        { onclick: () => this.save(form) })),
      Object.assign(button("copy", "Copy"), { onclick: () => this.copy() }));
    this.language = element("select", { id: "listen-language" });
    this.english = element("input", { id: "listen-english", type: "checkbox" });
    this.times = element("input", { id: "listen-times", type: "checkbox", checked: true });
    /** @type {AbortController | null} of what is heard now */
    this.running = null;
    /** @type {Recording | null} */
    this.recording = null;
    /** @type {Segment[]} */
    this.segments = [];
    this.name = "transcript";
    /** @type {string | null} */
    this.found = null; // the language
  }

  /** @param {HTMLElement} place */
  bind(place) {
    this.place = place;
    const drop = dropPlace(place, {
      id: "listen-file", accept: "audio/*,video/*", title: "Drop a file with speech here",
      hint: "or choose one: sound or video. It stays on this device.",
    }, (file) => this.while((signal) => this.read(file, signal)));
    place.append(drop,
      element("div", { className: "row" }, this.record, this.stop, this.level, ...this.options()),
      this.note, this.bar, this.player, this.lines, this.growing, this.saves);
    this.player.hidden = this.bar.hidden = this.saves.hidden = this.level.hidden = true;
    this.stop.disabled = true;
    this.record.addEventListener("click", () => this.while(() => this.live()));
    this.stop.addEventListener("click", () => this.end());
    onEscape(place, () => this.end());
  }

  /** The choice of the language, of a translation where the model has one, and of times. */
  options() {
    const { languages, tasks } = this.about;
    const codes = Object.keys(languages);
    const named = codes.map((code) => ({ code, name: spoken(code) }));
    named.sort((a, b) => a.name.localeCompare(b.name));
    this.language.append(element("option", { value: "", textContent: "Any language" }),
      ...named.map(({ code, name }) => element("option", { value: code, textContent: name })));
    this.language.ariaLabel = "Language";
    const english = element("label", {}, this.english, " in English");
    const times = element("label", { title: "Off: one piece for each window" }, this.times,
      " with times");
    return [...(codes.length ? [this.language] : []), ...("translate" in tasks ? [english] : []),
      times];
  }

  /** Stops what runs: a recording is heard to its end, a file is not. */
  end() {
    if (this.recording) this.recording.stop();
    else this.running?.abort();
  }

  /** One thing at a time. @param {(signal: AbortSignal) => Promise<void>} work */
  async while(work) {
    if (this.running) return this.say("Stop first: one sound at a time.");
    this.running = new AbortController();
    this.clear();
    this.state("hearing");
    try {
      await work(this.running.signal);
      const { length } = this.segments;
      this.say(this.running.signal.aborted ? "Stopped." : length ? this.summary()
        : "Nobody seems to speak in it.");
    } catch (error) {
      this.say(sentence(error));
    }
    this.running = this.recording = null;
    this.growing.textContent = "";
    this.saves.hidden = !this.segments.length;
    this.state("done");
  }

  /** @param {string} state */
  state(state) {
    const busy = state === "hearing";
    [this.record.disabled, this.stop.disabled, this.bar.hidden] = [busy, !busy, !busy];
    this.level.hidden = true;
    this.record.classList.remove("on");
    const { place } = this;
    if (place) Object.assign(place.dataset, { state, heard: JSON.stringify(this.segments) });
  }

  clear() {
    this.segments = [];
    this.found = null;
    this.begun = performance.now();
    this.seconds = this.bar.value = 0;
    this.lines.replaceChildren();
    this.saves.hidden = this.player.hidden = true;
    URL.revokeObjectURL(this.player.src);
  }

  /** @param {File} file @param {AbortSignal} signal */
  async read(file, signal) {
    this.say(`Reading ${file.name} …`);
    const samples = await decoded(file);
    this.name = file.name.replace(/\.\w+$/, "");
    this.player.src = URL.createObjectURL(file);
    this.player.hidden = false;
    await this.hear(samples, 0, { signal });
  }

  /** Records, and hears each window as soon as it is whole. */
  async live() {
    this.say("Waiting for the microphone …");
    let full = () => {};
    const size = (2 * this.about.source) / 100; // seconds of a window
    const recording = await Recording.begin((loud) => {
      this.level.value = loud;
      if (!this.segments.length) this.say(`Recording, ${recording.waiting.toFixed(0)} s …`);
      if (recording.waiting >= size) full();
    });
    this.recording = recording;
    this.record.classList.add("on");
    this.level.hidden = false;
    this.bar.hidden = true;
    this.name = "recording";
    let over = false;
    recording.over.then(() => (over = true));
    while (!over) {
      await Promise.race([recording.over, new Promise((done) => (full = () => done(null)))]);
      if (!over) recording.taken(await this.hear(await recording.samples(), recording.first,
        { more: true }));
    }
    this.recording = null;
    const rest = await recording.samples();
    if (rest) await this.hear(rest, recording.first, { signal: this.running?.signal });
  }

  /**
   * Shows what is said in samples; returns after how many seconds the next ones begin.
   * @param {any} samples @param {number} first second of the sound @param {any} more options
   */
  async hear(samples, first, more) {
    const task = this.english.checked ? "translate" : "transcribe";
    const language = this.language.value || this.found || undefined;
    const how = { task, language, timestamps: this.times.checked, ...more };
    let taken = 0;
    for await (const piece of this.model.transcribe(samples, how)) {
      const { segment, growing, at, duration } = piece;
      taken = at;
      this.found = piece.language;
      this.seconds = first + at;
      this.growing.textContent = growing;
      this.bar.value = at / duration;
      if (segment) this.add({ ...segment, start: first + segment.start, end: first + segment.end });
      const [done, all] = [at, duration].map((seconds) => clock(seconds).slice(0, 8));
      if (!more.more) this.say(`${done} of ${all} heard.`);
    }
    return taken;
  }

  /** @param {Segment} segment */
  add(segment) {
    this.segments.push(segment);
    const time = element("button", { type: "button", className: "time",
      textContent: clock(segment.start).slice(segment.start < 3600 ? 3 : 0, -2),
      title: "Play from here", onclick: () => {
        this.player.currentTime = segment.start;
        this.player.play();
      } });
    time.disabled = this.player.hidden;
    this.lines.append(element("li", {}, time, element("span", {}, segment.text.trim())));
  }

  summary() {
    const took = (performance.now() - (this.begun ?? 0)) / 1000;
    const language = this.found ? `, ${spoken(this.found)}` : "";
    return `${this.segments.length} pieces${language}, in ${took.toFixed(1)} s.`;
  }

  /** @param {string} text */
  say(text) {
    this.note.textContent = text;
  }

  /** @param {string} form */
  save(form) {
    const type = MIME[/** @type {keyof typeof MIME} */ (form)];
    const href = URL.createObjectURL(new Blob([FORMS[form](this.segments)], { type }));
    element("a", { href, download: `${this.name}.${form}` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
  }

  copy() {
    copy(FORMS.txt(this.segments), this.note);
  }
}
