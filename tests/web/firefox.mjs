// Drives Firefox for the tests, over WebDriver BiDi: `node firefox.mjs NODE_MODULES FIREFOX SECONDS`. Lines of
// JSON come and go as in browser.mjs; the code knows puppeteer's `page`, and `it.errors`.

import { createRequire } from "node:module";
import path from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, executablePath, seconds] = process.argv.slice(2);
const patience = 1000 * Number(seconds);
const where = createRequire(path.join(modules, "here.js")).resolve("puppeteer-core");
const { launch } = await import(pathToFileURL(where).href);
const AsyncFunction = /** @type {any} */ ((async () => {}).constructor);
const browser = await launch({ browser: "firefox", executablePath, headless: true, protocolTimeout: patience });
const visitors = new Map();

async function visitor(name) {
  const page = await (await browser.createBrowserContext()).newPage();
  await page.setViewport({ width: 900, height: 700 });
  page.setDefaultTimeout(patience);
  const errors = [];
  page.on("console", (m) => m.type() === "error" && errors.push(m.text()));
  page.on("pageerror", (error) => errors.push(error.message));
  visitors.set(name, { page, errors });
  return visitors.get(name);
}

for await (const line of createInterface({ input: process.stdin })) {
  const { who, code, given } = JSON.parse(line);
  let said;
  try {
    const it = visitors.get(who) ?? await visitor(who);
    const value = await new AsyncFunction("it", "given", `const { page } = it; ${code}`)(it, given);
    said = { value: value ?? null };
  } catch (error) {
    said = { error: error.stack };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
await browser.close();
