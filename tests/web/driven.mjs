// Runs the lines of browser.mjs and firefox.mjs: a line of JSON comes in (a visitor's name, and code to run with their
// page), a line of JSON goes out.

import { createInterface } from "node:readline";

const AsyncFunction = /** @type {any} */ ((async () => {}).constructor);

/** Until the input ends. `visitor()` makes a visitor: an object with a page. */
export async function drive(visitor) {
  const visitors = new Map();
  for await (const line of createInterface({ input: process.stdin })) {
    const { who, code, given } = JSON.parse(line);
    let said;
    try {
      const it = visitors.get(who) ?? await visitor();
      visitors.set(who, it);
      const value = await new AsyncFunction("it", "given", `const { page } = it; ${code}`)(it, given);
      said = { value: value ?? null };
    } catch (error) {
      said = { error: error.stack };
    }
    process.stdout.write(`${JSON.stringify(said)}\n`);
  }
}
