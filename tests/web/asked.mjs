// What the player says of prompts and options, one JSON line: asked.mjs PLAYER FOLDER.

const [player, folder] = process.argv.slice(2);
const { load } = await import(`${player}/node.js`);

/** What comes of a call: the error's name and message, or what it gave. */
async function said(call) {
  try {
    let text = "";
    for await (const piece of await call()) text += piece.text;
    return text;
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
}
const model = await load(folder, { target: "wasm", threads: 1 });
const prompts = {
  text: "x", ids: [5, 6], typed: Int32Array.of(5, 6), letters: ["a"], null: [1, null], half: [1.5],
  beyond: [2 ** 32 + 5], minus: [-1], vocabulary: [2048], nothing: null, number: 5, nested: [[1]],
  big: [5n], object: { 0: 1 }, empty: [],
};
const options = [
  { maxNewTokens: 1 }, { maxNewTokens: -1 }, { maxNewTokens: 1.5 }, { maxNewTokens: "9" },
  { maxNewTokens: NaN }, { temperature: -1 }, { temperature: Infinity }, { temperature: "hot" },
  { topK: -1 }, { topK: 0.5 }, { topP: 0 }, { topP: 2 }, { repetitionPenalty: 0 },
  { seed: -1 }, { seed: 1.5 }, { seed: 2 ** 64 }, { seed: 2n ** 64n }, { seed: 2n ** 64n - 1n },
  { stop: "x" }, { stop: [""] }, { stop: [1] }, { signal: {} }, { max_new_tokens: 5 },
  { topk: 3 }, { temperature: undefined }, 7, null,
];
const loads = [{ target: "cuda" }, { threads: 0 }, { progress: 5 }, { device: "cpu" }, { gpu: 1 },
  { target: "webgpu" }];
const some = { maxNewTokens: 1 };
const out = { prompts: {}, options: [], loads: [], chat: [], embed: [] };
for (const [name, prompt] of Object.entries(prompts)) {
  out.prompts[name] = await said(() => model.generate(prompt, some));
}
for (const each of options) out.options.push(await said(() => model.generate("x", each)));
for (const each of loads) out.loads.push(await said(async () => [await load(folder, each)]));
for (const each of [null, "hi", [1], [{ content: "x" }]]) {
  out.chat.push(await said(() => model.chatPrompt(each)));
}
out.embed.push(await said(() => model.embed(["x"], { batch: 3 })));
out.embed.push(await said(async () => [model.encode(5)]));
model.close();
console.log(JSON.stringify(out));
