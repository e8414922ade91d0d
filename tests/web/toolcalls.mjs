// What the player reads of answers with tools: {js, cases: [[form, text, tools, opened]]} from stdin
// -> for each what the whole text means, and whether every beginning of it means a beginning.
import { readFileSync } from "node:fs";

const { js, cases } = JSON.parse(readFileSync(0, "utf8"));
const { read } = await import(`${js}/toolcalls.js`);
console.log(JSON.stringify(cases.map(([form, text, tools, opened]) => {
  const whole = read(form, text, tools, opened, true);
  const grows = Array.from(text, (_, n) => read(form, text.slice(0, n), tools, opened, false))
    .every((part) => whole.content.startsWith(part.content)
      && whole.reasoning.startsWith(part.reasoning));
  return { ...whole, grows };
})));
