// JSON schemas as grammars: every text that a grammar lets through satisfies its schema. Names come
// in the schema's order. It may let through less (no number of more than 18 digits, one spelling
// of each character), and it refuses by name what it does not know.

import { EMPTY, Grammar, NEVER } from "./grammar.js";
import { anyNumber, bounded } from "./grammar_numbers.js";
import { CHARACTERS, characters, letters, others } from "./grammar_texts.js";
import { WeftError } from "./program.js";
import { DEEPEST, INERT, flat, unsupported } from "./schema_flat.js";

/** @typedef {Record<string, any>} Schema */

const MOST = 256 << 10; // bytes of a schema, as the server takes them
const TYPES = ["null", "boolean", "number", "string", "array", "object"];
const FREE = ["binary", "path", "file-path", "directory-path", "password"]; // any text has them
const KNOWN = new Set([
  "$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "oneOf", "allOf", "properties",
  "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "minLength",
  "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format",
]);
/** @param {unknown} value @returns {value is Schema} */
const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {any} value @returns {string} its type in JSON */
const typeOf = (value) => (value === null ? "null" : Array.isArray(value) ? "array"
  : typeof value === "object" ? "object" : typeof value);

/** @param {any} given @returns {{grammar: Grammar, of: number}} the texts that satisfy a schema */
export function schemaGrammar(given) {
  const grammar = new Grammar();
  return { grammar, of: schemaInto(grammar, given) };
}

/**
 * The texts that satisfy a schema.
 * @param {Grammar} grammar of which they become an expression @param {any} given
 * @param {string} [name] of the schema, among others of the grammar @returns {number}
 */
export function schemaInto(grammar, given, name = "") {
  if (given !== true && !isObject(given)) {
    throw new WeftError(`a JSON schema is an object; got ${String(given).slice(0, 60)}`);
  }
  let text;
  try {
    text = JSON.stringify(given);
  } catch {
    throw new WeftError(`the JSON schema is nested more than ${DEEPEST} deep`);
  }
  const size = new TextEncoder().encode(text).length;
  if (size > MOST) {
    throw new WeftError(`the schema or grammar has ${size} bytes; at most ${MOST} are read`);
  }
  const plain = JSON.parse(text);
  if (depth(plain) > DEEPEST) {
    throw new WeftError(`the JSON schema is nested more than ${DEEPEST} deep`);
  }
  return new Compiling(grammar, plain, name).whole();
}

/** @param {any} value @returns {number} */
const depth = (value) => (typeof value !== "object" || value === null ? 0
  : 1 + Math.max(0, ...Object.values(value).map(depth)));

class Compiling {
  /** @param {Grammar} g @param {any} root @param {string} name before those of references */
  constructor(g, root, name) {
    this.root = root;
    this.g = g;
    this.name = name;
    this.space = g.either(EMPTY, g.literal(" "),
      g.then(g.literal("\n"), g.times(g.bytes([[9, 9], [32, 32]]), 0, 20)));
    this.comma = g.then(this.space, g.literal(","), this.space);
    this.colon = g.then(this.space, g.literal(":"), this.space);
    this.character = characters(g, [], CHARACTERS);
    /** @type {Set<string>} references whose schemas are compiled, or are to be */
    this.begun = new Set();
    /** @type {string[]} */
    this.left = [];
  }

  whole() {
    const of = this.schema(this.root, "#");
    for (let ref = this.left.pop(); ref !== undefined; ref = this.left.pop()) {
      this.g.define(this.name + ref, this.schema(flat.target(this.root, ref), ref));
    }
    if (!this.g.possible(of)) throw new WeftError("no text satisfies the JSON schema");
    return of;
  }

  /** A schema by its reference. @param {string} ref */
  refer(ref) {
    if (!this.begun.has(ref)) {
      flat.target(this.root, ref);
      this.begun.add(ref);
      this.left.push(ref);
    }
    return this.g.named(this.name + ref);
  }

  any() {
    const name = "any JSON";
    if (!this.g.names.has(name)) {
      this.g.define(name, NEVER); // it stands in itself
      this.g.define(name, this.plain({}, name));
    }
    return this.g.named(name);
  }

  /** @param {any} given @param {string} where @returns {number} */
  schema(given, where) {
    if (given === true) return this.any();
    if (given === false) return NEVER;
    const all = flat.alternatives(this.root, given, where);
    return this.g.either(...all.map((one) => this.one(one, where)));
  }

  /** One that names no alternatives. @param {Schema} one @param {string} where */
  one(one, where) {
    const odd = Object.keys(one).filter((key) => !KNOWN.has(key) && !INERT.has(key)
      && !key.startsWith("x-")).sort();
    if (one.uniqueItems === false) odd.splice(odd.indexOf("uniqueItems"), 1);
    if (odd.length) {
      throw new WeftError(`${where} of the JSON schema has ${odd.join(", ").slice(0, 100)}, which `
        + "is not supported: leave it out, or say it otherwise");
    }
    const keys = Object.keys(one).filter((key) => KNOWN.has(key));
    if (one.$ref !== undefined) return this.refer(one.$ref);
    if (!keys.some((key) => key !== "$defs" && key !== "definitions")) return this.any();
    return one.enum ? this.values(one, where) : this.plain(one, where);
  }

  /** Values that are listed. @param {Schema} one @param {string} where */
  values({ enum: listed, ...rest }, where) {
    const fits = this.plain(rest, where);
    const bare = Object.keys(rest).every((key) => key === "type" || !KNOWN.has(key));
    const types = [rest.type ?? TYPES].flat();
    const kept = listed.filter((/** @type {any} */ value) => {
      if (bare) {
        const type = typeOf(value);
        return types.includes(type) || (Number.isInteger(value) && types.includes("integer"));
      }
      if (typeof value === "object" && value !== null) {
        throw unsupported("an object or a list in const or enum beside other keywords", where,
          "the values alone");
      }
      return this.g.takes(fits, JSON.stringify(value));
    });
    return this.g.either(...kept.map((/** @type {any} */ value) => this.value(value, where)));
  }

  /** @param {any} value @param {string} where @returns {number} the texts that mean it */
  value(value, where) {
    const { g } = this;
    if (typeof value === "number" && !(Math.abs(value) <= Number.MAX_SAFE_INTEGER)) {
      throw unsupported(`the number ${value} in const or enum`, where,
        "one that float64 holds exactly (up to 2^53), or text");
    }
    if (typeof value !== "object" || value === null) return g.literal(this.text(value, where));
    const parts = Array.isArray(value) ? value.map((each) => this.value(each, where))
      : Object.entries(value).map(([key, each]) =>
        g.then(g.literal(this.text(key, where)), this.colon, this.value(each, where)));
    return this.inside(Array.isArray(value) ? "[]" : "{}", g.then(...parts.flatMap((part, n) =>
      (n ? [this.comma, part] : [part]))));
  }

  /** @param {any} value without parts @param {string} where */
  text(value, where) {
    const lone = typeof value === "string" && /\p{Cs}/u.exec(value);
    if (lone) {
      throw unsupported(`U+${lone[0].charCodeAt(0).toString(16).toUpperCase()}, half a character`,
        where, "whole ones");
    }
    return JSON.stringify(value);
  }

  /** What stands between brackets. @param {string} brackets @param {number} of */
  inside([open, close], of) {
    const { g } = this;
    return g.then(g.literal(open), this.space, of === EMPTY ? EMPTY : g.either(
      g.then(of, this.space)), g.literal(close));
  }

  /** @param {Schema} one @param {string} where */
  plain(one, where) {
    /** @type {Record<string, () => number>} */
    const made = {
      null: () => this.g.literal("null"),
      boolean: () => this.g.either(this.g.literal("true"), this.g.literal("false")),
      integer: () => this.number(one, true, where), number: () => this.number(one, false, where),
      string: () => this.string(one, where), array: () => this.array(one, where),
      object: () => this.object(one, where),
    };
    const types = one.type === undefined ? TYPES : [one.type].flat();
    const odd = types.find((type) => !Object.hasOwn(made, type));
    if (odd !== undefined || !types.length) {
      throw new WeftError(`${where}/type of the JSON schema is ${JSON.stringify(one.type)}; `
        + "expected a type's name, or a list of them");
    }
    return this.g.either(...types.map((type) => made[type]()));
  }

  /** @param {Schema} one @param {string} name @param {string} where @param {number} otherwise */
  count(one, name, where, otherwise) {
    const value = one[name] ?? otherwise;
    if (value !== otherwise && !(Number.isSafeInteger(value) && value >= 0 && value < 2 ** 31)) {
      throw new WeftError(`${where}/${name} of the JSON schema is ${JSON.stringify(value)}; `
        + "expected an integer from 0 on");
    }
    return value;
  }

  /** @param {Schema} one @param {boolean} whole @param {string} where */
  number(one, whole, where) {
    const names = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    for (const name of names.filter((each) => one[each] !== undefined)) {
      if (typeof one[name] !== "number") {
        throw new WeftError(`${where}/${name} of the JSON schema is ${JSON.stringify(one[name])}; `
          + "expected a number");
      }
    }
    if (names.every((name) => one[name] === undefined)) return anyNumber(this.g, whole);
    return bounded(this.g, one, whole, where);
  }

  /** @param {Schema} one @param {string} where */
  string(one, where) {
    if (one.format !== undefined && !FREE.includes(one.format)) {
      throw unsupported(`the format ${JSON.stringify(one.format)}`, where,
        "a text with a description");
    }
    const least = this.count(one, "minLength", where, 0);
    const most = this.count(one, "maxLength", where, Infinity);
    const quote = this.g.literal('"');
    return this.g.then(quote, this.g.times(this.character, least, most), quote);
  }

  /** @param {Schema} one @param {string} where */
  array(one, where) {
    const { g } = this;
    const [least, most] = [
      this.count(one, "minItems", where, 0), this.count(one, "maxItems", where, Infinity)];
    const prefix = one.prefixItems ?? [];
    if (!Array.isArray(prefix)) {
      throw new WeftError(`${where}/prefixItems of the JSON schema is no list`);
    }
    const first = prefix.map((each, n) => this.schema(each, `${where}/prefixItems/${n}`));
    const item = this.schema(one.items ?? true, `${where}/items`);
    const rest = (/** @type {number} */ n) => Math.max(n - first.length, 0);
    let all = first.length ? g.times(g.then(this.comma, item), rest(least), rest(most)) : g.either(
      least ? NEVER : EMPTY, most ? g.then(item,
        g.times(g.then(this.comma, item), Math.max(least - 1, 0), most - 1)) : NEVER);
    for (let n = first.length - 1; n >= 0; n--) {
      const more = most > n ? g.then(n ? this.comma : EMPTY, first[n], all) : NEVER;
      all = g.either(more, least > n ? NEVER : EMPTY);
    }
    return this.inside("[]", all);
  }

  /** @param {Schema} one @param {string} where */
  object(one, where) {
    const { g } = this;
    const properties = one.properties ?? {};
    const required = one.required ?? [];
    if (!isObject(properties)) {
      throw new WeftError(`${where}/properties of the JSON schema is no object`);
    }
    if (!Array.isArray(required) || required.some((name) => typeof name !== "string")) {
      throw new WeftError(`${where}/required of the JSON schema holds other things than names`);
    }
    const more = one.additionalProperties ?? true;
    const other = this.schema(more, `${where}/additionalProperties`);
    const names = [...new Set([...Object.keys(properties), ...required])];
    const pair = (/** @type {number} */ name, /** @type {number} */ value) =>
      g.then(g.literal('"'), name, g.literal('"'), this.colon, value);
    const inner = (/** @type {string} */ name) => this.text(name, where).slice(1, -1);
    const spare = pair(others(g, names.map((name) => letters(inner(name)))), other);
    let after = g.times(g.then(this.comma, spare), 0);
    let whole = g.either(EMPTY, g.then(spare, after)); // where nothing stands before
    for (const name of names.reverse()) {
      const value = Object.hasOwn(properties, name)
        ? this.schema(properties[name], `${where}/properties/${pointer(name)}`) : other;
      const each = pair(g.literal(inner(name)), value);
      const needed = required.includes(name);
      whole = g.either(g.then(each, after), needed ? NEVER : whole);
      after = g.either(g.then(this.comma, each, after), needed ? NEVER : after);
    }
    return this.inside("{}", whole);
  }
}

/** @param {string} key */
const pointer = (key) => key.replaceAll("~", "~0").replaceAll("/", "~1");
