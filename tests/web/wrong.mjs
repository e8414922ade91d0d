// What the player's functions say of wrong arguments: wrong.mjs PLAYER FOLDER, one JSON line of
// [function, argument, value, error's name and message, or null]. A page takes `walk` from here.

const ODD = {
  undefined, null: null, five: 5, nan: NaN, empty: "", blank: "  ", word: "x y", yes: true, big: 5n, object: {},
  list: [], nested: [{}], message: [{ role: "user" }], function: () => 1, bytes: Uint8Array.of(1),
  date: new Date(0), symbol: Symbol("s"),
};

/** What comes of a call: the error's name and message, or null. */
async function said(call) {
  try {
    const made = await call();
    if (made?.[Symbol.asyncIterator]) for await (const _ of made) break;
    else made?.close?.();
    return null;
  } catch (error) {
    return [error?.name, error?.message];
  }
}

/** Calls each function of `api`, [function, arguments that are right], with one odd argument. */
async function walk(api) {
  const found = [];
  for (const [name, [call, right]] of Object.entries(api)) {
    for (const at of right.keys()) {
      for (const [odd, value] of Object.entries(ODD)) {
        const given = right.map((one, n) => (n === at ? value : one));
        found.push([name, at, odd, await said(() => call(...given))]);
      }
    }
  }
  return found;
}

/** A model without a device, of which what runs before that is asked. */
async function unplayed(player, file, name, about) {
  const { Model } = await import(`${player}/model.js`);
  const model = new Model(null, { name: "it", kind: name, chat: true, model: about }, {});
  model.kind = await import(`${player}/${file}.js`);
  const run = async () => { throw new Error("it runs"); };
  model.sessions = { run, prepare: run, bound: new Map() };
  model.tokenizer = { encode: () => [1], decode: () => "x", least: () => 0 };
  model.part = model.kind.make(model.sessions, about);
  model.device = { kind: "wasm" };
  model.chatData = run;
  return model;
}

async function node(player, folder) {
  const { describe, load, trainer, ranked, selftest } = await import(`${player}/node.js`);
  const options = { target: "wasm", threads: 1 };
  const model = await load(folder, options);
  const net = await unplayed(player, "net", "net", { size: [1, 2] });
  const album = await unplayed(player, "album", "album", { size: [1, 2] });
  const encoder = await unplayed(player, "encoder", "encoder", { widths: [16], vocab: 9 });
  const speech = await unplayed(player, "speech", "speech",
    { vocab: 9, languages: {}, tasks: {}, start: 1, no_times: 2, mels: 80, source: 1500 });
  const chats = await unplayed(player, "writing", "decoder", { vocab: 9, context: 9, eos: [] });
  const row = Float32Array.of(1, 0);
  const pixels = new Uint8ClampedArray(8);
  const talk = [{ role: "user", content: "x" }];
  const api = {
    load: [load, [folder, options]], describe: [describe, [folder, {}]],
    selftest: [selftest, [folder, options]], trainer: [trainer, [model, "lora", {}]],
    ranked: [ranked, [row, [row]]],
    generate: [(...all) => model.generate(...all), ["x", { maxNewTokens: 1 }]],
    chat: [(...all) => chats.chat(...all), [talk, {}]],
    embed: [(...all) => encoder.embed(...all), [["x"], {}]],
    embedImage: [(...all) => album.embedImage(...all), [pixels]],
    see: [(...all) => net.see(...all), [pixels, {}]],
    transcribe: [(...all) => speech.transcribe(...all), [row, {}]],
    encode: [(...all) => model.encode(...all), ["x"]],
    decode: [(...all) => model.decode(...all), [[1]]],
  };
  const found = await walk(api);
  for (const name of ["encode", "decode"]) {
    net.tokenizer = null;
    found.push([name, 0, "net", await said(() => net[name]("x"))]);
  }
  model.close();
  for (const name of ["generate", "embed"]) {
    found.push([name, 0, "closed", await said(() => model[name]("x"))]);
  }
  return found;
}

if (globalThis.process) {
  const [player, folder] = process.argv.slice(2);
  console.log(JSON.stringify(await node(player, folder)));
}
