// The Train tab: text in, a falling curve, files out. The worker makes the steps (trainer.js).

import { $, onEscape, sentence, swap } from "./fetching.js";

/** @type {Record<string, string>} */
const NAMES = { scratch: "A new model", lora: "An adapter (LoRA)" };
const IDLE = ["train-start", "train-write", "train-save", "train-kind"]; // used when nothing runs
const [WIDTH, HEIGHT, EDGE] = [640, 240, 68];

/**
 * Shows the tab of a model whose folder can train.
 * @param {import("./weft.js").PageModel} model @param {any} options as load was given
 */
export function bindTraining(model, options) {
  $("tab-train").hidden = false;
  $("train-kind").replaceChildren(...model.about.kinds.map((/** @type {string} */ kind) =>
    new Option(NAMES[kind] ?? kind, kind)));
  const tab = new Training(model, options);
  $("train-form").addEventListener("submit", (/** @type {Event} */ event) => tab.start(event));
  $("train-stop").addEventListener("click", () => tab.running?.abort());
  onEscape($("train"), () => tab.running?.abort());
  $("train-anew").addEventListener("click", () => tab.forget());
  $("train-kind").addEventListener("change", () => tab.forget());
  $("train-write").addEventListener("click", () => tab.write());
  $("train-save").addEventListener("click", () => tab.save());
}

class Training {
  /** @param {import("./weft.js").PageModel} model @param {any} options */
  constructor(model, options) {
    this.model = model;
    this.options = options;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {number[]} */
    this.losses = [];
    this.forget();
  }

  /** Drops the trained weights; the next start begins again. */
  forget() {
    this.running?.abort();
    /** @type {import("./page_trainer.js").PageTrainer | null} */
    this.trainer = null;
    this.losses = [];
    $("train-after").hidden = $("train-curve").hidden = true;
    $("train-rate").value = "";
    $("train-note").textContent = "";
  }

  /** @param {() => Promise<void>} what runs with the buttons set, its failure shown */
  async while(what) {
    if (this.running) return;
    this.running = new AbortController();
    swap(IDLE.map($), [$("train-stop")]);
    $("train-note").ariaBusy = $("train-output").ariaBusy = "true"; // read out when it is done
    try {
      await what();
    } catch (error) {
      $("train-note").textContent = sentence(error);
    } finally {
      this.running = null;
      swap([$("train-stop")], IDLE.map($));
      $("train-note").ariaBusy = $("train-output").ariaBusy = "false";
    }
  }

  /** @param {Event} event */
  start(event) {
    event.preventDefault();
    return this.while(async () => {
      const { signal } = /** @type {AbortController} */ (this.running);
      $("train-note").textContent = "Getting ready …";
      this.trainer ??= await this.model.trainer($("train-kind").value, {
        ...this.options, signal, note: (text) => ($("train-note").textContent = text),
        progress: ({ loaded, total }) => {
          const mb = (/** @type {number} */ bytes) => (bytes / 1e6).toFixed(1);
          $("train-note").textContent = loaded < total
            ? `${mb(loaded)} of ${mb(total)} MB` : "Getting ready: compiling …";
        },
      });
      const rate = $("train-rate");
      if (Number.isNaN(rate.valueAsNumber)) rate.value = this.trainer.about.train.lr;
      const steps = $("train-steps").valueAsNumber;
      const begun = performance.now();
      let count = 0;
      const options = { steps, lr: rate.valueAsNumber, signal };
      const made = this.trainer.train($("train-text").value, options);
      for await (const { step, loss } of made) {
        if (step === 1) this.losses = []; // also after a device was lost with what it held
        this.losses.push(loss);
        count += 1;
        const each = count / ((performance.now() - begun) / 1000);
        $("train-note").textContent = `Step ${step}: loss ${loss.toFixed(3)}, ${each.toFixed(1)} `
          + `steps/s, ${Math.ceil((steps - count) / each)} s left`;
        $("train-after").hidden = false;
        draw($("train-curve"), this.losses);
      }
      const last = this.losses.at(-1);
      $("train-note").textContent = count < steps
        ? `Stopped after step ${this.losses.length}. Start goes on from here.`
        : `Done: ${this.losses.length} steps, the last loss is ${last?.toFixed(3)}.`;
      document.body.dataset.trained = String(this.losses.length);
    });
  }

  write() {
    return this.while(async () => {
      const prompt = $("train-prompt").value || " ";
      $("train-output").textContent = prompt;
      const { signal } = /** @type {AbortController} */ (this.running);
      const pieces = this.trainer?.generate(prompt, {
        maxNewTokens: 120, temperature: 0.7, topK: 40, signal,
      });
      for await (const { text } of pieces ?? []) $("train-output").append(text);
      document.body.dataset.wrote = "yes";
    });
  }

  save() {
    return this.while(async () => {
      for (const { name, bytes } of (await this.trainer?.files()) ?? []) {
        const href = URL.createObjectURL(new Blob([/** @type {any} */ (bytes)]));
        Object.assign(document.createElement("a"), { href, download: name }).click();
        setTimeout(() => URL.revokeObjectURL(href), 10_000);
      }
    });
  }
}

/** The losses as a line, with their range beside it. @param {any} svg @param {number[]} losses */
function draw(svg, losses) {
  svg.hidden = false;
  svg.removeAttribute("hidden");
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const x = (/** @type {number} */ n) =>
    EDGE + (n / Math.max(losses.length - 1, 1)) * (WIDTH - EDGE - 8);
  const y = (/** @type {number} */ loss) =>
    8 + ((high - loss) / Math.max(high - low, 1e-9)) * (HEIGHT - 32);
  const line = losses.map((loss, n) => `${x(n).toFixed(1)},${y(loss).toFixed(1)}`).join(" ");
  svg.querySelector("polyline").setAttribute("points", line);
  const [most, least, count] = svg.querySelectorAll("text");
  most.textContent = high.toFixed(2);
  least.textContent = low.toFixed(2);
  count.textContent = `step ${losses.length}`;
  svg.setAttribute("aria-label", `Loss by step: ${losses.length} steps, from `
    + `${losses[0].toFixed(2)} to ${losses[losses.length - 1].toFixed(2)}`);
}
