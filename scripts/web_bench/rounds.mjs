// Sides in turn, so that what the machine does meanwhile falls on all of them:
//
//     node rounds.mjs OUT ROUNDS "weft box float16 wasm 2" "wllama box f16 wasm 2" ...
//
// adds a line of JSON for each run to OUT and prints the medians of all that OUT has of each side.
// `waited` is for how much of the page's time on a core its threads stood in the queue for one.

import { spawnSync } from "node:child_process";
import { appendFileSync, readFileSync } from "node:fs";
import path from "node:path";

const [out, rounds, ...sides] = process.argv.slice(2);
const RUN = path.join(import.meta.dirname, "run.mjs");

for (let round = 0; round < Number(rounds); round++) {
  for (const side of sides) {
    const { stdout, stderr } = spawnSync(process.execPath, [RUN, ...side.split(" ")], { encoding: "utf8" });
    if (!stdout.startsWith("{")) throw new Error(`${side}: ${stderr.slice(0, 300)}`);
    appendFileSync(out, stdout);
  }
}

const median = (of) => of.sort((a, b) => a - b)[Math.floor(of.length / 2)];
const groups = new Map();
for (const line of readFileSync(out, "utf8").trim().split("\n")) {
  const made = JSON.parse(line);
  const { side, model, dtype, target, threads, error } = made;
  const name = [side, model, dtype, target, threads].join(" ");
  if (error) console.log(name, error);
  else groups.set(name, [...(groups.get(name) ?? []), made]);
}
for (const [name, runs] of groups) {
  const of = (what) => median(runs.map(what));
  console.log(name.padEnd(38), `${runs.length} runs`, `first token ${(of((r) => r.first_token_ms) / 1000).toFixed(2)} s`,
    `prompt ${of((r) => median(r.texts.map((t) => t.first))).toFixed(0)} ms`,
    `${of((r) => median(r.texts.map((t) => t.per_s))).toFixed(1)} tokens/s`,
    `${of((r) => r.page_mib)} MiB`, `waited ${of((r) => r.waited_ms / r.cpu_ms).toFixed(2)}`);
}
