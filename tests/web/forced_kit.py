"""Forced decoding in four places: the page's player is given texts and asked for the logits after
each of their tokens; prompts at the edges of the context are gone on with."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from page_device import PLAYER, environment
from page_kit import MODULES, Browser, Site, need
from stepping import scores
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from weft.backends import registry
from weft.conform.packed import random_weight
from weft.core.packed import Form, Packed
from weft.core.tolerance import Tolerance
from weft.importers.hf_config import Fields
from weft.models.arch.families import DECODERS
from weft.models.arch.weights import Weights
from weft.models.run.loader import decoder_from
from weft.models.run.model import Decoder
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.placement import Placement
from weft.models.weights.source import Source
from weft.program.device import Device

VOCAB, CONTEXT = 300, 40
PLACES = ("node-wasm", "node-webgpu", "chromium-wasm", "chromium-webgpu")
MOST = 8  # tokens that each prompt is gone on with

# What each place runs once it has a model: logits after each id from `first` on, and texts.
PLAY = """
const rows = [], texts = [];
for (const { ids, first } of given.forced) {
  for (let n = first; n <= ids.length; n++) rows.push([...await model.logits(ids.slice(0, n))]);
}
for (const prompt of given.prompts) {
  const said = { ids: [], finish: "", error: "" };
  try {
    for await (const { ids, finish } of model.generate(prompt, { maxNewTokens: given.most })) {
      said.ids.push(...ids);
      said.finish = finish;
    }
  } catch (error) {
    said.error = `${error.name}: ${error.message}`;
  }
  texts.push(said);
}
const played = { kind: model.device.kind, rows, texts };
"""
NODE = """
const [player, modules, folder, target, json] = process.argv.slice(1);
const js = (name) => import(`file://${player}/${name}`);
const { load } = await js("node.js");
let gpu;
if (target === "webgpu") {
  const { create, globals } = await import(`file://${modules}/webgpu/index.js`);
  Object.assign(globalThis, globals);
  gpu = create([]);
}
const model = await load(folder, { target, gpu });
const given = JSON.parse(json);
%s
process.stdout.write(JSON.stringify(played), () => process.exit(0));
"""
PAGE = """
await page.goto(`${given.url}blank.html`);
return await page.evaluate(async (given) => {
  const js = (name) => import(`./${name}`);
  const [{ Model }, { Store }] = await Promise.all([js("model.js"), js("store.js")]);
  const model = await Model.load(new Store(given.url), { target: given.target });
  %s
  return played;
}, given);
"""


def byte_tokenizer(folder: Path) -> None:
    """Writes a tokenizer whose tokens are bytes: no model is too small for it."""
    raw = Tokenizer(models.BPE({c: n for n, c in enumerate(sorted(_ALPHABET))}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.save(str(folder / "tokenizer.json"))


_ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def packed_pair(
    folder: Path, config: Mapping[str, Any], form: Form, inputs: Any, device: Device | None = None
) -> tuple[Decoder, Decoder]:
    """A model whose matrices are random and packed as `form` says, on `device` (the CPU) and on the
    oracle; `inputs` is the dtype of what meets them."""
    fields = Fields({**config, "vocab_size": VOCAB}, "config")
    made = DECODERS[fields.text("model_type")](fields)
    rng = np.random.default_rng(7)
    weights: dict[str, np.ndarray | Packed] = {}
    for role, spec in decoder_layout(made).weights.items():
        if len(spec.shape) == 2:
            # small beside the embedding: a code that is rounded otherwise moves little
            size = 1.0 if role == "embed" else 0.05
            own = form._replace(group=min(form.group, spec.shape[1]))
            weights[role] = random_weight(own, *spec.shape, rng, size=size)
        else:
            weights[role] = np.ones(spec.shape, np.float32)
    folder.mkdir()
    byte_tokenizer(folder)
    arrays = Weights.of(weights)
    made = replace(made, forms=arrays.forms, act_dtype=inputs)
    source = Source(folder, made, read_token_ids(folder, fields))
    played, oracle = (
        decoder_from(source, arrays, each, Placement(context=CONTEXT))
        for each in (device or registry.get("cpu"), None)
    )
    return played, oracle


@dataclass
class Asked:
    """What a place is asked of a model, and what Python's oracle and CPU say to it."""

    forced: list[dict[str, Any]]
    prompts: list[Any]
    rows: np.ndarray
    texts: list[dict[str, Any]]


def asked(cpu: Decoder, oracle: Decoder) -> Asked:
    """A short text, one that goes back to its middle, the whole context id by id, and at once;
    prompts of one token, near the context's end, at it, beyond it, and none."""
    rng, size = np.random.default_rng(11), cpu.context
    short = rng.integers(0, 256, 13).tolist()
    whole = rng.integers(0, 256, size).tolist()
    other = [*short[:6], *rng.integers(0, 256, 4).tolist()]
    texts = [(short, 5), (other, len(other)), (whole, 1), (whole[::-1], size)]
    runner = oracle.runner()
    rows = [scores(runner, ids)[first - 1 :] for ids, first in texts]
    prompts = [whole[:1], whole[: size - 3], whole, [*whole, 1], [], ""]
    wanted = []
    for prompt in prompts[:3]:
        out = cpu.generate(prompt, max_new_tokens=MOST)
        wanted.append({"ids": list(out.ids), "finish": out.finish_reason, "error": ""})
    return Asked(
        [{"ids": ids, "first": first} for ids, first in texts],
        prompts, np.concatenate(rows), wanted,
    )  # fmt: skip


def play(place: str, folder: Path, it: Asked, browser: Browser) -> dict[str, Any]:
    """What `place` says, with its logits as float32 [rows, vocab]."""
    given = {"forced": it.forced, "prompts": it.prompts, "most": MOST}
    said = play_at(place, folder, PLAY, given, browser)
    return {**said, "rows": np.array(said["rows"], np.float32)}


def play_at(
    place: str, folder: Path, code: str, given: Mapping[str, Any], browser: Browser
) -> dict[str, Any]:
    """What `code` leaves in `played`, run in `place` with the folder's `model`, `given`, and `js`,
    which imports a module of the player."""
    where, _, target = place.partition("-")
    if where == "node":
        need(*(["webgpu"] if target == "webgpu" else []))
        call = [str(PLAYER), str(MODULES), str(folder), target, json.dumps(given)]
        node = [str(shutil.which("node")), "--input-type=module", "-e", NODE % code, *call]
        out = subprocess.run(node, env=environment(), capture_output=True, text=True, timeout=600)
        assert out.returncode == 0, out.stderr
        said = json.loads(out.stdout)
    else:
        site = Site(folder, "")
        try:
            given = {**given, "url": site.url, "target": target}
            said = browser.run(place, PAGE % code, given, patience=600)  # its kernels compile
        finally:
            site.close()
    assert said["kind"] == target
    return said


def agree(said: dict[str, Any], it: Asked, tol: Tolerance, texts: bool = True) -> None:
    """Logits within the table; the likeliest token is the oracle's wherever its margin is larger
    than what the table allows; the CPU's `texts`; a sentence for what cannot be gone on with."""
    got, want = said["rows"], it.rows
    np.testing.assert_allclose(got, want, atol=tol.atol, rtol=tol.rtol)
    best, top = want.argmax(1), got.argmax(1)
    each = np.arange(len(want))
    slack = 2 * (tol.atol + tol.rtol * np.abs(want[each, best]))
    assert ((top == best) | (want[each, best] - want[each, top] <= slack)).all()
    if texts:
        assert said["texts"][:3] == it.texts
    long, none, empty = (t["error"] for t in said["texts"][3:])
    size = len(it.forced[2]["ids"])
    assert long.startswith(f"WeftError: the prompt has {size + 1} tokens; this page holds {size}")
    assert none == empty and none.startswith("WeftError: the prompt is empty")
