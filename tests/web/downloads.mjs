// What Store makes of servers that fail: node downloads.mjs PLAYER. Prints case -> what came of it.

import { createHash } from "node:crypto";
import { createServer } from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const js = (name) => import(pathToFileURL(path.join(process.argv[2], name)).href);
const { Store } = await js("store.js");
const { WeftError } = await js("program.js");

const content = Uint8Array.from({ length: 1000 }, (_, n) => n * 7);
const file = ["a.bin", content.length, createHash("sha256").update(content).digest("hex")];
const wait = globalThis.setTimeout;
globalThis.setTimeout = (act, ms) => wait(act, ms / 200);

/** A body that gives these bytes and then ends, or breaks. */
function body(bytes, whole) {
  let given = false;
  return new ReadableStream({
    pull(c) {
      if (!given) c.enqueue(bytes);
      else if (whole) c.close();
      else c.error(new TypeError("network error"));
      given = true;
    },
  }, { highWaterMark: 0 });
}

const from = (request) => Number(/bytes=(\d+)-/.exec(request.headers?.Range ?? "")?.[1] ?? 0);
const part = (request, most, whole = false) =>
  new Response(body(content.slice(from(request), from(request) + most), whole),
    { status: from(request) ? 206 : 200 });
const CASES = {
  whole: () => new Response(content),
  "cut often, with Range": (request) => part(request, 90),
  "cut always, without Range": () => new Response(body(content.slice(0, 400), false)),
  "cut twice, without Range": (_, n) =>
    new Response(n < 2 ? body(content.slice(0, 400), false) : content),
  "no byte comes": () => new Response(body(new Uint8Array(), false)),
  "500 twice": (_, n) => (n < 2 ? new Response("", { status: 500 }) : new Response(content)),
  "500 always": () => new Response("", { status: 500 }),
  404: () => new Response("", { status: 404 }),
  short: (request) => part(request, 300, true).status === 206
    ? new Response("", { status: 416 }) : new Response(content.slice(0, 300)),
  long: () => new Response(new Uint8Array(2000)),
  "says nothing": ({ signal }) => new Promise((_, fail) => (signal.onabort = () => fail(signal.reason))),
  stalls: ({ signal }, n) => (n ? new Response(content) : new Response(new ReadableStream({
    start: (c) => (c.enqueue(content.slice(0, 9)), signal.onabort = () => c.error(signal.reason)),
  }))),
  "another part": (request) => (from(request) ? new Response(body(content, true),
    { status: 206, headers: { "Content-Range": "bytes 0-999/1000" } }) : part(request, 300)),
  "parts of what it packs": (request, n) => (n % 2 ? part(request, 0) : part(request, 400 + n * 300)),
  "no parts": (request, n) => (from(request) ? new Response("", { status: 416 })
    : n ? new Response(content) : part(request, 300)),
  corrupt: () => new Response(content.map((b, n) => b ^ Number(n === 500))),
};
const out = {};
const real = globalThis.fetch;
for (const [name, answer] of Object.entries(CASES)) {
  let n = 0;
  globalThis.fetch = async (_, request) => answer(request, n++);
  try {
    const bytes = await new Store("http://here/").file(file);
    out[name] = Buffer.compare(bytes, content) ? "another content" : `right after ${n}`;
  } catch (error) {
    out[name] = `${error instanceof WeftError ? "" : error.name}${error.message}`;
  }
}

// A manifest: what is no JSON, what never ends.
const endless = () => new Response(new ReadableStream({
  pull: (c) => c.enqueue(new Uint8Array(2 ** 20).fill(32)),
}));
const TEXTS = { truncated: () => new Response('{"a": [1, 2'), endless, silent: CASES["says nothing"] };
for (const [name, answer] of Object.entries(TEXTS)) {
  globalThis.fetch = async (_, request) => answer(request);
  out[name] = await new Store("http://here/").json("a.json").catch(({ message }) => message);
}

// A server that packs what it sends and breaks off in the midst, and one that sends on.
globalThis.fetch = real;
globalThis.setTimeout = wait;
let tried = 0;
const server = createServer(({ url, headers }, answer) => {
  if (url === "/far/a.bin") return answer.writeHead(302, { Location: "/near/a.bin" }).end();
  const range = Number(/bytes=(\d+)-/.exec(headers.range ?? "")?.[1] ?? 0);
  const packed = url === "/packed/a.bin" && !range;
  const bytes = packed ? gzipSync(content) : content.slice(range);
  answer.writeHead(range ? 206 : 200, {
    "Content-Length": bytes.length, ...packed && { "Content-Encoding": "gzip" },
    ...range && { "Content-Range": `bytes ${range}-999/1000` },
  });
  if (packed && !tried++) return answer.write(bytes.slice(0, 400), () => answer.destroy());
  answer.end(bytes);
}).listen(0, "127.0.0.1");
await new Promise((done) => server.once("listening", done));
for (const name of ["near", "far", "packed"]) {
  const bytes = await new Store(`http://127.0.0.1:${server.address().port}/${name}/`).file(file);
  out[name] = Buffer.compare(bytes, content) ? "another content" : "right";
}
server.close();

// What is kept in parts is read in small pieces, not as copies of whole parts.
const parts = new Map();
globalThis.caches = { open: async () => ({
  keys: async () => [...parts.keys()].map((url) => ({ url })),
  async match(key) {
    if (!parts.has(key)) return undefined;
    const { bytes, headers } = parts.get(key);
    return Object.assign(new Response(bytes, { headers }), { arrayBuffer: () => { throw 0; } });
  },
}) };
const keep = (...sizes) => {
  parts.clear();
  sizes.reduce((at, [size, come = size]) => {
    const key = `http://none/a.bin?${file[2]}${at ? `&${at}` : ""}`;
    parts.set(key, { bytes: content.slice(at, at + come), headers: { "X-Size": String(size) } });
    return at + size;
  }, 0);
};
for (const [name, sizes] of [["kept", [[400], [600]]], ["kept short", [[400], [600, 90]]],
  ["kept long", [[400, 500], [600]]]]) {
  keep(...sizes);
  const store = new Store("http://none/");
  store.kept.keep = async () => {};
  globalThis.fetch = async (_, request) => part(request, 1000, true);
  const bytes = await store.file(file);
  out[name] = [Buffer.compare(bytes, content) ? "another content" : "right", store.fetched];
}

// Both buffers of shards are gone when the last one is placed.
const rooms = [];
const shards = [file, file, file];
const store = { fetched: 0, file: async (_, counted, room) => (rooms.push(room), content) };
await new (await js("folder.js")).Folder(store, { shards, tensors: {} }).pour({});
out.rooms = rooms.map(({ byteLength }) => byteLength);
console.log(JSON.stringify(out));
