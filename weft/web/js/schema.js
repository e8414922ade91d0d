// JSON schemas as grammars: every text that a grammar lets through satisfies its schema. Names come
// in the schema's order. It may let through less (no number of more than 18 digits, one spelling
// of each character), and it refuses by name what it does not know.

import { EMPTY, Grammar, NEVER } from "./grammar.js";
import { Languages, LAST, characters } from "./language.js";
import { WeftError } from "./program.js";
import { DEEPEST, Flat, SOFT, TYPES, isObject, joined, unsupported } from "./schema_flat.js";
import { pattern } from "./patterns.js";
import { shape } from "./schema_not.js";
import { distinct, named, numbers, strings, typeOf } from "./schema_values.js";

/** @typedef {import("./schema_flat.js").Schema} Schema */
/** @typedef {import("./schema_flat.js").One} One */

const MOST = 256 << 10; // bytes of a schema, as the server takes them
const LEAVES = 64; // sets of patterns that names may match

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
    this.flat = new Flat(root);
    this.l = new Languages();
    this.g = g;
    this.name = name;
    this.space = g.either(EMPTY, g.literal(" "),
      g.then(g.literal("\n"), g.times(g.bytes([[9, 9], [32, 32]]), 0, 20)));
    this.comma = g.then(this.space, g.literal(","), this.space);
    this.colon = g.then(this.space, g.literal(":"), this.space);
    this.character = characters(g, [[0, LAST]]);
    /** @type {Set<string>} names of the schemas that are compiled, or are to be */
    this.begun = new Set();
    /** @type {{name: string, of: any, where: string}[]} */
    this.left = [];
  }

  whole() {
    const of = this.schema(this.flat.root, "#");
    for (let one = this.left.pop(); one !== undefined; one = this.left.pop()) {
      this.g.define(one.name, this.schema(one.of, one.where));
    }
    if (this.g.possible(of)) return of;
    const unsaid = [...this.flat.unsaid].join(", ").slice(0, 80);
    const where = unsaid && `, as far as a page can say what does not satisfy ${unsaid}`;
    throw new WeftError(`no text satisfies the JSON schema${where}`);
  }

  /**
   * A schema that is compiled later, once.
   * @param {string} key @param {any} of @param {string} where
   */
  later(key, of, where) {
    const name = this.name + key;
    if (!this.begun.has(name)) {
      this.begun.add(name);
      this.left.push({ name, of, where });
    }
    return this.g.named(name);
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
    const all = this.flat.alternatives(given, where);
    return this.g.either(...all.map((one) => this.one(one, where)));
  }

  /** A value that satisfies all of some schemas. @param {any[]} given @param {string} where */
  all(given, where) {
    const texts = new Map(given.flatMap((one) => {
      const alone = isObject(one) && Object.keys(one).join() === "allOf";
      return alone ? one.allOf : [one];
    }).filter((one) => one !== true).map((one) => [JSON.stringify(one), one]));
    if (texts.has("false")) return NEVER;
    const [first, ...more] = texts.values();
    if (first === undefined) return this.any();
    if (!more.length && !first[SOFT]) return this.schema(first, where);
    return this.later([...texts.keys()].sort().join(), { allOf: [first, ...more] }, where);
  }

  /** One that names no alternatives. @param {One} one @param {string} where */
  one(one, where) {
    if (one.$ref !== undefined) return this.later(one.$ref, this.flat.at(one.$ref), one.$ref);
    if (!Object.keys(one).length) return this.any();
    return one.enum ? this.values(one, where) : this.plain(one, where);
  }

  /** Values that are listed. @param {One} one @param {string} where */
  values({ enum: listed, ...rest }, where) {
    const bare = Object.keys(rest).every((key) => key === "type");
    const fits = bare ? NEVER : this.plain(rest, where);
    const types = rest.type ?? TYPES;
    return this.g.either(...listed.map((/** @type {any} */ value) => {
      const type = typeOf(value);
      const right = types.includes(type) || (Number.isInteger(value) && types.includes("integer"));
      if (right && !bare && typeof value === "object" && value !== null) {
        return this.plain(joined(this.flat.own(shape(value), where), rest), where);
      }
      return right && (bare || this.g.takes(fits, JSON.stringify(value))) ? this.value(value, where)
        : NEVER;
    }));
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

  /** @param {One} one @param {string} where */
  plain(one, where) {
    /** @type {Record<string, () => number>} */
    const made = {
      null: () => this.g.literal("null"),
      boolean: () => this.g.either(this.g.literal("true"), this.g.literal("false")),
      integer: () => numbers(this.g, this.l, one, true, where),
      number: () => numbers(this.g, this.l, one, false, where),
      string: () => this.string(one, where), array: () => this.array(one, where),
      object: () => this.object(one, where),
    };
    return this.g.either(...(one.type ?? TYPES).map((/** @type {string} */ type) => made[type]()));
  }

  /** @param {One} one @param {string} name @param {string} where @param {number} otherwise */
  count(one, name, where, otherwise) {
    const value = one[name] ?? otherwise;
    if (value !== otherwise && !(Number.isSafeInteger(value) && value >= 0 && value < 2 ** 31)) {
      throw new WeftError(`${where}/${name} of the JSON schema is ${JSON.stringify(value)}; `
        + "expected an integer from 0 on");
    }
    return value;
  }

  /** @param {One} one @param {string} where */
  string(one, where) {
    const { g, l } = this;
    const least = this.count(one, "minLength", where, 0);
    const most = this.count(one, "maxLength", where, Infinity);
    const quote = g.literal('"');
    return g.then(quote, one.texts ? l.spelled(g, strings(l, one, where))
      : g.times(this.character, least, most), quote);
  }

  /** @param {One} one @param {string} where */
  array(one, where) {
    const { g } = this;
    const [least, most] = [
      this.count(one, "minItems", where, 0), this.count(one, "maxItems", where, Infinity)];
    if (one.uniqueItems && most > 1) {
      const all = distinct(this.flat, one, most, where).filter((list) => list.length >= least);
      return g.either(...all.map((list) => this.value(list, where)));
    }
    /** @type {import("./schema_flat.js").List[]} */
    const lists = one.lists ?? [];
    const size = Math.max(0, ...lists.map((list) => list.prefixItems?.length ?? 0));
    const at = (/** @type {number} */ n) => this.all(lists.map(({ prefixItems, items }) =>
      prefixItems?.[n] ?? items ?? true), `${where}/${n < size ? `prefixItems/${n}` : "items"}`);
    const first = Array.from({ length: size }, (_, n) => at(n));
    const item = at(size);
    const rest = (/** @type {number} */ n) => Math.max(n - size, 0);
    let all = size ? g.times(g.then(this.comma, item), rest(least), rest(most)) : g.either(
      least ? NEVER : EMPTY, most ? g.then(item,
        g.times(g.then(this.comma, item), Math.max(least - 1, 0), most - 1)) : NEVER);
    for (let n = size - 1; n >= 0; n--) {
      const more = most > n ? g.then(n ? this.comma : EMPTY, first[n], all) : NEVER;
      all = g.either(more, least > n ? NEVER : EMPTY);
    }
    return this.inside("[]", all);
  }

  /** @param {One} one @param {string} where */
  object(one, where) {
    const { g, l } = this;
    const required = one.required ?? [];
    if (required.some((/** @type {any} */ name) => typeof name !== "string")) {
      throw new WeftError(`${where}/required of the JSON schema holds other things than names`);
    }
    /** @type {import("./schema_flat.js").Layer[]} */
    const layers = one.layers ?? [];
    const least = this.count(one, "minProperties", where, 0);
    const most = this.count(one, "maxProperties", where, Infinity);
    const names = [...new Set([...layers.flatMap((layer) =>
      Object.keys(layer.properties ?? {})), ...required])];
    const pair = (/** @type {number} */ name, /** @type {number} */ value) =>
      g.then(g.literal('"'), name, g.literal('"'), this.colon, value);
    const fits = named(this.flat, l, one.names ?? [], where);
    const spare = g.either(...this.others(layers, names, fits, where).map(({ of, value }) =>
      pair(l.spelled(g, of), value)));
    const many = Math.max(1, least, most < Infinity ? most : 0); // beyond, numbers are alike
    if (least > Math.max(1, names.length)) {
      throw unsupported("minProperties", where, "required");
    }
    const others = (/** @type {number} */ count) => { // names may repeat: they count as one
      const [low, high] = [Math.max(least - count, 0), most - count];
      if (low > 1) return NEVER;
      const after = g.then(this.comma, spare);
      if (count) return g.times(after, low, high);
      const some = high ? g.then(spare, g.times(after, 0, high - 1)) : NEVER;
      return g.either(low ? NEVER : EMPTY, some);
    };
    let next = Array.from({ length: many + 1 }, (_, count) => others(count)); // by those before
    for (const name of names.reverse()) {
      const at = `${where}/properties/${pointer(name)}`;
      const each = pair(g.literal(this.text(name, where).slice(1, -1)),
        l.has(fits, name) ? this.known(layers, name, at) : NEVER);
      const needed = required.includes(name);
      next = next.map((skipped, count) => {
        const more = Math.min(count + 1, many);
        const taken = g.then(count ? this.comma : EMPTY, each, next[more]);
        return g.either(count < most ? taken : NEVER, needed ? NEVER : skipped);
      });
    }
    return this.inside("{}", next[0]);
  }

  /** The value of a name. @param {any[]} layers @param {string} name @param {string} where */
  known(layers, name, where) {
    const { l } = this;
    const all = [];
    for (const { properties = {}, patternProperties = {}, additionalProperties = true } of layers) {
      const found = Object.hasOwn(properties, name) ? [properties[name]] : [];
      for (const [source, inner] of Object.entries(patternProperties)) {
        const [narrow, wide] = [false, true].map((each) => l.has(this.pattern(source, each), name));
        if (narrow !== wide) return NEVER; // readers disagree
        if (narrow) found.push(inner);
      }
      all.push(...found.length ? found : [additionalProperties]);
    }
    return this.all(all, where);
  }

  /**
   * The names that `properties` does not have, with their values.
   * @param {any[]} layers @param {string[]} names @param {number} fits @param {string} where
   * @returns {{of: number, value: number}[]}
   */
  others(layers, names, fits, where) {
    const { l } = this;
    const sources = [...new Set(layers.flatMap(({ patternProperties }) =>
      Object.keys(patternProperties ?? {})))];
    let all = [{ of: l.both(l.texts, fits, l.not(l.either(...names.map((name) =>
      l.text(l.literal(name)))))), has: /** @type {string[]} */ ([]) }];
    for (const source of sources) {
      all = all.flatMap(({ of, has }) => [
        { of: l.both(of, this.pattern(source, false)), has: [...has, source] },
        { of: l.both(of, l.not(this.pattern(source, true))), has }]);
      if (all.length > LEAVES) {
        throw unsupported("so many patternProperties", where, "fewer patterns");
      }
    }
    return all.map(({ of, has }) => ({ of, value: this.all(layers.flatMap((
      { patternProperties = {}, additionalProperties = true }) => {
      const found = has.filter((source) => Object.hasOwn(patternProperties, source));
      return found.length ? found.map((each) => patternProperties[each]) : [additionalProperties];
    }), `${where}/additionalProperties`) })).filter(({ value }) => value !== NEVER);
  }

  /** @param {string} source @param {boolean} wide */
  pattern(source, wide) {
    return pattern(this.l, source, wide);
  }
}

/** @param {string} key */
const pointer = (key) => key.replaceAll("~", "~0").replaceAll("/", "~1");
