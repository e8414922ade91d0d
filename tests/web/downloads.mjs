// What Store makes of servers that fail: node downloads.mjs PLAYER. Prints case -> what came of it.

import { createHash } from "node:crypto";
import path from "node:path";
import { pathToFileURL } from "node:url";

const js = (name) => import(pathToFileURL(path.join(process.argv[2], name)).href);
const { Store } = await js("store.js");
const { WeftError } = await js("program.js");

const content = Uint8Array.from({ length: 1000 }, (_, n) => n * 7);
const file = ["a.bin", content.length, createHash("sha256").update(content).digest("hex")];
const wait = globalThis.setTimeout;
globalThis.setTimeout = (act) => wait(act, 0);

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
  corrupt: () => new Response(content.map((b, n) => b ^ Number(n === 500))),
};
const out = {};
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
console.log(JSON.stringify(out));
