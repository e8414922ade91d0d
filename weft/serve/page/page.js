// The page: conversations on the left, the one that is open, and what is being written.

import { Refusal, answer, beginning, chatting, models } from "./asking.js";
import { copier, element } from "./elements.js";
import { blocks } from "./markdown.js";
import { fresh, keep, kept, titled } from "./talks.js";

/** @typedef {import("./talks.js").Message} Message */
/** @typedef {import("./talks.js").Talk} Talk */

const $ = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const SETTINGS = ["system", "temperature", "top_p", "max_tokens", "seed"];

let talks = kept();
let talk = talks[0] ?? fresh();
/** @type {AbortController | null} */
let writing = null;
/** @type {number | null} */
let edited = null; // the message that the field's text will take the place of
/** @type {Map<string, boolean>} */
const chats = new Map();
/** @type {Map<string, { temperature?: number, top_p?: number }>} */
const advised = new Map(); // what authors of loaded models advise

// -- what is seen ---------------------------------------------------------------------------------

function showList() {
  $("list").replaceChildren(...talks.map((each) => {
    const open = element("button", titled(each));
    open.className = "open";
    open.title = titled(each);
    open.addEventListener("click", () => choose(each));
    const drop = element("button", "×");
    drop.className = "drop";
    drop.setAttribute("aria-label", `Delete ${titled(each)}`);
    drop.addEventListener("click", () => remove(each));
    const item = element("li", open, drop);
    item.setAttribute("aria-current", String(each === talk));
    return item;
  }));
}

/** @param {Message} message @param {number} index */
function shown(message, index) {
  const said = element("div");
  said.className = "said";
  const made = element("article");
  made.className = message.role;
  if (message.role === "user") said.textContent = message.content;
  else fill(made, said, message, chats.get($("model").value) !== false);
  const tools = element("div");
  tools.className = "tools";
  tools.append(copier(message.content));
  if (message.role === "user") tool(tools, "Edit", () => edit(index));
  else if (index === talk.messages.length - 1) tool(tools, "Again", () => again(index));
  if (message.note) {
    const note = element("span", message.note);
    note.className = "quiet";
    tools.append(note);
  }
  made.append(said, tools);
  return made;
}

/** @param {HTMLElement} made @param {HTMLElement} said @param {Message} message
 * @param {boolean} marked */
function fill(made, said, message, marked) {
  if (message.reasoning) {
    let box = /** @type {any} */ (made.querySelector("details"));
    if (!box) {
      const text = element("div");
      text.className = "reasoning";
      box = element("details", element("summary", "Reasoning"), text);
      made.prepend(box);
    }
    box.lastChild.textContent = message.reasoning;
  }
  said.classList.toggle("plain", !marked);
  if (marked) said.replaceChildren(...blocks(message.content));
  else said.textContent = message.content;
}

/** @param {HTMLElement} tools @param {string} name @param {() => void} work */
function tool(tools, name, work) {
  const made = element("button", name);
  made.addEventListener("click", work);
  tools.append(made);
}

function showTalk() {
  edited = null;
  $("talk").replaceChildren(...talk.messages.map(shown));
  $("talk").scrollTop = $("talk").scrollHeight;
  showList();
}

/** @param {string} [text] */
function complain(text = "") {
  $("error").textContent = text;
  $("error").hidden = !text;
}

function busy() {
  $("send").hidden = writing !== null;
  $("stop").hidden = writing === null;
  document.body.dataset.state = writing ? "writing" : "ready";
}

// -- what people do -------------------------------------------------------------------------------

/** @param {Talk} other */
function choose(other) {
  writing?.abort();
  talk = other;
  document.body.classList.remove("open");
  $("note").textContent = "";
  complain();
  showTalk();
  $("text").focus();
}

/** @param {Talk} other */
function remove(other) {
  const before = talks;
  if (other === talk) writing?.abort();
  talks = talks.filter((each) => each !== other);
  keep(talks);
  if (other === talk) choose(talks[0] ?? fresh());
  else showList();
  const undo = element("button", "Undo");
  undo.id = "undo";
  undo.addEventListener("click", () => {
    talks = before;
    keep(talks);
    choose(other);
  });
  $("note").replaceChildren(`Deleted “${titled(other)}”. `, undo);
}

/** @param {number} index */
function edit(index) {
  writing?.abort();
  mark(index);
  $("text").value = talk.messages[index].content;
  grow();
  $("text").focus();
}

/** Shows which message is edited. @param {number | null} index */
function mark(index) {
  edited = index;
  [...$("talk").children].forEach((made, i) =>
    made.classList.toggle("edited", index !== null && i >= index));
}

/** @param {number} index */
function again(index) {
  if (writing) return;
  talk.messages.length = index;
  write();
}

function save() {
  talks = [talk, ...talks.filter((each) => each !== talk)].filter((t) => t.messages.length);
  keep(talks);
}

function options() {
  /** @type {Record<string, any>} */
  const made = { model: $("model").value };
  for (const name of SETTINGS.slice(1)) {
    if ($(name).value !== "" && $(name).checkValidity()) made[name] = Number($(name).value);
  }
  const own = advised.get(made.model); // what the model's author advises stands unless one says so
  if (own !== undefined && own.temperature === undefined) made.temperature ??= 0.7;
  return made;
}

async function write() {
  const mine = talk;
  const stop = writing = new AbortController();
  const model = $("model").value;
  const system = $("system").value.trim();
  /** @type {Message} */
  const message = { role: "assistant", content: "", reasoning: "" };
  const messages = [...mine.messages];
  if ((mine.start ?? 0) >= messages.length) mine.start = 0; // what was said since was taken back
  mine.messages.push(message);
  complain();
  save();
  showTalk();
  busy();
  const article = $("talk").lastChild;
  article.classList.add("writing");
  const begun = performance.now();
  let first = 0;
  let usage = null;
  let due = false;
  const draw = () => {
    due = false;
    const near = $("talk").scrollHeight - $("talk").scrollTop - $("talk").clientHeight < 80;
    fill(article, article.querySelector(".said"), message, chats.get(model) !== false);
    if (near) $("talk").scrollTop = $("talk").scrollHeight;
  };
  try {
    const chat = chats.get(model) ?? await chatting(model);
    chats.set(model, chat);
    hint();
    const asked = options();
    const how = { model, max_tokens: asked.max_tokens, system, chat };
    const { start, room } = await beginning(messages, mine.start ?? 0, how, stop.signal);
    if (start && !mine.start) note(message, "the context is full: the oldest turns are not read");
    mine.start = start;
    const told = messages.slice(start);
    for await (const part of answer(told, system, asked, room, chat, stop.signal)) {
      if (part.usage) usage = part.usage;
      if (part.content || part.reasoning) first ||= performance.now();
      message.content += part.content ?? "";
      message.reasoning += part.reasoning ?? "";
      if (part.finish === "length") note(message, asked.max_tokens
        ? "cut off at the most new tokens" : "cut off: the context is full");
      if (!due) {
        due = true;
        requestAnimationFrame(draw);
      }
    }
    if (usage) tell(usage, begun, first);
  } catch (error) {
    if (stop.signal.aborted) note(message, "stopped");
    else complain(error instanceof Refusal ? error.message : `the answer broke off: ${error}`);
    if (!message.content && !message.reasoning) mine.messages.pop();
  }
  if (writing === stop) writing = null;
  if (talks.includes(mine)) keep(talks);
  if (mine === talk) showTalk();
  busy();
}

/** @param {Message} message @param {string} text */
function note(message, text) {
  message.note = message.note ? `${message.note}; ${text}` : text;
}

/** @param {any} usage @param {number} begun @param {number} first */
function tell(usage, begun, first) {
  const seconds = (performance.now() - first) / 1000;
  const rate = usage.completion_tokens > 1 ? (usage.completion_tokens - 1) / seconds : 0;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  $("note").textContent = `${usage.prompt_tokens} tokens read (${cached} from the cache), ` +
    `${usage.completion_tokens} written; first after ${((first - begun) / 1000).toFixed(2)} s` +
    (rate ? `, then ${rate.toFixed(1)} a second` : "");
}

/** Closes what covers the conversation; returns true if anything did. */
function close() {
  const lay = $("settings").open || document.body.classList.contains("open");
  $("settings").open = false;
  document.body.classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
  return lay;
}

function grow() {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight + 2}px`;
}

$("ask").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  const text = $("text").value;
  if (!text.trim() || writing) return;
  if (edited !== null) talk.messages.length = edited;
  talk.messages.push({ role: "user", content: text });
  $("text").value = "";
  grow();
  write();
});
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
  if (event.key === "ArrowUp" && !$("text").value && !writing) {
    const last = talk.messages.findLastIndex((m) => m.role === "user");
    if (last >= 0) edit(last);
    event.preventDefault();
  }
});
$("stop").addEventListener("click", () => writing?.abort());
$("model").addEventListener("change", hint);
$("new").addEventListener("click", () => choose(fresh()));
$("menu").addEventListener("click", () => {
  $("menu").setAttribute("aria-expanded", String(document.body.classList.toggle("open")));
});
$("talk").addEventListener("click", close);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (close()) return;
  if (edited !== null) $("text").value = "";
  mark(null);
  writing?.abort();
});
for (const name of SETTINGS) {
  const was = localStorage.getItem(`weft.${name}`);
  if (was !== null) $(name).value = was;
  $(name).addEventListener("change", () => localStorage.setItem(`weft.${name}`, $(name).value));
}

function hint() {
  const own = advised.get($("model").value) ?? {};
  $("temperature").placeholder = String(own.temperature ?? 0.7);
  $("top_p").placeholder = String(own.top_p ?? 1);
  const chat = chats.get($("model").value) !== false;
  $("text").placeholder = chat ? "Write a message" : "Write a beginning: this model goes on from it";
}

async function begin() {
  showTalk();
  try {
    for (const { id, chat, sampling } of await models()) {
      $("model").append(new Option(id, id));
      if (chat === undefined) continue; // the model is not loaded yet
      chats.set(id, chat);
      advised.set(id, sampling ?? {});
    }
  } catch (error) {
    complain(/** @type {Error} */ (error).message);
  }
  hint();
  busy();
  $("text").focus();
}

begin();
