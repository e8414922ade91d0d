// The report of ?selftest in Node: node selftest.mjs PLAYER FOLDER [wrong], which damages a value.

import { readFile } from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [player, folder, wrong] = process.argv.slice(2);
const { Model } = await import(pathToFileURL(path.join(player, "model.js")).href);
const read = (name) => readFile(path.join(folder, name));
const store = {
  fetched: 0,
  async file([name]) {
    const bytes = await read(name);
    if (!wrong || name !== "selftest.json") return bytes;
    const tests = JSON.parse(bytes);
    tests.wasm.kernels[1][3][0][5][0][1] += 0.1;
    return Buffer.from(JSON.stringify(tests));
  },
};
const model = new Model(store, JSON.parse(await read("manifest.json")), { target: "wasm" });
console.log(JSON.stringify(await model.selftest()));
