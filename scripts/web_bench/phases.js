// When a page's worker fetched, hashed, kept, copied, compiled and played: run.mjs serves this from
// the page's folder, beside its worker, where PHASES=1. [phase, from, to], in ms since 1970.

import { Decoder } from "./decoder.js";
import { Model } from "./model.js";
import { Sessions } from "./session.js";
import { Store } from "./store.js";
import { WasmDevice } from "./wasm.js";

const now = () => performance.timeOrigin + performance.now();
globalThis.phases = [];

/** @param {any} owner @param {string} name of what it does @param {string} phase */
function noted(owner, name, phase) {
  const call = owner[name];
  owner[name] = function (...args) {
    const from = now();
    const done = () => phases.push([phase, from, now()]);
    const made = call.apply(this, args);
    if (typeof made?.then === "function") made.then(done, done);
    else done();
    return made;
  };
}

noted(Store.prototype, "json", "manifest");
noted(Store.prototype, "known", "look for what is kept");
noted(Store.prototype, "fetchAll", "fetch");
noted(Store.prototype, "keep", "keep");
noted(SubtleCrypto.prototype, "digest", "hash");
noted(WasmDevice, "make", "compile");
noted(Model.prototype, "choose", "code");
noted(Model.prototype, "readTokenizer", "tokenizer");
noted(Model.prototype, "pour", "weights");
noted(Sessions.prototype, "prepare", "bind");
noted(Sessions.prototype, "put", "copy");
noted(Decoder.prototype, "feed", "feed");
