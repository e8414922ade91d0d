// Plays chat templates in Node: node chat.mjs PLAYER. Cases come as JSON, {text} or {error} goes out.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const player = pathToFileURL(`${process.argv[2]}/`);
const { render } = await import(new URL("template.js", player));
const { METHODS } = await import(new URL("template_values.js", player));
const { FILTERS, TESTS } = await import(new URL("template_filters.js", player));
const { chats, cases } = JSON.parse(readFileSync(0, "utf8"));
const results = cases.map(([chat, messages, variables]) => {
  try {
    return { text: render(chats[chat], messages, variables) };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
});
const keys = Object.fromEntries(Object.entries({ FILTERS, TESTS, ...METHODS }).map(([name, known]) =>
  [name, Object.keys(known).sort()]));
console.log(JSON.stringify({ results, keys }));
