// A project that uses the package: compiled with tsc's defaults, and as strictly as it can be.
import { pipeline } from "weft-ml/pipeline";
import { WeftError, load, ranked, type Piece } from "weft-ml";

export async function used(): Promise<void> {
  const stop = new AbortController();
  const model = await load("./folder/", {
    target: "wasm", signal: stop.signal, progress: ({ loaded, total }) => loaded / total,
  });
  for await (const { text, ids, finish } of model.generate("x", { temperature: 0.5, seed: 1 })) {
    const all: [string, number[], Piece["finish"]] = [text, ids, finish];
    if (all.length > 3) stop.abort();
  }
  for await (const piece of model.chat([{ role: "user", content: "hi" }], { variables: {} })) {
    if (piece.text) break;
  }
  const [query, ...rows] = await model.embed(["a", "b"]);
  if (query) ranked(query, rows).map(({ index, score }) => index + score);
  // @ts-expect-error: no such option
  model.generate("x", { heat: 1 });
  // @ts-expect-error: not a prompt
  model.generate(5);
  if (new Error() instanceof WeftError) throw new WeftError("no", { cause: 1 });
  model.close();
}

export async function piped(): Promise<string> {
  const write = await pipeline("text-generation", "./folder/", { target: "wasm" });
  const [first] = await write("x", { max_new_tokens: 4, streamer: (text) => text.length });
  const detect = await pipeline("object-detection", "./folder/");
  const boxes = (await detect("./street.png")).map(({ box, label }) => label + box.xmin);
  // @ts-expect-error: no such task
  await pipeline("summarization", "./folder/");
  write.dispose();
  return (first?.generated_text ?? "") + boxes.join();
}
