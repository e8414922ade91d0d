// A JSON schema as the alternatives it allows, none of which names others: allOf and references
// beside other keywords are joined, anyOf and oneOf are listed.

import { WeftError } from "./program.js";

/** @typedef {Record<string, any>} Schema */

export const DEEPEST = 64; // levels of a schema's nesting, as the server takes them
const MOST = 500; // alternatives of one schema
/** Keywords that change nothing of what a schema allows, those of the server. */
export const INERT = new Set([
  "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "title",
  "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
  "contentEncoding", "contentMediaType", "contentSchema", "markdownDescription",
  "propertyOrdering", "externalDocs", "xml", "discriminator", "errorMessage", "enumNames",
  "enumDescriptions", "strict", "name",
]);

/** @param {string} what @param {string} where @param {string} instead @returns {WeftError} */
export const unsupported = (what, where, instead) =>
  new WeftError(`${where} of the JSON schema has ${what}, which is not supported; use ${instead}`);

const LISTS = ["allOf", "anyOf", "oneOf"];
const inert = (/** @type {string} */ key) => INERT.has(key) || key.startsWith("x-")
  || key === "$defs" || key === "definitions";

/** @param {any} a @param {any} b @returns {boolean} whether they are one value of JSON */
function same(a, b) {
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return a === b;
  const [keys, others] = [Object.keys(a), Object.keys(b)];
  return Array.isArray(a) === Array.isArray(b) && keys.length === others.length
    && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

/** @param {any} root @param {any} ref @returns {any} the schema that a reference names */
function target(root, ref) {
  const wrong = () => new WeftError(`$ref of the JSON schema is ${JSON.stringify(ref)}; expected # `
    + "or #/ and the way to a schema in the same document");
  if (typeof ref !== "string" || !/^#(\/|$)/.test(ref)) throw wrong();
  let found = root;
  for (const part of ref.split("/").slice(1)) {
    const key = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, key)) throw wrong();
    found = found[key];
  }
  return found;
}

/** @param {string} what @param {string} where */
const cannot = (what, where) => new WeftError(`${where} of the JSON schema joins ${what}, which is `
  + "not supported; use one schema that says both");

/**
 * Joins two schemas without lists and references.
 * @param {Schema} a @param {Schema} b @param {string} where
 */
function joined(a, b, where) {
  /** @type {Schema} */
  const made = { ...a };
  const closed = (/** @type {Schema} */ one) =>
    ![undefined, true].includes(one.additionalProperties);
  const names = (/** @type {Schema} */ one) => Object.keys(one.properties ?? {});
  const unlike = closed(a) || closed(b)
    ? !same(names(a).sort(), names(b).sort())
      && !(closed(a) && b.properties === undefined && b.additionalProperties === undefined)
      && !(closed(b) && a.properties === undefined && a.additionalProperties === undefined)
    : false;
  if (unlike) throw cannot("additionalProperties and other properties", where);
  for (const [key, value] of Object.entries(b)) {
    if (!Object.hasOwn(made, key) || inert(key) || same(made[key], value)) made[key] = value;
    else if (key === "required") made[key] = [...new Set([...made[key], ...value])];
    else if (key === "type") made[key] = both([made[key]].flat(), [value].flat());
    else if (/^(min|exclusiveMin)/.test(key)) made[key] = Math.max(made[key], value);
    else if (/^(max|exclusiveMax)/.test(key)) made[key] = Math.min(made[key], value);
    else if (key === "enum") {
      made[key] = made[key].filter((/** @type {any} */ x) =>
        value.some((/** @type {any} */ y) => same(x, y)));
    } else if (key === "properties") {
      const shared = names(b).filter((name) => Object.hasOwn(made[key], name));
      const all = { ...made[key], ...value };
      for (const name of shared) all[name] = { allOf: [made[key][name], value[name]] };
      made[key] = all;
    } else throw cannot(`two of ${key}`, where);
  }
  const [mine, its] = [a, b].map(({ items, prefixItems }) => ({ items, prefixItems }));
  const listed = [mine, its].every(({ items, prefixItems }) =>
    items !== undefined || prefixItems !== undefined);
  if (listed && !same(mine, its)) throw cannot("items and prefixItems", where);
  return made;
}

/** @param {string[]} a @param {string[]} b types that both allow */
function both(a, b) {
  const has = (/** @type {string[]} */ all, /** @type {string} */ type) => all.includes(type)
    || (type === "integer" && all.includes("number"));
  return [...new Set([...a.filter((type) => has(b, type)), ...b.filter((type) => has(a, type))])]
    .filter((type, _, all) => type !== "number" || !all.includes("integer"));
}

/**
 * @param {any} root @param {any} given a schema @param {string} where its pointer
 * @param {boolean} [deep] whether a reference is followed that stands alone
 * @returns {Schema[]} what it allows, one or another
 */
function alternatives(root, given, where, deep = false, level = 0) {
  if (given === true) return [{}];
  if (given === false) return [];
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw new WeftError(`${where} of the JSON schema is ${JSON.stringify(given)}; expected an `
      + "object, true or false");
  }
  if (level > DEEPEST) {
    throw new WeftError("the references of the JSON schema are nested too deeply");
  }
  const { $ref, allOf, anyOf, oneOf, const: one, ...rest } = given;
  for (const key of LISTS) {
    if (given[key] !== undefined && !Array.isArray(given[key])) {
      throw new WeftError(`${where}/${key} of the JSON schema is no list`);
    }
  }
  const only = Object.keys(given).every((key) => key === "$ref" || inert(key));
  if ($ref !== undefined && only && !deep) return [{ $ref }];
  const below = (/** @type {any} */ inner, /** @type {string} */ at, follow = true) =>
    alternatives(root, inner, `${where}/${at}`, follow, level + 1);
  if (rest.enum !== undefined && !Array.isArray(rest.enum)) {
    throw new WeftError(`${where}/enum of the JSON schema is no list`);
  }
  const own = Object.hasOwn(given, "const") ? joined({ enum: [one] }, rest, where) : rest;
  const bare = Object.keys(own).every(inert); // the alternatives stand alone
  const alone = bare && !deep && [allOf, anyOf, oneOf].filter(Boolean).length === 1
    && $ref === undefined && (allOf ?? [1]).length === 1;
  let all = [own];
  const with_ = (/** @type {Schema[]} */ others) => {
    all = alone ? others : all.flatMap((a) => others.map((b) => joined(a, b, where)));
    if (all.length > MOST) throw new WeftError("the JSON schema has too many alternatives");
  };
  if ($ref !== undefined) with_(alternatives(root, target(root, $ref), where, true, level + 1));
  allOf?.forEach((/** @type {any} */ inner, /** @type {number} */ n) =>
    with_(below(inner, `allOf/${n}`, !alone)));
  if (oneOf) apart(oneOf.map((/** @type {any} */ inner, /** @type {number} */ n) =>
    below(inner, `oneOf/${n}`)), root, where);
  for (const key of ["anyOf", "oneOf"]) {
    if (given[key]) with_(given[key].flatMap((/** @type {any} */ inner, /** @type {number} */ n) =>
      below(inner, `${key}/${n}`, !alone)));
  }
  return all;
}

/**
 * Throws where a value may satisfy two of oneOf.
 * @param {Schema[][]} of @param {any} root @param {string} where
 */
function apart(of, root, where) {
  const clear = of.every((some, n) => of.slice(n + 1).every((others) =>
    some.every((a) => others.every((b) => disjoint(a, b, root)))));
  if (!clear) {
    throw new WeftError(`${where} of the JSON schema has oneOf with alternatives that one value `
      + "may satisfy together, which is not supported; use anyOf");
  }
}

/** @param {Schema} a @param {Schema} b @param {any} root @returns {boolean} */
function disjoint(a, b, root) {
  if (a.enum && b.enum) {
    return !a.enum.some((/** @type {any} */ x) =>
      b.enum.some((/** @type {any} */ y) => same(x, y)));
  }
  const [types, others] = [typesOf(a), typesOf(b)];
  if (types && others && !both(types, others).length) return true;
  if (!types || !others || both(types, others).join() !== "object") return false;
  return Object.keys(a.properties ?? {}).some((name) => {
    if (!Object.hasOwn(b.properties ?? {}, name)) return false;
    if (!a.required?.includes(name) || !b.required?.includes(name)) return false;
    const [mine, its] = [a, b].map((one) =>
      alternatives(root, one.properties[name], "#", true, 1));
    return mine.every((x) => its.every((y) => x.enum && y.enum && disjoint(x, y, root)));
  });
}

/** @param {Schema} one @returns {string[] | undefined} */
function typesOf(one) {
  if (!one.enum) return one.type === undefined ? undefined : [one.type].flat();
  return one.enum.map((/** @type {any} */ value) => (value === null ? "null"
    : Array.isArray(value) ? "array" : typeof value));
}

export const flat = { target, alternatives };
