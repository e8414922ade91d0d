// Drives Firefox for the tests, over WebDriver BiDi: `node firefox.mjs NODE_MODULES FIREFOX SECONDS`. Lines of
// JSON come and go as in browser.mjs; the code knows puppeteer's `page`, and `it.errors`.

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { drive } from "./driven.mjs";

const [modules, executablePath, seconds] = process.argv.slice(2);
const patience = 1000 * Number(seconds);
const where = createRequire(path.join(modules, "here.js")).resolve("puppeteer-core");
const { launch } = await import(pathToFileURL(where).href);
const browser = await launch({ browser: "firefox", executablePath, headless: true, protocolTimeout: patience });

async function visitor() {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  await page.setViewport({ width: 900, height: 700 });
  page.setDefaultTimeout(patience);
  const errors = [];
  page.on("console", (m) => m.type() === "error" && errors.push(m.text()));
  page.on("pageerror", (error) => errors.push(error.message));
  return { context, page, errors };
}

await drive(visitor);
await browser.close();
