// Chat templates: Jinja, as its own parser read it when the folder was exported (weft/web/chat.py).
// A template is untrusted code: it sees only its messages, and its steps and text are limited.

import { WeftError } from "./program.js";
import { FILTERS, TESTS, timed } from "./template_filters.js";
import {
  METHODS, MOST_TEXT, attribute, bound, compared, divided, element, fail, from, iterate, joined,
  slice, sum, text, times, truth,
} from "./template_values.js";

const MOST_STEPS = 5_000_000;

/** @typedef {any[]} Node its kind, then its fields in the order that jinja2.nodes names them */

/**
 * The prompt that a template makes of messages.
 * @param {{template: Node, special: Record<string, string>}} chat what chat.json holds
 * @param {Record<string, any>[]} messages @param {Record<string, any>} [variables]
 * @returns {string} throws a WeftError where the template refuses them
 */
export function render(chat, messages, variables = {}) {
  if (!Array.isArray(messages)) throw new WeftError("a conversation is a list of messages");
  for (const message of messages) {
    if (typeof message?.role !== "string") throw new WeftError("a chat message needs a role");
  }
  const values = {
    tools: null, documents: null, add_generation_prompt: true,
    ...chat.special, ...variables, messages,
  };
  try {
    return new Renderer(/** @type {Map<string, any>} */ (from(values))).whole(chat.template);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // the stack
    throw fail("it calls itself without end");
  }
}

class Scope {
  /** @param {Scope | null} outer @param {Map<string, any>} [names] */
  constructor(outer, names = new Map()) {
    this.outer = outer;
    this.names = names;
  }

  /** @param {string} name @returns {any} undefined where nothing has it */
  get(name) {
    return this.names.has(name) ? this.names.get(name) : this.outer?.get(name);
  }
}

class Namespace {
  /** @param {Map<string, any>} fields */
  constructor(fields) {
    this.fields = fields;
  }
}

class Renderer {
  /** @param {Map<string, any>} values */
  constructor(values) {
    this.scope = new Scope(new Scope(null, new Map(Object.entries(GLOBALS))), values);
    this.steps = 0;
    this.length = 0;
    /** @type {string[]} */
    this.out = [];
  }

  /** @param {Node} template */
  whole([, body]) {
    this.play(body);
    return this.out.join("");
  }

  /** @param {Node[]} nodes @returns {string | undefined} "Break" or "Continue" where one was met */
  play(nodes) {
    for (const node of nodes) {
      const left = this.step(STATEMENTS, node);
      if (left) return left;
    }
    return undefined;
  }

  /** @param {Node | null} node @returns {any} */
  value(node) {
    return node === null ? undefined : this.step(EXPRESSIONS, node);
  }

  /** @param {Record<string, (r: Renderer, node: Node) => any>} known @param {Node} node */
  step(known, node) {
    if (++this.steps > MOST_STEPS) throw fail("it takes too many steps");
    if (!Object.hasOwn(known, node[0])) throw fail(`this player does not know ${node[0]}`);
    return known[node[0]](this, node);
  }

  /** @param {string} piece */
  write(piece) {
    this.length += piece.length;
    if (this.length > MOST_TEXT) throw fail("it writes too much");
    this.out.push(piece);
  }

  /**
   * @template T @param {Scope} scope @param {() => T} what is done in it @returns {T}
   */
  within(scope, what) {
    const outer = this.scope;
    this.scope = scope;
    try {
      return what();
    } finally {
      this.scope = outer;
    }
  }

  /** What statements write, as text. @param {Node[]} body @param {Scope} scope */
  block(body, scope) {
    const out = this.out;
    this.out = [];
    try {
      this.within(scope, () => this.play(body));
      return this.out.join("");
    } finally {
      this.out = out;
    }
  }

  /** @param {Node} target @param {any} value */
  assign(target, value) {
    if (target[0] === "Name") this.scope.names.set(target[1], value);
    else if (target[0] === "NSRef") {
      const space = this.scope.get(target[1]);
      if (!(space instanceof Namespace)) throw fail(`${target[1]} is no namespace`);
      space.fields.set(target[2], value);
    } else {
      const values = iterate(value);
      if (values.length !== target[1].length) throw fail("it unpacks another number of values");
      target[1].forEach((/** @type {Node} */ each, /** @type {number} */ n) =>
        this.assign(each, values[n]));
    }
  }

  /** @param {Node} node */
  loop([, target, iter, body, otherwise, test]) {
    let values = [...iterate(this.value(iter))];
    if (test) {
      values = values.filter((value) => this.within(new Scope(this.scope), () => {
        this.assign(target, value);
        return truth(this.value(test));
      }));
    }
    const { length } = values;
    if (!length) return this.within(new Scope(this.scope), () => this.play(otherwise));
    for (let at = 0; at < length; at++) {
      const scope = new Scope(this.scope);
      const loop = {
        index: at + 1, index0: at, first: at === 0, last: at === length - 1, length,
        revindex: length - at, revindex0: length - at - 1, previtem: values[at - 1],
        nextitem: values[at + 1],
      };
      scope.names.set("loop", new Namespace(new Map(Object.entries(loop))));
      const left = this.within(scope, () => {
        this.assign(target, values[at]);
        return this.play(body);
      });
      if (left === "Break") break;
    }
    return undefined;
  }

  /** @param {Node} node */
  macro([, name, params, defaults, body]) {
    const outer = this.scope;
    const names = params.map((/** @type {Node} */ param) => param[1]);
    const first = names.length - defaults.length;
    outer.names.set(name, (/** @type {any[]} */ args, /** @type {Map<string, any>} */ named) => {
      const scope = new Scope(outer);
      const given = bound(name, names, args, named);
      names.forEach((/** @type {string} */ param, /** @type {number} */ n) => {
        const value = n in given ? given[n]
          : n >= first ? this.within(scope, () => this.value(defaults[n - first])) : undefined;
        scope.names.set(param, value);
      });
      return this.block(body, scope);
    });
  }

  /** @param {Node} node @returns {any} */
  call([, callee, args, named]) {
    const made = this.value(callee);
    const values = args.map((/** @type {Node} */ arg) => this.value(arg));
    if (typeof made !== "function") throw fail(`it calls ${callee[1]}, which is no macro`);
    return made(values, this.named(named));
  }

  /** @param {Node[]} keywords @returns {Map<string, any>} */
  named(keywords) {
    return new Map(keywords.map(([, key, value]) => [key, this.value(value)]));
  }

  /** A filter's or a test's arguments by place. @param {Node} node @param {any} known */
  applied([, node, name, args, named], known) {
    if (!Object.hasOwn(known, name)) throw fail(`this player does not know ${name}`);
    const [what, ...params] = known[name];
    const values = args.map((/** @type {Node} */ arg) => this.value(arg));
    return what(this.value(node), ...bound(name, params, values, this.named(named)));
  }
}

/** @param {any} self @param {string} name @returns {(...args: any[]) => any} */
function method(self, name) {
  const kind = typeof self === "string" ? METHODS.text : self instanceof Map ? METHODS.dict : {};
  if (!Object.hasOwn(kind, name)) throw fail(`${name} is no method of what it is called on`);
  return kind[/** @type {keyof typeof kind} */ (name)];
}

/** @type {Record<string, (args: any[], named: Map<string, any>) => any>} */
const GLOBALS = {
  namespace: (_, named) => new Namespace(named),
  raise_exception: ([message]) => {
    throw new WeftError(`the chat template refuses these messages: ${text(message)}`);
  },
  range: (args) => {
    const [start, stop, by = 1] = args.length > 1 ? args : [0, ...args];
    const length = Math.max(0, Math.ceil((stop - start) / by));
    if (!(length <= 100_000)) throw fail("a range is too long");
    return Array.from({ length }, (_, n) => start + n * by);
  },
  strftime_now: ([pattern]) => timed(pattern, new Date()),
};

/** @type {Record<string, (r: Renderer, node: Node) => string | undefined | void>} */
const STATEMENTS = {
  Output: (r, [, nodes]) => nodes.forEach((/** @type {Node} */ node) =>
    r.write(node[0] === "TemplateData" ? node[1] : text(r.value(node)))),
  If: (r, [, test, body, more, otherwise]) => {
    if (truth(r.value(test))) return r.play(body);
    const next = more.find((/** @type {Node} */ each) => truth(r.value(each[1])));
    return r.play(next ? next[2] : otherwise);
  },
  For: (r, node) => r.loop(node),
  Assign: (r, [, target, node]) => r.assign(target, r.value(node)),
  AssignBlock: (r, [, target, , body]) => r.assign(target, r.block(body, new Scope(r.scope))),
  Macro: (r, node) => r.macro(node),
  Scope: (r, [, body]) => r.within(new Scope(r.scope), () => r.play(body)),
  Break: () => "Break",
  Continue: () => "Continue",
};

/** @type {Record<string, (r: Renderer, node: Node) => any>} */
const EXPRESSIONS = {
  Name: (r, [, name]) => r.scope.get(name),
  Const: (_, [, value]) => value,
  List: (r, [, items]) => items.map((/** @type {Node} */ item) => r.value(item)),
  Tuple: (r, [, items]) => items.map((/** @type {Node} */ item) => r.value(item)),
  Dict: (r, [, pairs]) => new Map(pairs.map((/** @type {Node} */ [, key, value]) =>
    [r.value(key), r.value(value)])),
  CondExpr: (r, [, test, yes, no]) => r.value(truth(r.value(test)) ? yes : no),
  Filter: (r, node) => r.applied(node, FILTERS),
  Test: (r, node) => r.applied(node, TESTS),
  Call: (r, node) => r.call(node),
  Method: (r, [, node, name, args]) => {
    const self = r.value(node);
    return method(self, name)(self, ...args.map((/** @type {Node} */ arg) => r.value(arg)));
  },
  Getattr: (r, [, node, name]) => {
    const of = r.value(node);
    return of instanceof Namespace ? of.fields.get(name) : attribute(of, name);
  },
  Getitem: (r, [, node, arg]) => {
    const of = r.value(node);
    if (arg[0] === "Slice") return slice(of, r.value(arg[1]), r.value(arg[2]), r.value(arg[3]));
    return element(of, r.value(arg));
  },
  Concat: (r, [, nodes]) =>
    joined("", nodes.map((/** @type {Node} */ node) => text(r.value(node)))),
  Compare: (r, [, first, operands]) => {
    let left = r.value(first);
    for (const [, operator, node] of operands) {
      const right = r.value(node);
      if (!compared(operator, left, right)) return false;
      left = right;
    }
    return true;
  },
  And: (r, [, left, right]) => {
    const value = r.value(left);
    return truth(value) ? r.value(right) : value;
  },
  Or: (r, [, left, right]) => {
    const value = r.value(left);
    return truth(value) ? value : r.value(right);
  },
  Not: (r, [, node]) => !truth(r.value(node)),
  Neg: (r, [, node]) => times(r.value(node), -1),
  Add: (r, [, left, right]) => sum(r.value(left), r.value(right)),
  Sub: (r, [, left, right]) => sum(r.value(left), times(r.value(right), -1)),
  Mul: (r, [, left, right]) => times(r.value(left), r.value(right)),
  FloorDiv: (r, [, left, right]) => divided(r.value(left), r.value(right))[0],
  Mod: (r, [, left, right]) => divided(r.value(left), r.value(right))[1],
};
