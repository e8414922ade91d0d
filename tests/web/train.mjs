// Trains as the page does: `node train.mjs FOLDER KIND TEXT_FILE STEPS OUT`; losses as JSON.

import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, kind, file, steps, out] = process.argv.slice(2);
const { load, trainer } = await import(pathToFileURL(path.join(folder, "node.js")).href);
const model = await load(folder, { target: "wasm" });
const it = await trainer(model, kind, { target: "wasm" });
const losses = [];
const text = readFileSync(file, "utf8");
for await (const { loss } of it.train(text, { steps: Number(steps), seed: 3 })) losses.push(loss);
for (const { name, bytes } of await it.files()) writeFileSync(path.join(out, name), bytes);
let written = [];
for await (const { ids } of it.generate("def ", { maxNewTokens: 8 })) written.push(...ids);
console.log(JSON.stringify({ losses, written }));
process.exit(0);
