// Writes the reference of the JavaScript package as Markdown, from its declarations:
//     node scripts/api_js.mjs NODE_MODULES > docs/api-javascript.md
// A public name without a comment is an error.

import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const modules = path.resolve(process.argv[2]);
const compiler = path.join(modules, "typescript/lib/typescript.js");
const { default: ts } = await import(pathToFileURL(compiler).href);
const types = path.resolve(fileURLToPath(import.meta.url), "../../weft/web/js/types");
const missing = [];
const out = [`# The JavaScript package

This page is generated from the declarations in \`weft/web/js/types\` by \`scripts/api_js.mjs\`. [Browser](browser.md) says
how to export a model and how to begin.`];

/** The comment before a node, in one line a paragraph. */
function said(node, name) {
  const comments = ts.getJSDocCommentsAndTags(node).map((doc) => ts.getTextOfJSDocComment(doc.comment));
  const text = comments.join("\n").replace(/\s*\n\s*/g, " ").trim();
  if (!text) missing.push(name);
  return text;
}

/** The source of a node without its comments, in one line. */
function written(node, file) {
  const printer = ts.createPrinter({ removeComments: true });
  return printer.printNode(ts.EmitHint.Unspecified, node, file).replace(/\s+/g, " ")
    .replace(/^export (declare )?/, "").replace(/;$/, "");
}

for (const [title, name] of [["In a page", "weft.d.ts"], ["In Node", "node.d.ts"],
  ["Pipelines", "pipeline.d.ts"]]) {
  const file = ts.createSourceFile(name, ts.sys.readFile(path.join(types, name)), ts.ScriptTarget.ES2022, true);
  out.push(`## ${title}`);
  for (const node of file.statements) {
    if (!node.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword)) continue;
    const label = node.name.text;
    out.push(`### ${label}\n`);
    if (!node.members) {
      out.push(`\`\`\`ts\n${written(node, file)}\n\`\`\`\n`, said(node, `${name}: ${label}`));
      continue;
    }
    out.push(`${said(node, `${name}: ${label}`)}\n`);
    const named = node.members.filter(({ name: own }) => own);
    if (named.length) out.push("| member | meaning |\n| --- | --- |");
    for (const member of named) {
      const text = said(member, `${name}: ${label}.${member.name.text}`);
      out.push(`| \`${written(member, file).replaceAll("|", "\\|")}\` | ${text} |`);
    }
  }
}
if (missing.length) {
  console.error(`without a comment: ${missing.join(", ")}`);
  process.exit(1);
}
console.log(out.join("\n").replace(/\n{3,}/g, "\n\n").replace(/([^\n])\n(#|\| member)/g, "$1\n\n$2"));
