// A JSON schema as the alternatives it allows, none of which names others: allOf, references, if
// and the like are joined, anyOf and oneOf are listed, and `not` is said as what may come instead.

import { Documents } from "./schema_refs.js";
import { denied } from "./schema_not.js";
import { WeftError } from "./program.js";

/** @typedef {Record<string, any>} Schema */
/** @typedef {{properties?: Schema, patternProperties?: Schema, additionalProperties?: any,
 *   mute?: boolean}} Layer of an object; a mute one comes of `not`, and evaluates nothing */
/** @typedef {{prefixItems?: any[], items?: any, seen?: boolean[], mute?: boolean}} List of an
 *   array; `seen` are the places that `contains` evaluates */
/**
 * @typedef {Schema} One a schema that names no others of the same value. Beside the plain keywords
 *   it has `type` as a list, `texts` ([{pattern | format | listed, no}]), `multiples` ([{by, no}]),
 *   `except` (numbers), `fraction` (true: no integer), `names` (schemas of names), `layers` and
 *   `lists`, each of which holds
 */

export const DEEPEST = 64; // levels of a schema's nesting, as the server takes them
const MOST = 500; // alternatives of one schema
export const SOFT = Symbol("where not may be left out");
const PLACES = 4; // the items of `contains` begin within so many
/** Keywords that change nothing of what a schema allows, those of the server. */
export const INERT = new Set([
  "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "title",
  "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
  "contentEncoding", "contentMediaType", "contentSchema", "markdownDescription",
  "propertyOrdering", "externalDocs", "xml", "discriminator", "errorMessage", "enumNames",
  "enumDescriptions", "strict", "name",
]);
const PLAIN = [
  "enum", "required", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum",
  "exclusiveMinimum", "exclusiveMaximum", "minProperties", "maxProperties", "uniqueItems",
];
const LAYER = ["properties", "patternProperties", "additionalProperties"];
const LAYERED = ["layers", "lists"]; // of a value's parts
const LISTS = ["allOf", "anyOf", "oneOf"];
const OTHERS = [
  ...LAYER, ...LISTS, "$ref", "$dynamicRef", "$defs", "definitions", "type", "const", "pattern",
  "format", "multipleOf", "items", "prefixItems", "additionalItems", "not", "if", "then", "else",
  "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "contains",
  "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties",
];
const KNOWN = new Set([...PLAIN, ...OTHERS]);
const inert = (/** @type {string} */ key) => INERT.has(key) || key.startsWith("x-")
  || key === "$defs" || key === "definitions";
export const TYPES = ["null", "boolean", "number", "string", "array", "object"];

/** @param {string} what @param {string} where @param {string} instead @returns {WeftError} */
export const unsupported = (what, where, instead) =>
  new WeftError(`${where} of the JSON schema has ${what}, which is not supported; use ${instead}`);

/** @param {any} value @returns {value is Schema} */
export const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {any} a @param {any} b @returns {boolean} whether they are one value of JSON */
export function same(a, b) {
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return a === b;
  const [keys, others] = [Object.keys(a), Object.keys(b)];
  return Array.isArray(a) === Array.isArray(b) && keys.length === others.length
    && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

/** @param {string[]} a @param {string[]} b types that both allow */
export function both(a, b) {
  const has = (/** @type {string[]} */ all, /** @type {string} */ type) => all.includes(type)
    || (type === "integer" && all.includes("number"));
  return [...new Set([...a.filter((type) => has(b, type)), ...b.filter((type) => has(a, type))])]
    .filter((type, _, all) => type !== "number" || !all.includes("integer"));
}

/** Joins two schemas that name no others. @param {One} a @param {One} b @returns {One} */
export function joined(a, b) {
  const made = { ...a };
  for (const [key, value] of Object.entries(b)) {
    if (!Object.hasOwn(made, key) || same(made[key], value)) made[key] = value;
    else if (key === "type") made[key] = both(made[key], value);
    else if (/^(min|exclusiveMin)/.test(key)) made[key] = Math.max(made[key], value);
    else if (/^(max|exclusiveMax)/.test(key)) made[key] = Math.min(made[key], value);
    else if (key === "enum") {
      made[key] = made[key].filter((/** @type {any} */ x) =>
        value.some((/** @type {any} */ y) => same(x, y)));
    } else if (Array.isArray(value)) made[key] = [...new Set([...made[key], ...value])];
    else made[key] ||= value;
  }
  return made;
}

/** What comes of `not`, also of one in another: it evaluates nothing. @param {One[]} all */
const muted = (all) => all.map((one) => Object.fromEntries(Object.entries(one).map(([key, of]) =>
  [key, LAYERED.includes(key) ? of.map((/** @type {Layer} */ each) => ({ ...each, mute: true }))
    : of])));

/** Values that satisfy one of these and one of those. @param {One[]} all @param {One[]} others */
export function each(all, others) {
  if (all.length * others.length > MOST) {
    throw new WeftError("the JSON schema has too many alternatives");
  }
  return all.flatMap((a) => others.map((b) => joined(a, b)));
}

/** @param {One} one @returns {string[] | undefined} */
function typesOf(one) {
  return !one.enum ? one.type : one.enum.map((/** @type {any} */ value) => (value === null ? "null"
    : Array.isArray(value) ? "array" : typeof value));
}

/** The schemas of one document. */
export class Flat extends Documents {
  /** @param {any} root */
  constructor(root) {
    super(root);
    /** @type {Set<string>} keywords of which `not` was left out, since no schema says it */
    this.unsaid = new Set();
    /** @type {any[]} schemas of references that `not` is following */
    this.leads = [];
  }

  /** A schema's own keywords. @param {Schema} given @param {string} where @returns {One} */
  own(given, where) {
    const odd = Object.keys(given).filter((key) => !KNOWN.has(key) && !inert(key)).sort();
    if (odd.length) {
      throw new WeftError(`${where} of the JSON schema has ${odd.join(", ").slice(0, 100)}, which `
        + "is not supported: leave it out, or say it otherwise");
    }
    /** @type {One} */
    const made = {};
    const has = (/** @type {string} */ key) => given[key] !== undefined;
    for (const key of PLAIN.filter(has)) made[key] = given[key];
    for (const key of ["enum", "required"].filter(has)) {
      if (!Array.isArray(given[key])) throw no(`${where}/${key}`, given[key], "a list");
    }
    if (has("type")) made.type = this.types([given.type].flat(), given, where);
    if (has("const")) made.enum = [given.const];
    if (has("const") && has("enum")) made.enum = joined({ enum: [given.const] }, given).enum;
    if (has("multipleOf")) made.multiples = [{ by: given.multipleOf }];
    for (const key of ["pattern", "format"].filter(has)) {
      if (typeof given[key] !== "string") throw no(`${where}/${key}`, given[key], "text");
      made.texts = [...made.texts ?? [], { [key]: given[key] }];
    }
    if (has("propertyNames")) made.names = [given.propertyNames];
    if (LAYER.some(has)) {
      made.layers = [Object.fromEntries(LAYER.filter(has).map((key) => [key, given[key]]))];
      for (const key of LAYER.slice(0, 2).filter(has)) {
        if (!isObject(given[key])) throw no(`${where}/${key}`, given[key], "an object");
      }
    }
    const listed = Array.isArray(given.items); // as draft 7 has it
    const [prefixItems, items] = listed ? [given.items, given.additionalItems]
      : [given.prefixItems, given.items];
    if (prefixItems !== undefined && !Array.isArray(prefixItems)) {
      throw no(`${where}/prefixItems`, prefixItems, "a list");
    }
    if (prefixItems || items !== undefined) made.lists = [{ prefixItems, items }];
    return made;
  }

  /** @param {any[]} types @param {Schema} given @param {string} where */
  types(types, given, where) {
    if (types.length && types.every((type) => [...TYPES, "integer"].includes(type))) return types;
    throw new WeftError(`${where}/type of the JSON schema is ${JSON.stringify(given.type)}; `
      + "expected a type's name, or a list of them");
  }

  /**
   * @param {any} given a schema @param {string} where its pointer
   * @param {boolean} [deep] whether a reference is followed that stands alone
   * @returns {One[]} what it allows, one or another
   */
  alternatives(given, where, deep = false, level = 0) {
    if (given === true) return [{}];
    if (given === false) return [];
    if (!isObject(given)) throw no(where, given, "an object, true or false");
    if (level > DEEPEST) {
      throw new WeftError("the references of the JSON schema are nested too deeply");
    }
    for (const key of LISTS) {
      if (given[key] !== undefined && !Array.isArray(given[key])) {
        throw no(`${where}/${key}`, given[key], "a list");
      }
    }
    const keys = Object.keys(given).filter((key) => !inert(key));
    const [ref] = keys;
    if (keys.length === 1 && ref === "$ref" && !deep) return [{ $ref: this.named(given, "$ref") }];
    const closed = keys.some((key) => key.startsWith("unevaluated"));
    const alone = keys.length === 1 && !deep
      && (LISTS.indexOf(ref) > 0 || given.allOf?.length === 1);
    let all = [this.own(given, where)];
    const ways = this.ways(given, where, alone, level, closed);
    for (const others of ways) all = alone ? others : each(all, others);
    return closed ? all.map((one) => closing(given, one)) : all;
  }

  /**
   * For each keyword about the same value, the ways to satisfy it.
   * @param {Schema} given @param {string} where @param {boolean} alone @param {number} level
   * @param {boolean} closed
   */
  * ways(given, where, alone, level, closed) {
    const below = (/** @type {any} */ inner, /** @type {string} */ at, follow = true) =>
      this.alternatives(inner, `${where}/${at}`, follow, level + 1);
    for (const key of ["$ref", "$dynamicRef"]) {
      if (given[key] !== undefined) {
        yield this.alternatives(this.found(given, key), where, true, level + 1);
      }
    }
    for (const [n, inner] of (given.allOf ?? []).entries()) {
      yield below(inner, `allOf/${n}`, !alone);
    }
    if (given.anyOf) {
      yield given.anyOf.flatMap((/** @type {any} */ inner, /** @type {number} */ n) =>
        below(inner, `anyOf/${n}`, !alone));
    }
    if (given.oneOf) yield this.single(given.oneOf, where, !alone, level);
    if (given.not !== undefined) yield this.instead(given, where, level);
    if (given.if !== undefined) yield this.tested(given, where, level, closed);
    for (const [name, inner] of dependent(given)) {
      const there = [{ type: ["object"], required: [name] }];
      yield [without(name), ...each(there, below(inner, "dependentSchemas"))];
    }
    if (given.contains !== undefined) yield containing(given, where);
  }

  /** @param {Record<string | symbol, any>} given @param {string} where @param {number} level
   *  @returns {One[]} */
  instead(given, where, level) {
    const before = this.unsaid;
    this.unsaid = new Set();
    const made = muted(denied(this, given.not, where, level + 1));
    const unsaid = [...this.unsaid].sort();
    this.unsaid = new Set([...before, ...unsaid]);
    if (!made.length && unsaid.length && !given[SOFT]) {
      throw unsupported(`not, or oneOf, of ${unsaid.join(", ").slice(0, 80)}`, where,
        "alternatives that say what may come");
    }
    return made;
  }

  /** @param {Schema} given @param {string} where @param {number} level @param {boolean} closed */
  tested(given, where, level, closed) {
    const of = (/** @type {any} */ inner, /** @type {string} */ at) =>
      this.alternatives(inner, `${where}/${at}`, true, level + 1);
    if (given.then === undefined && given.else === undefined) { // it asks for nothing
      return [{}, ...closed ? of(given.if, "if") : []];
    }
    return [...each(of(given.if, "if"), of(given.then ?? true, "then")),
      ...each(muted(denied(this, given.if, where, level + 1)), of(given.else ?? true, "else"))];
  }

  /**
   * The alternatives of oneOf, each without the others that a value may satisfy too.
   * @param {any[]} given @param {string} where @param {boolean} deep @param {number} level
   */
  single(given, where, deep, level) {
    const of = given.map((inner, n) =>
      this.alternatives(inner, `${where}/oneOf/${n}`, true, level + 1));
    const alike = of.map((some, n) => of.flatMap((others, m) => (n !== m
      && some.some((a) => others.some((b) => !this.disjoint(a, b))) ? [m] : [])));
    return of.flatMap((some, n) => {
      if (!alike[n].length && !deep) return this.alternatives(given[n], `${where}/oneOf/${n}`);
      let all = some;
      for (const m of alike[n]) all = each(all, this.instead({ not: given[m] }, where, level));
      return all;
    });
  }

  /** @param {One} a @param {One} b @returns {boolean} whether no value satisfies both, surely */
  disjoint(a, b) {
    if (a.enum && b.enum) {
      return !a.enum.some((/** @type {any} */ x) =>
        b.enum.some((/** @type {any} */ y) => same(x, y)));
    }
    const [types, others] = [typesOf(a), typesOf(b)];
    if (types && others && !both(types, others).length) return true;
    if (!types || !others || both(types, others).join() !== "object") return false;
    const inner = (/** @type {One} */ one, /** @type {string} */ name) =>
      (one.layers ?? []).flatMap((/** @type {Layer} */ { properties = {} }) =>
        (Object.hasOwn(properties, name) ? [properties[name]] : []))
        .map((/** @type {any} */ schema) => this.alternatives(schema, "#", true, 1));
    const apart = (/** @type {One[]} */ some, /** @type {One[]} */ others) =>
      some.every((x) => others.every((y) => x.enum && y.enum && this.disjoint(x, y)));
    return (a.required ?? []).some((/** @type {string} */ name) => b.required?.includes(name)
      && inner(a, name).some((/** @type {One[]} */ some) =>
        inner(b, name).some((/** @type {One[]} */ others) => apart(some, others))));
  }
}

/** @param {string} where @param {any} given @param {string} expected */
const no = (where, given, expected) => new WeftError(`${where} of the JSON schema is `
  + `${JSON.stringify(given)?.slice(0, 40)}; expected ${expected}`);

/** Whatever lacks a property. @param {string} name @returns {One} */
export const without = (name) => ({ layers: [{ properties: { [name]: false }, mute: true }] });

/** The demands that a property brings. @param {Schema} given @returns {[string, any][]} */
export function dependent({ dependentRequired, dependentSchemas, dependencies }) {
  return [dependentRequired, dependentSchemas, dependencies].flatMap((all) =>
    Object.entries(all ?? {}).map(([name, inner]) =>
      /** @type {[string, any]} */ ([name, Array.isArray(inner) ? { required: inner } : inner])));
}

/** Alternatives for `contains`. @param {Schema} given @param {string} where @returns {One[]} */
function containing({ contains, minContains: least = 1, maxContains: most = Infinity }, where) {
  const others = { type: TYPES.filter((type) => type !== "array") };
  if (most < least) return [others];
  if (least === 0 && most === Infinity) return [{}];
  if (![least, most].every((n) => n === Infinity || (Number.isInteger(n) && n >= 0 && n <= 64))) {
    throw unsupported("minContains or maxContains that is no number up to 64", where, "minItems");
  }
  const rest = most === Infinity ? true : { not: contains, [SOFT]: true };
  const made = [others];
  const largest = most === Infinity ? least : Math.min(most, least + PLACES);
  for (let size = least; size <= largest; size++) {
    for (let first = 0; first < (size ? PLACES : 1); first++) {
      const prefixItems = [...Array(first).fill(rest), ...Array(size).fill(contains)];
      const seen = prefixItems.map((_, n) => n >= first);
      made.push(/** @type {any} */ ({ type: ["array"], minItems: prefixItems.length,
        lists: [{ prefixItems, items: rest, seen }] }));
    }
  }
  return made;
}

/**
 * An alternative that holds what it leaves to unevaluatedProperties and unevaluatedItems.
 * @param {Schema} given @param {One} one
 */
function closing(given, one) {
  const made = { ...one };
  const { unevaluatedProperties: rest, unevaluatedItems: others } = given;
  /** @type {Layer[]} */
  const layers = (one.layers ?? []).filter((/** @type {Layer} */ { mute }) => !mute);
  const known = (/** @type {"properties" | "patternProperties"} */ key) => Object.fromEntries(
    layers.flatMap((layer) => Object.keys(layer[key] ?? {}).map((name) => [name, true])));
  if (rest !== undefined && layers.every((layer) => layer.additionalProperties === undefined)) {
    made.layers = [...one.layers ?? [], { properties: known("properties"),
      patternProperties: known("patternProperties"), additionalProperties: rest }];
  }
  /** @type {List[]} */
  const lists = (one.lists ?? []).filter((/** @type {List} */ { mute }) => !mute);
  if (others !== undefined && lists.every(({ seen, items }) => seen || items === undefined)) {
    const size = Math.max(0, ...lists.map(({ prefixItems }) => prefixItems?.length ?? 0));
    const prefixItems = Array.from({ length: size }, (_, n) => (lists.some((list) =>
      (list.seen ? list.seen[n] : n < (list.prefixItems?.length ?? 0))) ? true : others));
    made.lists = [...one.lists ?? [], { prefixItems, items: others }];
  }
  return made;
}
