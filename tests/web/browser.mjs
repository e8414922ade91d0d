// Drives Chromium for the tests: `node browser.mjs NODE_MODULES CHROMIUM SECONDS FLAG...`. A line of JSON
// comes in (a visitor's name, and code to run with their page), a line of JSON goes out.

import path from "node:path";
import { pathToFileURL } from "node:url";

import { drive } from "./driven.mjs";

const [modules, executablePath, seconds, ...flags] = process.argv.slice(2);
const patience = 1000 * Number(seconds);
const { chromium } = await import(pathToFileURL(path.join(modules, "playwright-core/index.mjs")).href);
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--disable-background-networking", "--no-first-run", ...flags],
  ignoreDefaultArgs: ["--disable-gpu"],
});

/** What a page notes about itself, from its first moment on. */
function watch() {
  globalThis.noted = { violations: [] };
  addEventListener("securitypolicyviolation", (event) =>
    noted.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
}

/** Waits for one end of a page's loading; at the other one the test fails with what is said. */
async function outcome(page, wanted, other) {
  const either = `body[data-state=${wanted}], body[data-state=${other}]`;
  const late = await page.waitForSelector(either).then(() => "", String);
  const [state, said] = await page.evaluate(() =>
    [document.body?.dataset.state, document.body?.innerText]);
  if (state !== wanted) throw new Error(`the page is ${state}, not ${wanted}: ${late} ${said}`);
}

async function visitor() {
  const context = await browser.newContext({ viewport: { width: 900, height: 700 } });
  await context.addInitScript(watch);
  const page = await context.newPage();
  page.setDefaultTimeout(patience); // a wait that ends says for what, and the browser lives on
  const errors = [];
  page.on("console", (m) => m.type() === "error" && errors.push(m.text()));
  page.on("pageerror", (error) => errors.push(error.message));
  const ready = () => outcome(page, "ready", "failed");
  const failed = () => outcome(page, "failed", "ready");
  return { browser, context, page, errors, ready, failed };
}

await drive(visitor);
await browser.close();
