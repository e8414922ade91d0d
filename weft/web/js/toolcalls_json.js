// A call of a tool written as an object of JSON, as weft/serve/toolcalls/json_call reads it: wrong
// JSON is passed on unchanged, because the caller of a tool checks arguments anyway.

/** @typedef {import("./toolcalls.js").Call} Call */

const NAMES = ["name", "tool_name", "function"];
const ARGUMENTS = ["arguments", "parameters", "args"];
const SPACE = /\s/;

/** Finds the end of a value, fed from its first character on. */
class JsonScanner {
  depth = 0;
  quoted = false;
  over = false;
  #escaped = false;
  #scalar = false;

  /** @param {string} c @returns {boolean} whether it belongs to the value */
  push(c) {
    if (this.quoted) {
      if (this.#escaped) this.#escaped = false;
      else if (c === "\\") this.#escaped = true;
      else if (c === '"') [this.quoted, this.over] = [false, this.depth === 0];
      return true;
    }
    if (this.#scalar && (",}]".includes(c) || SPACE.test(c))) {
      this.over = true;
      return false;
    }
    if (c === '"') this.quoted = true;
    else if (c === "{" || c === "[") this.depth++;
    else if (c === "}" || c === "]") this.over = --this.depth <= 0;
    else if (this.depth === 0) this.#scalar = true;
    return true;
  }
}

/** One object, fed character by character. */
class CallObject {
  /** @type {Call | null} */ call = null;
  #name = "";
  /** @type {string | null} */ #key = null;
  /** @type {JsonScanner | null} */ #value = null;
  #part = ""; // the present key or value
  /** @type {string | null} */ #early = null; // arguments that came before the name
  #streams = false;
  #opened = false;
  #over = false;

  get quoted() {
    return this.#value?.quoted ?? false;
  }

  /** @param {string} c */
  push(c) {
    if (this.#over) return;
    if (!this.#value) this.#between(c);
    else if (this.#value.push(c)) {
      this.#take(c);
      if (this.#value.over) this.#end();
    } else {
      this.#end();
      this.#between(c);
    }
  }

  /** @param {boolean} bare whether it needs no arguments @returns {Call | null} */
  finish(bare) {
    const known = this.#name && (bare || this.#early !== null);
    if (known && !this.call && !this.#value) this.#begin(this.#early ?? "{}");
    return this.call;
  }

  /** @param {string} c */
  #between(c) {
    if (!this.#opened) this.#opened = c === "{";
    else if (c === "}") this.#over = true;
    else if (c === ":" && this.#key === null && this.#part) {
      [this.#key, this.#part] = [textOf(this.#part), ""];
    } else if (!SPACE.test(c) && c !== ",") {
      this.#value = new JsonScanner();
      this.#part = "";
      this.#streams = ARGUMENTS.includes(this.#key ?? "") && this.#name !== "" && "{[".includes(c);
      if (this.#streams && this.call) this.#streams = false; // a second one counts for nothing
      else if (this.#streams) this.#begin("");
      this.#value.push(c);
      this.#take(c);
      if (this.#value.over) this.#end();
    }
  }

  /** @param {string} c */
  #take(c) {
    if (this.#streams && this.call) this.call.arguments += c;
    else if (!this.call || this.#key === null) this.#part += c;
  }

  #end() {
    this.#value = null;
    if (this.#key === null) return; // a key: its colon follows
    const [key, value] = [this.#key, this.#part];
    [this.#key, this.#part] = [null, ""];
    if (this.#streams || this.call) {
      this.#streams = false;
      return;
    }
    if (NAMES.includes(key) && !this.#name) this.#name = textOf(value);
    else if (ARGUMENTS.includes(key) && this.#early === null) {
      this.#early = value === "null" ? "{}" : textOf(value) || value;
    }
    if (this.#name && this.#early !== null) this.#begin(this.#early);
  }

  /** @param {string} given */
  #begin(given) {
    this.call = { name: this.#name, arguments: given };
  }
}

/** @param {string} literal @returns {string} the text that it encodes; "" if it is none */
function textOf(literal) {
  try {
    const found = JSON.parse(literal);
    return typeof found === "string" ? found : "";
  } catch {
    return "";
  }
}

/**
 * A call as an object of JSON from a bracket on, up to its last bracket.
 * @param {string} text @param {number} at @param {boolean} bare whether it may lack arguments
 * @returns {{call: Call | null, end: number}} `end` is -1 where the object goes on
 */
export function objectAt(text, at, bare) {
  const [object, value] = [new CallObject(), new JsonScanner()];
  for (let n = at; n < text.length; n++) {
    value.push(text[n]);
    object.push(text[n]);
    if (value.over) return { call: object.finish(bare), end: n + 1 };
  }
  return { call: object.finish(bare), end: -1 };
}

/**
 * A call as an object of JSON before a mark outside of JSON's texts.
 * @param {string} text @param {string} mark @returns {{call: Call | null, end: number}}
 */
export function objectBefore(text, mark) {
  const object = new CallObject();
  for (let n = 0; n < text.length; n++) {
    if (!object.quoted && text.startsWith(mark, n)) {
      return { call: object.finish(true), end: n + mark.length };
    }
    object.push(text[n]);
  }
  return { call: object.finish(true), end: -1 };
}

/**
 * The place after a value in brackets; -1 where it goes on.
 * @param {string} text @param {number} at
 */
export function after(text, at) {
  const value = new JsonScanner();
  for (let n = at; n < text.length; n++) {
    value.push(text[n]);
    if (value.over) return n + 1;
  }
  return -1;
}
