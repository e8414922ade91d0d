// The schemas of a document by their references: $ref, $anchor, $id, and $dynamicRef where one
// schema alone may be meant.

import { WeftError } from "./program.js";

/** @typedef {Record<string, any>} Schema */

const BASE = "json://schema/"; // of a document without $id
const VALUES = ["enum", "const", "default", "examples"]; // no schemas

export class Documents {
  /** @param {any} root */
  constructor(root) {
    this.root = root;
    /** @type {Map<any, {base: string, pointer: string}>} */
    this.places = new Map();
    /** @type {Map<string, any>} schemas by their whole address */
    this.addresses = new Map([[BASE, root]]);
    /** @type {Map<string, any[]>} */
    this.dynamic = new Map();
    this.index(root, BASE, "#");
  }

  /** @param {any} one @param {string} base @param {string} pointer */
  index(one, base, pointer) {
    if (typeof one !== "object" || one === null) return;
    if (typeof one.$id === "string") {
      base = joined(one.$id, base).replace(/#$/, "");
      if (!this.addresses.has(base)) this.addresses.set(base, one);
    }
    this.places.set(one, { base, pointer });
    for (const key of ["$anchor", "$dynamicAnchor"]) {
      if (typeof one[key] !== "string") continue;
      this.addresses.set(`${base}#${one[key]}`, one);
      if (key === "$dynamicAnchor") {
        this.dynamic.set(one[key], [...this.dynamic.get(one[key]) ?? [], one]);
      }
    }
    for (const [key, inner] of Object.entries(one)) {
      if (VALUES.includes(key) && !/\/(properties|\$defs|definitions)$/.test(pointer)) continue;
      this.index(inner, base, `${pointer}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`);
    }
  }

  /** The schema that a reference names. @param {Schema} given @param {string} key of it */
  found(given, key) {
    const ref = given[key];
    const wrong = () => new WeftError(`${key} of the JSON schema is ${JSON.stringify(ref)}; `
      + "expected # or #/ and the way to a schema in the same document");
    if (typeof ref !== "string") throw wrong();
    const base = this.places.get(given)?.base ?? this.places.get(this.root)?.base ?? BASE;
    const [whole, inside = ""] = joined(ref, base).split("#");
    const way = decoded(inside);
    if (key === "$dynamicRef" && (this.dynamic.get(way) ?? []).length > 1) {
      throw new WeftError(`$dynamicRef of the JSON schema is ${JSON.stringify(ref)}, which may `
        + "mean several schemas; use $ref");
    }
    let at = this.addresses.get(way && !way.startsWith("/") ? `${whole}#${way}` : whole);
    for (const part of way.startsWith("/") ? way.split("/").slice(1) : []) {
      const name = part.replaceAll("~1", "/").replaceAll("~0", "~");
      if (typeof at !== "object" || at === null || !Object.hasOwn(at, name)) throw wrong();
      at = at[name];
    }
    if (at === undefined) throw wrong();
    return at;
  }

  /** The pointer of what a reference names. @param {Schema} given @param {string} key */
  named(given, key) {
    const at = this.found(given, key);
    return this.places.get(at)?.pointer ?? given[key];
  }

  /** @param {string} pointer */
  at(pointer) {
    return this.found({ $ref: pointer }, "$ref");
  }
}

/** @param {string} ref @param {string} base */
function joined(ref, base) {
  if (ref.startsWith("#")) return base + ref;
  try {
    return new URL(ref, base).href;
  } catch {
    return ref;
  }
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
