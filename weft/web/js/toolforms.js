// The forms of answers that call tools, or may only in the form that a schema says: the grammar of
// such an answer, and how it is read (weft/serve/toolcalls/asked.py, given.py).

import { matchingOf } from "./forced.js";
import { EMPTY, Grammar, NEVER } from "./grammar.js";
import { LAST, encoded, others } from "./language.js";
import { SPACES } from "./patterns.js";
import { WeftError, soundly } from "./program.js";
import { schemaInto } from "./schema.js";
import { cut, read, signer } from "./toolcalls.js";

/** @typedef {import("./toolcalls.js").Said} Said */
/** @typedef {import("./toolcalls.js").Form} Form */
/**
 * @typedef {{known: Record<string, any>, wanted: string[], strict: boolean, schema: any,
 *   opened: boolean}} Asked tools by name, those of which one is needed, whether arguments must
 *   satisfy their schemas, the schema of a text (undefined: any), whether the prompt has begun
 *   reasoning
 * @typedef {{opened: boolean, opening: string, closing: string, gap: string, before: string}} Given
 *   reasoning, the space after it, and what calls begin with, around a text of a given form
 */

const MARK = 256; // letters of the grammar after the bytes
const OPENING = /^(<[^<>\n]+>|\[[^[\]\n]+\])/;

/** The parts of a grammar in which the model's marks are letters. */
class Parts {
  /** @param {Record<string, number>} marks */
  constructor(marks) {
    this.g = new Grammar();
    this.names = Object.keys(marks).sort((a, b) => b.length - a.length);
    this.any = this.g.times(encoded(this.g, [[0, LAST]]), 0);
    this.cuts = new RegExp(`(weftcall[12]|${this.names.map((name) =>
      name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|") || "(?!)"})`);
  }

  /** A text of the template in which marks are tokens and ids are any. @param {string} text */
  literal(text) {
    const { g, names } = this;
    const letters = g.bytes([[48, 57], [65, 90], [97, 122]]);
    return g.then(...text.split(this.cuts).map((part) => {
      if (/^weftcall[12]$/.test(part)) return g.times(letters, 9, 9);
      const at = names.indexOf(part);
      return at < 0 ? g.literal(part) : g.bytes([[MARK + at, MARK + at]]);
    }));
  }

  /**
   * Text up to the first `mark`, which it includes; without its `end`, text that never has it.
   * @param {string} mark @param {boolean} [end]
   */
  until(mark, end = true) {
    const { g, names, any } = this;
    if (names.includes(mark)) return end ? g.then(any, this.literal(mark)) : any;
    const signs = Array.from(mark, (c) => /** @type {number} */ (c.codePointAt(0)));
    const each = [...new Set(signs)];
    const one = (/** @type {number} */ c) => encoded(g, [[c, c]]);
    const none = encoded(g, others(each.map((c) => [c, c])));
    const name = (/** @type {number} */ state) => `${end ? "until" : "never"} ${state} ${mark}`;
    signs.forEach((_, state) => {
      const after = each.map((c) => {
        const held = overlap([...signs.slice(0, state), c], signs);
        if (held < signs.length) return g.then(one(c), g.named(name(held)));
        return end ? one(c) : NEVER;
      });
      g.define(name(state),
        g.either(end ? NEVER : EMPTY, g.then(none, g.named(name(0))), ...after));
    });
    return g.named(name(0));
  }
}

/**
 * How much of a mark a text ends with.
 * @param {number[]} text @param {number[]} mark
 */
function overlap(text, mark) {
  let size = Math.min(text.length, mark.length);
  while (mark.slice(0, size).some((c, n) => c !== text[text.length - size + n])) size--;
  return size;
}

/**
 * The form of an answer with tools, or after reasoning, and its reader; null where any text may
 * come.
 * @param {import("./model.js").Model} model @param {Form} about @param {Asked} asked
 */
export async function shaped(model, about, { known, wanted, strict, schema, opened }) {
  const { form, marks = {}, thinking } = about;
  const names = wanted.length ? wanted : Object.keys(known);
  const content = !wanted.length && schema !== undefined;
  if (!wanted.length && !content && !(strict && names.length)) return null;
  if (!form && names.length) {
    throw new WeftError("calls cannot be asked for: the model's chat template writes none that a "
      + "page could ask for");
  }
  const closing = form?.closing || (opened ? thinking?.[1] ?? "" : "");
  /** @type {Given} */
  const given = { opened, closing, gap: form?.closing ? form.gap : "\n\n",
    opening: opened ? "" : form?.opening ?? "", before: names.length ? form.before : "" };
  const parts = new Parts(marks);
  const { g } = parts;
  const matching = matchingOf(model, soundly("chat.json", () => {
    const call = names.length ? calls(parts, form, names, known) : NEVER;
    const whole = g.then(parts.literal(given.before), call);
    const body = content ? g.either(schemaInto(g, schema), whole)
      : wanted.length ? whole : freely(parts, given.before, call);
    return { grammar: g, of: g.then(thought(parts, given, content), body) };
  }), parts.names.map((name) => marks[name]));
  return { matching: await matching, given: content ? given : null };
}

/**
 * Calls of some tools, without what they begin with.
 * @param {Parts} parts @param {any} form @param {string[]} names
 * @param {Record<string, any>} known
 */
function calls(parts, form, names, known) {
  const { g } = parts;
  const call = g.either(...names.map((name) => g.then(parts.literal(name),
    parts.literal(form.between), schemaInto(g, { type: "object", ...known[name] }, name))));
  const more = form.joint === null ? EMPTY : g.times(g.then(parts.literal(form.joint), call), 0);
  return g.then(call, more, parts.literal(form.after));
}

/**
 * Text alone, or calls after text.
 * @param {Parts} parts @param {string} before @param {number} call
 */
function freely(parts, before, call) {
  const { g } = parts;
  const mark = OPENING.exec(before)?.[0];
  if (mark) {
    const rest = parts.literal(before.slice(mark.length));
    return g.either(parts.until(mark, false), g.then(parts.until(mark), rest, call));
  }
  if (!before) {
    throw new WeftError("the model's calls begin with nothing that tells them from text");
  }
  const first = /** @type {number} */ (before.codePointAt(0));
  const words = g.then(g.times(encoded(g, SPACES), 0),
    encoded(g, others([...SPACES, [first, first]])), parts.any);
  return g.either(EMPTY, words, g.then(parts.literal(before), call));
}

/**
 * Reasoning at the beginning, where the prompt has begun it or the model may.
 * @param {Parts} parts @param {Given} given
 * @param {boolean} exact whether the space after it is the template's
 */
function thought(parts, { opened, opening, closing, gap }, exact) {
  const { g } = parts;
  if (opened && !closing) {
    throw new WeftError("the form of an answer cannot be asked for: the prompt begins reasoning, "
      + "and the model's chat template lacks an end for reasoning");
  }
  if (!closing || !(opened || opening)) return EMPTY;
  const space = exact ? parts.literal(gap)
    : g.times(g.bytes([[9, 10], [13, 13], [32, 32]]), 0, 4);
  const whole = g.then(parts.until(closing), space);
  return opened ? whole : g.either(EMPTY, g.then(parts.literal(opening), whole));
}

/**
 * Reads an answer of which all is content, whatever it spells, but reasoning and calls.
 * @param {Form} form with `signs` @param {Given} given @param {string} text
 * @param {Record<string, any>} known @param {boolean} ended @returns {Said}
 */
export function readGiven(form, given, text, known, ended) {
  const [opening, closing, before] = [given.opening, given.closing, given.before]
    .map(signer(form.signs));
  /** @type {Said} */
  const said = { content: "", reasoning: "", calls: [] };
  let [rest, thought] = [text, given.opened];
  if (opening && !thought) {
    const start = text.trimStart();
    thought = start.startsWith(opening);
    if (thought) rest = start.slice(opening.length);
    else if (!ended && opening.startsWith(start)) return said;
  }
  if (thought) {
    const [part] = rest.split(closing, 1);
    said.reasoning = (part === rest && !ended ? cut(part, [closing]) : part).trim();
    if (part === rest) return said;
    rest = rest.slice(part.length + closing.length);
    let n = 0;
    while (n < given.gap.length && rest[n] === given.gap[n]) n++;
    rest = rest.slice(n);
  }
  if (before && !ended && before.startsWith(rest) && rest !== before) return said;
  if (!before || !rest.startsWith(before)) return { ...said, content: rest };
  return { ...read(form, rest, known, false, ended), reasoning: said.reasoning };
}
