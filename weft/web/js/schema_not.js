// Values that do not satisfy a JSON schema, as alternatives that name no others.

import { SOFT, TYPES, dependent, each, isObject, unsupported, without } from "./schema_flat.js";

/** @typedef {import("./schema_flat.js").Flat} Flat */
/** @typedef {import("./schema_flat.js").One} One */
/** @typedef {Record<string, any>} Schema */

/** @type {Record<string, [string, string]>} */
const TURNED = {
  minimum: ["number", "exclusiveMaximum"], maximum: ["number", "exclusiveMinimum"],
  exclusiveMinimum: ["number", "maximum"], exclusiveMaximum: ["number", "minimum"],
};
/** @type {Record<string, [string, string, number]>} */
const COUNTS = {
  minLength: ["string", "maxLength", -1], maxLength: ["string", "minLength", 1],
  minItems: ["array", "maxItems", -1], maxItems: ["array", "minItems", 1],
  minProperties: ["object", "maxProperties", -1], maxProperties: ["object", "minProperties", 1],
};
const UNSAID = ["format", "patternProperties", "additionalProperties", "propertyNames",
  "uniqueItems", "unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains"];

/** What has a value that does not satisfy a schema. @param {any} of */
const not = (of) => ({ not: of, [SOFT]: true });
const trivial = (/** @type {any} */ of) =>
  of === true || (isObject(of) && !Object.keys(of).length);

/**
 * @param {Flat} flat @param {any} given a schema @param {string} where @param {number} level
 * @returns {One[]} fewer than there are where a keyword cannot be said; flat.unsaid names it
 */
export function denied(flat, given, where, level) {
  if (typeof given === "boolean") return given ? [] : [{}];
  const own = flat.own(given, where);
  const no = (/** @type {any} */ inner) => denied(flat, inner, where, level + 1);
  const yes = (/** @type {any} */ inner) => flat.alternatives(inner, where, true, level + 1);
  const made = [];
  for (const key of UNSAID.filter((name) => given[name] !== undefined)) flat.unsaid.add(key);
  for (const [key, value] of Object.entries(given)) {
    if (TURNED[key]) made.push({ type: [TURNED[key][0]], [TURNED[key][1]]: value });
    const [kind, other, step] = COUNTS[key] ?? [];
    if (key === "maxProperties" && value) flat.unsaid.add(key); // names may repeat
    else if (kind && value + step >= 0) made.push({ type: [kind], [String(other)]: value + step });
  }
  if (own.type) made.push(...types(own.type));
  if (own.enum) made.push(...values(flat, own.enum, where, level));
  if (given.pattern) made.push({ type: ["string"], texts: [{ pattern: given.pattern, no: true }] });
  if (given.multipleOf) {
    made.push({ type: ["number"], multiples: [{ by: given.multipleOf, no: true }] });
  }
  for (const name of given.required ?? []) made.push({ type: ["object"], ...without(name) });
  for (const [name, inner] of Object.entries(given.properties ?? {})) {
    if (trivial(inner)) continue;
    made.push({ type: ["object"], required: [name],
      layers: [{ properties: { [name]: not(inner) }, mute: true }] });
  }
  const { prefixItems: first = [], items } = own.lists?.[0] ?? {};
  for (const [n, inner] of [...first, items ?? true].entries()) {
    if (trivial(inner)) continue;
    made.push({ type: ["array"], minItems: n + 1,
      lists: [{ prefixItems: [...Array(n).fill(true), not(inner)], mute: true }] });
  }
  if (given.contains !== undefined && given.minContains === undefined) {
    made.push({ type: ["array"], lists: [{ items: not(given.contains), mute: true }] });
  }
  if (given.anyOf) made.push(...product(given.anyOf.map(no)));
  if (given.oneOf) {
    made.push(...product(given.oneOf.map(no)));
    for (const [n, a] of given.oneOf.entries()) {
      for (const b of given.oneOf.slice(n + 1)) made.push(...each(yes(a), yes(b)));
    }
  }
  for (const inner of given.allOf ?? []) made.push(...no(inner));
  if (given.not !== undefined) made.push(...yes(given.not));
  for (const key of ["$ref", "$dynamicRef"]) {
    if (given[key] === undefined) continue;
    made.push(...followed(flat, flat.found(given, key), where, level));
  }
  if (given.if !== undefined) {
    made.push(...each(yes(given.if), no(given.then ?? true)));
    made.push(...each(no(given.if), no(given.else ?? true)));
  }
  for (const [name, inner] of dependent(given)) {
    made.push(...each([{ type: ["object"], required: [name] }], no(inner)));
  }
  return made;
}

/** @param {Flat} flat @param {any} inner @param {string} where @param {number} level */
function followed(flat, inner, where, level) {
  if (flat.leads.includes(inner)) {
    throw unsupported("not, or oneOf, of a schema that leads to itself", where,
      "alternatives that say what may come");
  }
  flat.leads.push(inner);
  try {
    return denied(flat, inner, where, level + 1);
  } finally {
    flat.leads.pop();
  }
}

/** @param {One[][]} all @returns {One[]} what satisfies one of each */
const product = (all) => all.reduce(each, [{}]);

/** @param {string[]} named */
function types(named) {
  const left = TYPES.filter((type) => !named.includes(type)
    && !(type === "number" && named.includes("integer")));
  const part = named.includes("integer") && !named.includes("number");
  return [...left.length ? [{ type: left }] : [],
    ...part ? [{ type: ["number"], fraction: true }] : []];
}

/** @param {Flat} flat @param {any[]} listed @param {string} where @param {number} level */
function values(flat, listed, where, level) {
  const of = (/** @type {string} */ type) => listed.filter((value) => typeof value === type);
  const parts = (/** @type {string} */ type, /** @type {any[]} */ some) => product([
    [{ type: [type] }], ...some.map((value) => denied(flat, shape(value), where, level + 1))]);
  const left = [null, false, true].filter((value) => !listed.includes(value));
  return [
    { type: ["string"], texts: [{ listed: of("string"), no: true }] },
    { type: ["number"], except: of("number") }, ...left.length ? [{ enum: left }] : [],
    ...parts("array", listed.filter(Array.isArray)), ...parts("object", listed.filter(isObject)),
  ];
}

/** A schema that only one value satisfies, part by part. @param {any} value @returns {Schema} */
export function shape(value) {
  if (Array.isArray(value)) {
    return { type: "array", minItems: value.length, maxItems: value.length,
      prefixItems: value.map(shape) };
  }
  if (!isObject(value)) return { const: value };
  return { type: "object", required: Object.keys(value), maxProperties: Object.keys(value).length,
    properties: Object.fromEntries(Object.entries(value).map(([name, of]) => [name, shape(of)])) };
}
