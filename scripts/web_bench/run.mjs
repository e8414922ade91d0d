// A page of weft beside others in Chromium: one side, one process, one line of JSON.
//
//     node run.mjs SIDE MODEL DTYPE TARGET [THREADS]
//
// SIDE is weft, transformers or wllama. WEB_BENCH names a folder with pages/MODEL-DTYPE (weft export
// web), onnx/MODEL and gguf/MODEL-DTYPE.gguf; NODE_MODULES one with playwright-core and PEERS one with
// the others' packages. Everything comes from 127.0.0.1. VISITS=2 measures the second visit of a
// profile, which finds the model kept. PHASES=1 adds what weft's worker did until the first token; it
// and WebGPU need DevTools, which keep copies of what comes: no memory is measured then. A signal, or
// the death of what started it, ends the browser too.
// docs/browser.md says what was run.

import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { createReadStream, mkdtempSync, readFileSync, readdirSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { json } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

import { counted, perToken } from "./counts.js";

const [side, model, dtype, target, threads] = process.argv.slice(2);
const { WEB_BENCH = "", NODE_MODULES = "", PEERS = NODE_MODULES, CHROMIUM = "/usr/bin/chromium", ISOLATED = "1", VISITS = "1", PHASES } = process.env;
const ROOTS = { npm: PEERS, pages: `${WEB_BENCH}/pages`, onnx: `${WEB_BENCH}/onnx`, gguf: `${WEB_BENCH}/gguf` };
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };
const PROMPTS = ["The first thing that a reader should know about this machine is that it has no head, and so",
  "Once there was a weaver who counted each thread twice, because the cloth of the year before had",
  "In the morning they opened the shop, wrote the names of those who had come, and sold nothing at"];
const TOKENS = 24;
const IMPORTS = {
  "onnxruntime-web/webgpu": "/npm/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs",
  "onnxruntime-common": "/npm/onnxruntime-common/dist/esm/index.js",
  "@huggingface/tokenizers": "/npm/@huggingface/tokenizers/dist/tokenizers.mjs",
  "@huggingface/jinja": "/npm/@huggingface/jinja/dist/index.js",
};
const PAGE = `<!doctype html><link rel=icon href="data:,"><script type=importmap>
  ${JSON.stringify({ imports: IMPORTS })}</script><script type=module src=sides.js></script>`;

let tell = (/** @type {any} */ _) => {};
const server = createServer(async (request, answer) => {
  if (request.method === "POST") {
    tell(await json(request));
    return answer.end();
  }
  const [, root, ...rest] = decodeURIComponent(request.url.split("?")[0]).split("/");
  const own = !(root in ROOTS) ? "sides.js" : PHASES && rest.at(-1) === "phases.js" ? "phases.js" : null;
  const file = !own ? path.join(ROOTS[root], ...rest) : path.join(import.meta.dirname, own);
  answer.setHeader("Cache-Control", "no-store");
  if (ISOLATED === "1") {
    answer.setHeader("Cross-Origin-Opener-Policy", "same-origin");
    answer.setHeader("Cross-Origin-Embedder-Policy", "require-corp");
  }
  if (PHASES && rest.at(-1) === "worker.js" && root === "pages" && !request.url.includes("?")) {
    answer.setHeader("Content-Type", "text/javascript");
    return answer.end('import "./worker.js?own"; import "./phases.js";');
  }
  if (!root) {
    answer.setHeader("Content-Type", "text/html");
    return answer.end(PAGE);
  }
  const found = statSync(file, { throwIfNoEntry: false });
  if (!found?.isFile()) return answer.writeHead(404).end();
  answer.setHeader("Content-Type", TYPES[path.extname(file)] ?? "application/octet-stream");
  answer.setHeader("Content-Length", found.size);
  if (request.method === "HEAD") return answer.end();
  createReadStream(file).pipe(answer);
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));

/** A file of a process, "" where it has ended. @param {number} pid @param {string} name */
function of(pid, name) {
  try {
    return readFileSync(`/proc/${pid}/${name}`, "utf8");
  } catch {
    return "";
  }
}

/** The processes below this one: [pid, kind]. */
function processes() {
  const parents = new Map();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number)) {
    parents.set(pid, Number(/PPid:\s+(\d+)/.exec(of(pid, "status"))?.[1] ?? 0));
  }
  const below = (pid) => pid === process.pid || (parents.has(pid) && below(parents.get(pid)));
  return [...parents.keys()].filter((pid) => pid !== process.pid && below(pid)).map((pid) =>
    [pid, /--type=([\w-]+)/.exec(of(pid, "cmdline"))?.[1] ?? "browser"]);
}

/** MiB of the largest process of a kind, at its highest. */
const highest = (kind) => Math.max(0, ...processes().filter(([, k]) => k === kind).map(([pid]) =>
  Math.round(Number(/VmHWM:\s+(\d+)/.exec(of(pid, "status"))?.[1] ?? 0) / 1024)));

/** Milliseconds on a core of the page's threads, and in the queue for one. */
function queued() {
  const sum = { cpu_ms: 0, waited_ms: 0 };
  for (const [pid] of processes().filter(([, k]) => k === "renderer")) {
    for (const tid of readdirSync(`/proc/${pid}/task`)) {
      const [on, off] = readFileSync(`/proc/${pid}/task/${tid}/schedstat`, "utf8").split(" ").map(Number);
      sum.cpu_ms += Math.round(on / 1e6);
      sum.waited_ms += Math.round(off / 1e6);
    }
  }
  return sum;
}

/** Milliseconds on a core of the threads that run JavaScript, by name. */
function cpu() {
  const found = {};
  for (const [pid, kind] of processes().filter(([, k]) => k === "renderer")) {
    for (const tid of readdirSync(`/proc/${pid}/task`)) {
      const name = readFileSync(`/proc/${pid}/task/${tid}/comm`, "utf8").trim();
      if (Number(tid) !== pid && !name.startsWith("Dedicated")) continue;
      const ns = Number(readFileSync(`/proc/${pid}/task/${tid}/schedstat`, "utf8").split(" ")[0]);
      const key = Number(tid) === pid ? `page ${pid}` : `worker ${tid}`;
      found[key] = ns / 1e6;
    }
  }
  return found;
}

let end = async () => {}; // of the browser that is open
const starter = process.ppid;
const over = () => end().finally(() => process.exit(1));
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, over);
setInterval(() => process.ppid !== starter && over(), 500);

const address = `http://127.0.0.1:${server.address().port}/`;
const asked = [side, { model, dtype, target, threads: Number(threads) || undefined, kept: VISITS !== "1" },
  PROMPTS, TOKENS];
const made = { side, model, dtype, target, threads: Number(threads) || null, isolated: ISOLATED === "1" };
let page; // in a browser with DevTools
if (PHASES || target === "webgpu") await watched();
else {
  const profile = mkdtempSync(path.join(os.tmpdir(), "web-bench-"));
  const clean = () => rm(profile, { recursive: true, force: true, maxRetries: 9, retryDelay: 200 });
  for (let n = 0; n < Number(VISITS); n++) Object.assign(made, await visit(profile, clean));
  await clean();
}
console.log(JSON.stringify(made));
server.close();
process.exit(); // a connection may be open

/**
 * A visit without DevTools: the page tells the server what it found.
 * @param {string} profile @param {() => Promise<void>} clean
 */
async function visit(profile, clean) {
  const told = new Promise((done) => (tell = done));
  const browser = spawn(CHROMIUM, ["--headless=new", "--no-sandbox", "--disable-background-networking",
    "--no-first-run", `--user-data-dir=${profile}`,
    `${address}#${encodeURIComponent(JSON.stringify(asked))}`], { stdio: "ignore" });
  const ended = new Promise((done) => browser.once("close", done));
  const leave = () => browser.kill() && ended;
  end = async () => void (await leave(), await clean());
  let most = 0;
  const looking = setInterval(() => (most = Math.max(most, highest("renderer"))), 200);
  const late = new Promise((done) => setTimeout(done, 200_000, { error: "the page said nothing" }));
  const found = await Promise.race([told, late]);
  clearInterval(looking);
  const all = { ...found, page_mib: Math.max(most, highest("renderer")), ...queued() };
  await leave();
  return all;
}

/** A visit that playwright watches. */
async function watched() {
  const { chromium } = await import(pathToFileURL(path.join(NODE_MODULES, "playwright-core/index.mjs")).href);
  const browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
      "--disable-background-networking", "--no-first-run"],
    ignoreDefaultArgs: ["--disable-gpu"],
  });
  end = () => browser.close();
  page = await browser.newPage();
  page.setDefaultTimeout(200_000);
  const said = [];
  page.on("console", (m) => said.push(m.text().slice(0, 300)));
  page.on("pageerror", (error) => said.push(error.message.slice(0, 300)));
  try {
    await page.goto(address);
    await page.waitForFunction("globalThis.measure");
    Object.assign(made, await page.evaluate((all) => measure(...all), asked), queued());
    if (PHASES) made.phases = await phases(made.clicked_at, made.first_token_ms);
    if (target === "webgpu") made.host = await host();
  } catch (error) {
    made.error = String(error.message).slice(0, 400);
    made.said = said.slice(-8);
  }
  await browser.close();
}

/** What the threads with JavaScript do for a token: milliseconds on a core, calls of WebGPU. */
async function host() {
  const write = (count) => page.evaluate(([prompt, n]) => timed(side, prompt, n), [PROMPTS[0], count]);
  const ms = await perToken(TOKENS, async (count) => {
    const before = cpu();
    await write(count);
    return Object.fromEntries(Object.entries(cpu()).map(([key, at]) => [key, at - (before[key] ?? 0)]));
  });
  for (const each of [page, ...page.workers()]) await each.evaluate(counted);
  const calls = await perToken(TOKENS, async (count) => {
    await write(count);
    const all = await Promise.all([page, ...page.workers()].map((each) => each.evaluate("take()")));
    return all.reduce((sum, one) => Object.fromEntries(Object.keys(sum).map((k) => [k, sum[k] + one[k]])));
  });
  return { ms, calls };
}

/** Of the worker's phases until the first token: when each began and ended, and how long it lasted. */
async function phases(clicked, until) {
  const worker = page.workers().find((each) => each.url().endsWith("/worker.js")); // threads sleep
  const all = await worker.evaluate("phases");
  const found = {};
  for (const [phase, from, to] of all.sort((a, b) => a[1] - b[1])) {
    const [start, end] = [from - clicked, Math.min(to - clicked, until)];
    if (start > until) continue;
    const one = (found[phase] ??= { times: 0, from: start, to: 0, ms: 0 });
    one.times++;
    one.ms += Math.max(0, end - Math.max(start, one.to)); // what two do at once counts once
    one.to = Math.max(one.to, end);
  }
  return found;
}
