// Runs the lines of browser.mjs and firefox.mjs: a line of JSON comes in (a visitor's name, and code to run with their
// page), a line of JSON goes out.

import { createInterface } from "node:readline";

const AsyncFunction = /** @type {any} */ ((async () => {}).constructor);

/** Until the input ends. `visitor()` makes a visitor: an object with a page, and the context that ends with it. */
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

  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let said;
    try {
      said = { value: await (asked.who === null ? leave() : run(asked)) ?? null };
    } catch (error) {
      said = { error: error.stack };
    }
    process.stdout.write(`${JSON.stringify(said)}\n`);
  }
}
