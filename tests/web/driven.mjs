// Runs the lines of browser.mjs and firefox.mjs: a line of JSON comes in (a visitor's name, and code to run with their
// page), a line of JSON goes out.

import { createInterface } from "node:readline";

const AsyncFunction = /** @type {any} */ ((async () => {}).constructor);

/**
 * Until the input ends, also in the midst of a line. `visitor()` makes a visitor: an object with a page, and the
 * context that ends with it.
 */
export async function drive(visitor) {
  const visitors = new Map();

  async function run({ who, code, given }) {
    const it = visitors.get(who) ?? await visitor();
    visitors.set(who, it);
    return await new AsyncFunction("it", "given", `const { page } = it; ${code}`)(it, given);
  }

  async function leave() {
    for (const { context } of visitors.values()) await context.close();
    visitors.clear();
  }

  const lines = createInterface({ input: process.stdin });
  const over = new Promise((done) => lines.once("close", () => done(lines))); // the tests have gone
  for await (const line of lines) {
    const asked = JSON.parse(line);
    let said;
    try {
      const value = await Promise.race([asked.who === null ? leave() : run(asked), over]);
      if (value === lines) return;
      said = { value: value ?? null };
    } catch (error) {
      said = { error: error.stack };
    }
    process.stdout.write(`${JSON.stringify(said)}\n`);
  }
}
