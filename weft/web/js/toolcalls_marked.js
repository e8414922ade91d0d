// Calls as Gemma and gpt-oss write them, as weft/serve/toolcalls reads them.

/** @typedef {import("./toolcalls.js").Call} Call */
/** @typedef {import("./toolcalls.js").Said} Said */

const MAX_DEPTH = 64; // levels of lists and objects in an argument
const SPACE = /\s/;

/** Values as Gemma writes them, made JSON. What it cannot read it throws. */
class Values {
  /** @param {string} text @param {string} quote what is around texts */
  constructor(text, quote) {
    this.text = text;
    this.quote = quote;
    this.at = 0;
  }

  /** @param {number} [depth] @returns {string} JSON */
  value(depth = 0) {
    if (depth > MAX_DEPTH) throw new SyntaxError();
    this.space();
    if (this.take("{")) return this.object(depth);
    if (this.take("[")) return this.list(depth);
    for (const quote of [this.quote, '"']) {
      if (!this.take(quote)) continue;
      const end = this.text.indexOf(quote, this.at);
      if (end < 0) throw new SyntaxError();
      const found = this.text.slice(this.at, end);
      this.at = end + quote.length;
      return JSON.stringify(found);
    }
    return this.word();
  }

  /** @param {number} depth */
  object(depth) {
    /** @type {Map<string, string>} */
    const out = new Map();
    while (!this.closed("}")) {
      const end = this.text.indexOf(":", this.at);
      if (end < 0 || end - this.at > 1000) throw new SyntaxError();
      const key = this.text.slice(this.at, end).trim().replace(/^"+|"+$/g, "")
        .replaceAll(this.quote, "");
      this.at = end + 1;
      out.set(key, this.value(depth + 1));
      this.comma("}");
    }
    return `{${[...out].map(([key, value]) => `${JSON.stringify(key)}: ${value}`).join(", ")}}`;
  }

  /** @param {number} depth */
  list(depth) {
    const out = [];
    while (!this.closed("]")) {
      out.push(this.value(depth + 1));
      this.comma("]");
    }
    return `[${out.join(", ")}]`;
  }

  /** A number, true, false, null, or a text without quotes. */
  word() {
    const begin = this.at;
    while (this.at < this.text.length && !",}]".includes(this.text[this.at])) this.at++;
    const word = this.text.slice(begin, this.at).trim();
    if (!word || word.length > 10000) throw new SyntaxError();
    try {
      const found = JSON.parse(word);
      return word.length < 400 && found !== Infinity && found !== -Infinity ? word
        : JSON.stringify(word);
    } catch {
      return JSON.stringify(word);
    }
  }

  /** @param {string} bracket */
  closed(bracket) {
    this.space();
    if (this.at >= this.text.length) throw new SyntaxError();
    return this.take(bracket);
  }

  /** @param {string} bracket */
  comma(bracket) {
    this.space();
    if (!this.take(",") && !this.text.startsWith(bracket, this.at)) throw new SyntaxError();
  }

  /** @param {string} text */
  take(text) {
    const found = this.text.startsWith(text, this.at);
    if (found) this.at += text.length;
    return found;
  }

  space() {
    while (this.at < this.text.length && SPACE.test(this.text[this.at])) this.at++;
  }
}

/**
 * call:NAME{key:value,…}, with texts between quotes and keys without them.
 * @param {string} text @param {string} quote @returns {Call | null}
 */
export function gemma(text, quote) {
  const found = /^\s*call:([^{]*)(\{[^]*)$/.exec(text.trimEnd());
  const name = found?.[1].trim();
  if (!found || !name) return null;
  const values = new Values(found[2], quote);
  try {
    const given = values.value();
    return values.at === values.text.length ? { name, arguments: given } : null;
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

/**
 * The text up to the first of some marks, the mark ("" without one), and the rest.
 * @param {string} text @param {string[]} marks @returns {[string, string, string]}
 */
function upTo(text, marks) {
  let [at, mark] = [text.length, ""];
  for (const one of marks) {
    const place = text.indexOf(one);
    if (place >= 0 && place < at) [at, mark] = [place, one];
  }
  return [text.slice(0, at), mark, text.slice(at + mark.length)];
}

/** @param {string} header @returns {string[]} its words without marks */
const words = (header) => header.replace(/<\|(channel|start|constrain)\|>/g, " ").split(/\s+/)
  .filter(Boolean);
const KNOWN = ["assistant", "analysis", "commentary", "final", "json"];

/**
 * gpt-oss: messages of a channel each. analysis is reasoning, commentary to=functions.NAME a call,
 * everything else is said to the user. A header that ends nowhere is text.
 * @param {string} text @param {(mark: string) => string} sign a mark as the text has it
 * @param {(text: string) => string} show a text with its marks spelt
 * @param {(text: string, marks: string[]) => string} cut what cannot be the beginning of a mark
 * @param {boolean} ended @returns {Said}
 */
export function harmony(text, sign, show, cut, ended) {
  const [message, end, call, over, start, channel] =
    ["message", "end", "call", "return", "start", "channel"].map((name) => sign(`<|${name}|>`));
  /** @type {Said} */
  const said = { content: "", reasoning: "", calls: [] };
  const fresh = { content: false, reasoning: true }; // where space at the beginning goes
  const add = (/** @type {"content" | "reasoning"} */ kind, /** @type {string} */ part) => {
    const body = fresh[kind] ? part.trimStart() : part;
    said[kind] += body;
    if (body.trim()) fresh[kind] = false;
  };
  const border = () => {
    [said.content, said.reasoning] = [said.content.trimEnd(), said.reasoning.trimEnd()];
    fresh.content = fresh.reasoning = true;
  };
  let [rest, marked] = [text, false];
  for (;;) {
    const [head, mark, body] = upTo(rest, [message, end, call, over]);
    if (!mark && !ended) return said; // a header that goes on
    const header = show(head);
    marked ||= mark !== "" || header.includes("<|");
    rest = body;
    if (mark !== message) {
      const plain = words(header).every((word) => KNOWN.includes(word) || word.startsWith("to="));
      if (!marked || !plain) add("content", header);
      if (!mark) return said;
      continue;
    }
    const [part, stop, after] = upTo(rest, [end, call, over, start, channel]);
    const whole = stop || ended ? part : cut(part, [end, call, over, start, channel]);
    const to = words(header).find((word) => word.startsWith("to="))?.slice(3) ?? "";
    const called = to.startsWith("functions.") && to.length > "functions.".length;
    const thought = !called && words(header).includes("analysis");
    if (called || thought) border();
    if (called) said.calls.push({ name: to.slice("functions.".length), arguments: whole });
    else add(thought ? "reasoning" : "content", whole);
    if (called || thought) border();
    if (!stop) return said;
    rest = after;
  }
}
