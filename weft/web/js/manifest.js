// A folder's manifest, checked before any of its files is used.

import { ITEM, WeftError, isText, soundly, whole } from "./program.js";

const FORMAT = 3;
const FILE = 2 ** 28; // bytes of the largest file: a page keeps one or two in memory
const FILES = 2 ** 12;
const ROWS = 2 ** 16;

/** How large files are together. @param {[string, number, string][]} files @returns {number} */
export const bytesOf = (files) => files.reduce((sum, [, nbytes]) => sum + nbytes, 0);

/** @param {boolean} holds @param {string} what @returns {asserts holds} */
export function need(holds, what) {
  if (!holds) throw new WeftError(`manifest.json is damaged: ${what}; export the folder again`);
}

/** @param {any} raw @returns {any} the same, or a WeftError that says what is wrong with it */
export function readManifest(raw) {
  if (raw?.format !== FORMAT) {
    throw new WeftError(`the folder has format ${raw?.format}; this player knows ${FORMAT}: `
      + "export it again with the same weft");
  }
  return soundly("manifest.json", () => {
    need(isText(raw.name), "its name");
    const count = Math.max(raw.shards.length, Object.keys(raw.files).length);
    need(count <= FILES, "how many its files are");
    for (const file of raw.shards) needFile(file);
    for (const [name, about] of Object.entries(raw.files)) needFile([name, ...about]);
    const total = bytesOf(raw.shards);
    for (const [name, [dtype, shape, start, nbytes]] of Object.entries(raw.tensors)) {
      const content = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b,
        ITEM[/** @type {keyof typeof ITEM} */ (dtype)]);
      need(shape.every(whole) && whole(start) && content === nbytes && start + nbytes <= total,
        `the place of tensor ${name}`);
    }
    need(Object.values(raw.memory ?? {}).every(whole), "its memory");
    need(raw.search === undefined || /^\w+$/.test(raw.search), "where its search is");
    need([undefined, true].includes(raw.chat) || isText(raw.chat), "whether it chats");
    needTerms(raw.terms);
    if (raw.kind === "decoder") needDecoder(raw.model, raw.text, raw.train ?? []);
    return raw;
  });
}

/**
 * What a folder holds, before anything large is fetched.
 * @param {{json: (name: string) => Promise<any>, has: (file: any) => Promise<boolean>}} store
 */
export async function described(store) {
  const { name, kind, search, shards, terms } = readManifest(await store.json("manifest.json"));
  const kept = await Promise.all(shards.map((/** @type {any} */ shard) => store.has(shard)));
  return { name, kind, bytes: bytesOf(shards), kept: kept.every(Boolean), search, terms };
}

/** @param {any} file its name leads nowhere but into the folder */
function needFile([name, nbytes, sha256]) {
  need(/^\w[\w.-]*$/.test(name) && whole(nbytes) && nbytes <= FILE && /^[0-9a-f]{64}$/.test(sha256),
    `file ${name}`);
}

/** @param {any} terms of the model: its licence, its files, what it was made from */
function needTerms({ licence, base, files } = { licence: "", base: [], files: [] }) {
  need(isText(licence) && base.every(isText)
    && files.every((/** @type {any} */ name) => /^model-[\w.-]+$/.test(name)), "its terms");
}

/** @param {any} text what is said of the tokenizer */
export function needText({ around, limit }) {
  need(around.length === 2 && around.flat().every(whole) && (limit === null || whole(limit)),
    "its text");
}

/**
 * @param {any} m @param {any} text
 * @param {string[]} kinds what the page trains: folders in this one
 */
function needDecoder(m, text, kinds) {
  needText(text);
  need(kinds.every((kind) => /^\w+$/.test(kind)), "what it trains");
  const counts = [m.vocab, m.context, m.page, ...m.kv_heads, ...Object.values(m.rows)];
  need(counts.every((n) => whole(n) && n > 0 && n <= 2 ** 24), "a number of the model");
  need(Object.values(m.rows).every((n) => n <= ROWS)
    && m.kv_heads.every((/** @type {number} */ n) => n <= ROWS / 16), "its rows");
  need(whole(m.rows.prefill) && whole(m.rows.decode) && m.eos.every(whole), "its rows or ends");
}
