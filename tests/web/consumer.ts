// A project that uses each function of the package: compiled with tsc's defaults, and as strictly as it can be.
import { pipeline } from "weft-ml/pipeline";
import {
  WeftError, describe, load, ranked, selftest,
  type About, type Answer, type Hearing, type Message, type Piece, type Progress, type Tool, type ToolCall,
} from "weft-ml";

const folder = "./folder/";
const access = { headers: { Authorization: "x" }, address: (name: string, again: boolean) => name + String(again) };

export async function used(): Promise<void> {
  const stop = new AbortController();
  const { kind, bytes, terms } = await describe(folder, access);
  const shares: number[] = [];
  const model = await load(folder, {
    target: "wasm", threads: 1, powerPreference: "low-power", signal: stop.signal,
    progress: ({ loaded, total, left = 0 }: Progress) => shares.push(loaded / total + left), note: (text) => text.trim(),
    ...access,
  });
  const about: About = model.about;
  if (about.bytes > bytes || kind !== "decoder" || terms?.base.length) stop.abort();
  for await (const { text, ids, finish } of model.generate("x", { temperature: 0.5, seed: 1, schema: true })) {
    const all: [string, number[], Piece["finish"]] = [text, ids, finish];
    if (all.length > 3) stop.abort();
  }
  const tools: Tool[] = [{ type: "function", function: { name: "f", parameters: {}, strict: true } }];
  const messages: Message[] = [{ role: "user", content: "hi" }];
  let calls: ToolCall[] = [];
  const how = { variables: {}, slide: true, tools, toolChoice: "required" } as const;
  for await (const piece of model.chat(messages, how)) calls = piece.toolCalls ?? calls;
  for (const { id } of calls) messages.push({ role: "tool", tool_call_id: id, content: [{ type: "text", text: "" }] });
  const [query, ...rows] = await model.embed(["a", "b"], { progress: (done) => void done, signal: stop.signal });
  if (query) ranked(query, rows).map(({ index, score }) => index + score);
  const pixels = new Uint8ClampedArray(4);
  const vector: Float32Array = await model.embedImage(pixels);
  const seen: Answer = await model.see(pixels, { threshold: 0.5, top: 2 });
  if (seen.task === "detect") seen.objects.map(({ box }) => box[0] + vector.length);
  const heard: Hearing[] = [];
  for await (const each of model.transcribe(new Float32Array(4), { language: "de" })) heard.push(each);
  const text: string = await model.decode(await model.encode("x"));
  const trainer = await model.trainer("lora", { target: "wasm" });
  for await (const { loss } of trainer.train(text, { steps: 2, lr: 0.1, seed: 1n })) shares.push(loss);
  for await (const piece of trainer.generate("x")) shares.push(piece.ids.length);
  for (const { name, bytes: own } of await trainer.files()) console.log(name, own.length);
  console.log(await selftest(folder, { target: "wasm" }), shares);
  // @ts-expect-error: no such option
  model.generate("x", { heat: 1 });
  // @ts-expect-error: not a prompt
  model.generate(5);
  if (new Error() instanceof WeftError) throw new WeftError("no", { cause: 1 });
  model.close();
}

export async function piped(): Promise<string> {
  const write = await pipeline("text-generation", folder, { target: "wasm" });
  const [first] = await write("x", { max_new_tokens: 4, streamer: (text) => text.length });
  const [answer] = await write([{ role: "user", content: "x" }], { do_sample: true, top_k: 3 });
  const { dims } = await (await pipeline("feature-extraction", folder))(["a"]);
  const labels = await (await pipeline("image-classification", folder))("./cat.png", { top_k: null });
  const detect = await pipeline("object-detection", folder);
  const boxes = (await detect("./street.png", { percentage: true })).map(({ box, label }) => label + box.xmin);
  const judge = await pipeline("zero-shot-image-classification", folder);
  const likely = await judge("./cat.png", ["cat"], { hypothesis_template: "{}" });
  const hear = await pipeline("automatic-speech-recognition", folder);
  const { text, chunks = [] } = await hear(new Float32Array(4), { return_timestamps: true });
  // @ts-expect-error: no such task
  await pipeline("summarization", folder);
  write.dispose();
  return (first?.generated_text ?? "") + [answer, dims, labels, boxes, likely, text, chunks].join();
}
