// A page of weft beside others in Chromium: one side, one process, one line of JSON.
//
//     node run.mjs SIDE MODEL DTYPE TARGET [THREADS]
//
// SIDE is weft, transformers or wllama. WEB_BENCH names a folder with pages/MODEL-DTYPE (weft export
// web), onnx/MODEL and gguf/MODEL-DTYPE.gguf; NODE_MODULES one with playwright-core and PEERS one with
// the others' packages. Everything comes from 127.0.0.1. docs/browser.md says what was run.

import { createServer } from "node:http";
import { createReadStream, readFileSync, readdirSync, statSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [side, model, dtype, target, threads] = process.argv.slice(2);
const { WEB_BENCH = "", NODE_MODULES = "", PEERS = NODE_MODULES, CHROMIUM = "/usr/bin/chromium", ISOLATED = "1" } = process.env;
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

const server = createServer((request, answer) => {
  const [, root, ...rest] = decodeURIComponent(request.url.split("?")[0]).split("/");
  const file = root in ROOTS ? path.join(ROOTS[root], ...rest) : path.join(import.meta.dirname, "sides.js");
  answer.setHeader("Cache-Control", "no-store");
  if (ISOLATED === "1") {
    answer.setHeader("Cross-Origin-Opener-Policy", "same-origin");
    answer.setHeader("Cross-Origin-Embedder-Policy", "require-corp");
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

/** The processes below this one: [pid, kind]. */
function processes() {
  const parents = new Map();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number)) {
    try {
      const status = readFileSync(`/proc/${pid}/status`, "utf8");
      parents.set(pid, Number(/PPid:\s+(\d+)/.exec(status)[1]));
    } catch { /* it has ended */ }
  }
  const below = (pid) => pid === process.pid || (parents.has(pid) && below(parents.get(pid)));
  return [...parents.keys()].filter((pid) => pid !== process.pid && below(pid)).map((pid) =>
    [pid, /--type=([\w-]+)/.exec(readFileSync(`/proc/${pid}/cmdline`, "utf8"))?.[1] ?? "browser"]);
}

/** MiB of the largest process of a kind, at its highest. */
const highest = (kind) => Math.max(0, ...processes().filter(([, k]) => k === kind).map(([pid]) =>
  Math.round(Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) / 1024)));

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

const { chromium } = await import(pathToFileURL(path.join(NODE_MODULES, "playwright-core/index.mjs")).href);
const browser = await chromium.launch({
  executablePath: CHROMIUM,
  args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--disable-background-networking", "--no-first-run"],
  ignoreDefaultArgs: ["--disable-gpu"],
});
const page = await browser.newPage();
page.setDefaultTimeout(200_000);
const said = [];
page.on("console", (m) => said.push(m.text().slice(0, 300)));
page.on("pageerror", (error) => said.push(error.message.slice(0, 300)));
const made = { side, model, dtype, target, threads: Number(threads) || null, isolated: ISOLATED === "1" };
try {
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.waitForFunction("globalThis.measure");
  const found = await page.evaluate(([name, asked, prompts, count]) => measure(name, asked, prompts, count),
    [side, { model, dtype, target, threads: Number(threads) || undefined }, PROMPTS, TOKENS]);
  Object.assign(made, found, { page_mib: highest("renderer"), gpu_mib: highest("gpu-process") });
  if (target === "webgpu") made.host = await host();
} catch (error) {
  made.error = String(error.message).slice(0, 400);
  made.said = said.slice(-8);
}
console.log(JSON.stringify(made));
await browser.close();
server.close();

/** What the threads with JavaScript do for a token: milliseconds on a core, calls of WebGPU. */
async function host() {
  const write = (count) => page.evaluate(([prompt, n]) => timed(side, prompt, n), [PROMPTS[0], count]);
  const spent = async (count) => {
    const before = cpu();
    await write(count);
    const after = cpu();
    return Object.fromEntries(Object.keys(after).map((key) => [key, after[key] - (before[key] ?? 0)]));
  };
  const [few, many] = [await spent(4), await spent(4 + TOKENS)];
  const ms = Object.fromEntries(Object.keys(many).map((key) => [key, (many[key] - few[key]) / TOKENS]));
  for (const each of [page, ...page.workers()]) await each.evaluate(counted);
  const calls = async (count) => {
    await write(count);
    const all = await Promise.all([page, ...page.workers()].map((each) => each.evaluate("take()")));
    return all.reduce((sum, one) => Object.fromEntries(Object.keys(sum).map((k) => [k, sum[k] + one[k]])));
  };
  const [less, more] = [await calls(4), await calls(4 + TOKENS)];
  return { ms, calls: Object.fromEntries(Object.keys(more).map((k) => [k, (more[k] - less[k]) / TOKENS])) };
}

/** Counts a thread's calls of WebGPU from now on; `take` gives them and begins anew. */
function counted() {
  const count = { dispatches: 0, passes: 0, submits: 0, groups: 0, writes: 0, maps: 0, copies: 0 };
  const wrap = (kind, name, what) => {
    const own = globalThis[kind]?.prototype;
    if (!own) return;
    const call = own[name];
    own[name] = function (...args) { count[what]++; return call.apply(this, args); };
  };
  wrap("GPUComputePassEncoder", "dispatchWorkgroups", "dispatches");
  wrap("GPUCommandEncoder", "beginComputePass", "passes");
  wrap("GPUCommandEncoder", "copyBufferToBuffer", "copies");
  wrap("GPUQueue", "submit", "submits");
  wrap("GPUQueue", "writeBuffer", "writes");
  wrap("GPUDevice", "createBindGroup", "groups");
  wrap("GPUBuffer", "mapAsync", "maps");
  globalThis.take = () => {
    const taken = { ...count };
    for (const key of Object.keys(count)) count[key] = 0;
    return taken;
  };
}
