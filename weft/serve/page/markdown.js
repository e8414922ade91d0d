// A model's text as elements: a part of CommonMark (0.31) and tables. Text only ever becomes
// text nodes, so nothing that a model writes is markup or script.

import { copier, element } from "./elements.js";

/** The blocks of a text. @param {string} text @returns {Node[]} */
export function blocks(text) {
  const lines = text.split("\n");
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const end = closing(lines, at + 1, fence[1]);
      made.push(code(lines.slice(at + 1, end).join("\n")));
      at = end + 1;
    } else if (/^ {0,3}#{1,6}\s/.test(line)) {
      const [marks] = /** @type {RegExpExecArray} */ (/#{1,6}/.exec(line));
      made.push(element(`h${Math.min(marks.length + 2, 6)}`, ...spans(line.replace(/^\s*#+\s*/, ""))));
      at += 1;
    } else if (/^ {0,3}([-*_])( *\1){2,}\s*$/.test(line)) {
      made.push(element("hr"));
      at += 1;
    } else if (isTable(lines, at)) {
      at = table(lines, at, made);
    } else if (ITEM.test(line)) {
      at = list(lines, at, made);
    } else if (/^ {0,3}>/.test(line)) {
      const end = run(lines, at, (l) => /^ {0,3}>/.test(l));
      const inner = lines.slice(at, end).map((l) => l.replace(/^ {0,3}> ?/, "")).join("\n");
      made.push(element("blockquote", ...blocks(inner)));
      at = end;
    } else {
      const end = run(lines, at, (l, i) => i === at || (l.trim() !== "" && !BEGINS.test(l)));
      made.push(element("p", ...spans(lines.slice(at, end).join("\n"))));
      at = end;
    }
  }
  return made;
}

const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+/;
const BEGINS = /^ {0,3}(`{3}|~{3}|#{1,6}\s|>)|^ *([-*+]|\d{1,9}[.)])\s+/;

/** @param {string[]} lines @param {number} at @param {(line: string, i: number) => boolean} holds */
function run(lines, at, holds) {
  let end = at;
  while (end < lines.length && holds(lines[end], end)) end += 1;
  return end;
}

/** @param {string[]} lines @param {number} at @param {string} fence */
function closing(lines, at, fence) {
  return run(lines, at, (line) => {
    const said = line.trim();
    return !(said.startsWith(fence) && said === fence[0].repeat(said.length));
  });
}

/** @param {string} text */
function code(text) {
  const made = element("div", element("pre", element("code", text)), copier(text));
  made.className = "block";
  return made;
}

/** @param {string[]} lines @param {number} at @param {Node[]} made */
function list(lines, at, made) {
  const [, indent, mark] = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const ordered = /\d/.test(mark);
  const whole = /** @type {HTMLOListElement} */ (element(ordered ? "ol" : "ul"));
  if (ordered) whole.start = parseInt(mark, 10);
  let i = at;
  while (i < lines.length) {
    const found = ITEM.exec(lines[i]);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== ordered) break;
    const begin = i;
    i = run(lines, i + 1, (line) => line.trim() === "" || lead(line) > indent.length);
    while (i > begin + 1 && !lines[i - 1].trim() && i < lines.length && !ITEM.test(lines[i])) i -= 1;
    const first = lines[begin].slice(found[0].length);
    const rest = lines.slice(begin + 1, i).map((l) => l.slice(Math.min(lead(l), found[0].length)));
    const inner = blocks([first, ...rest].join("\n"));
    const [only] = inner;
    const tight = inner.length && only instanceof HTMLParagraphElement;
    whole.append(element("li", ...(tight ? [...only.childNodes, ...inner.slice(1)] : inner)));
  }
  made.push(whole);
  return i;
}

/** @param {string} line */
function lead(line) {
  return line.length - line.trimStart().length;
}

/** @param {string[]} lines @param {number} at */
function isTable(lines, at) {
  const rule = lines[at + 1] ?? "";
  return lines[at].includes("|") && rule.includes("-") && /^[\s|:-]+$/.test(rule);
}

/** @param {string[]} lines @param {number} at @param {Node[]} made */
function table(lines, at, made) {
  const end = run(lines, at, (line) => line.includes("|"));
  const row = (/** @type {string} */ line, /** @type {string} */ kind) => element("tr",
    ...line.trim().replace(/^\||\|$/g, "").split("|").map((c) => element(kind, ...spans(c.trim()))));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const whole = element("table", element("thead", row(lines[at], "th")), element("tbody", ...body));
  const scroll = element("div", whole);
  scroll.className = "scroll";
  made.push(scroll);
  return end;
}

const SPAN = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\][]+)\]\((https?:\/\/[^\s()]+)\)/;

/** The inside of a line. @param {string} text @returns {Node[]} */
function spans(text) {
  const made = [];
  let rest = text;
  for (;;) {
    const found = SPAN.exec(rest);
    if (!found) break;
    if (found.index) made.push(document.createTextNode(rest.slice(0, found.index)));
    if (found[1]) made.push(element("code", found[2].trim()));
    else if (found[3]) made.push(element("strong", ...spans(found[3])));
    else if (found[4]) made.push(element("em", ...spans(found[4])));
    else made.push(link(found[5], found[6]));
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest) made.push(document.createTextNode(rest));
  return made;
}

/** @param {string} text @param {string} href */
function link(text, href) {
  const made = /** @type {HTMLAnchorElement} */ (element("a", text));
  made.href = href;
  made.rel = "noopener noreferrer";
  made.target = "_blank";
  return made;
}
