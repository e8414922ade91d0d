// What a Program's weights are after a tensor came in pieces: `node pour.mjs PLAYER_FOLDER`, which
// reads {bytes, cuts, spec, recipe} and writes the buffer's bytes.

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const { Sessions } = await import(pathToFileURL(path.join(process.argv[2], "session.js")).href);
const { bytes, cuts, spec, recipe } = JSON.parse(readFileSync(0, "utf8"));
const device = {
  alloc: (nbytes) => Object.assign(new Uint8Array(nbytes), { nbytes }),
  write(place, data, offset = 0) {
    if (offset % 4) throw new Error("a GPU takes whole words");
    place.set(data, offset);
  },
};
const sessions = new Sessions(device, { one: { buffers: [spec], recipes: { [spec.name]: recipe } } });
const ends = [...cuts, bytes.length];
[0, ...cuts].forEach((from, n) =>
  sessions.put(recipe.whole, from, Uint8Array.from(bytes.slice(from, ends[n])), bytes.length));
process.stdout.write(JSON.stringify([...sessions.places.one[0]]));
