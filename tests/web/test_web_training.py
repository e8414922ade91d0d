"""Training in a page: its losses are the CPU's, and its files are read by what reads ours."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forced_kit import PLACES, play_at
from page_kit import LateBrowser, need

import weft
from weft.backends import registry
from weft.hub.box import box_folder
from weft.importers.hf_config import Fields
from weft.models.weights import adapters
from weft.models.weights.writing import write_model
from weft.training.model import config_of, fresh_weights
from weft.training.prepare import new_config
from weft.training.settings import ModelSettings, TrainSettings
from weft.training.step import make_optimizer, make_step
from weft.training.tokens import Batches
from weft.web.export import export_decoder
from weft.web.training import LORA, SCRATCH, Training, training

STEPS = 20
SMALL = TrainSettings(batch=2, context=16, steps=STEPS)
CHOSEN = {
    "scratch": replace(SCRATCH, train=SMALL, model=ModelSettings(hidden=16, layers=1, heads=2)),
    "lora": replace(LORA, train=SMALL, optimizer=replace(LORA.optimizer, lr=0.02)),
}
TRAIN = """
const { Trainer } = await js("trainer.js");
const it = await Trainer.beside(model, model.store.inside(given.kind), model.options);
const losses = [], written = [];
for await (const { loss } of it.train(given.text, { steps: given.steps, seed: 3 })) {
  losses.push(loss);
}
const files = (await it.files()).map(({ name, bytes }) => [name, [...bytes]]);
for await (const { ids } of it.generate("def ", { maxNewTokens: 8 })) written.push(...ids);
const played = { kind: it.device.kind, losses, files, written };
"""
SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, weft.models.run.model.Decoder]:
    return small_page(tmp_path_factory.mktemp("small"))


def small_page(root: Path) -> tuple[Path, weft.models.run.model.Decoder]:
    """A page of a tiny model that trains both kinds, in small batches."""
    folder, base = root / "page", root / "tiny"
    raw = new_config(ModelSettings(hidden=32, layers=1, heads=2), 2048, 64, 0)
    config = config_of(Fields(raw, "tiny"))
    folder.mkdir()
    base.mkdir()
    write_model(base, config, raw, box_folder(), fresh_weights(config, 1))
    model = weft.load(base, device="cpu", context=32, max_batch=1)
    export_decoder(model, folder, [training(model, k, s) for k, s in CHOSEN.items()])
    return folder, model


def cpu_losses(it: Training, ids: list[int]) -> tuple[list[float], dict[str, np.ndarray]]:
    """As weft train computes them."""
    t, o = it.settings.train, it.settings.optimizer
    model, device = it.trained.model, registry.get("cpu")
    step = make_step(model, make_optimizer(model, o, t.steps), t, o, device)
    batches = Batches(np.array(ids, np.uint16), t.batch, t.context, 3)
    losses = []
    for number in range(STEPS):
        x, y = batches.at(number)
        losses.append(float(step(x[None], y[None], np.zeros(2, np.uint32))["loss"].item()))
    return losses, {role: np.array(p.numpy()) for role, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["scratch", "lora"])
@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=[] if p == "node-wasm" else SLOW) for p in PLACES]
)
def test_the_page_trains_as_the_cpu_does(
    place: str, kind: str, page, tmp_path: Path, late_browser: LateBrowser
) -> None:
    need()
    folder, model = page
    text = (Path(__file__).read_text(encoding="utf-8"))[:1500]
    given = {"kind": kind, "text": text, "steps": STEPS}
    got = play_at(place, folder, TRAIN, given, late_browser)
    for name, data in got["files"]:
        (tmp_path / name).write_bytes(bytes(data))
    it = training(model, kind, CHOSEN[kind])
    tokenizer = model.need_tokenizer("")
    losses, weights = cpu_losses(it, tokenizer.encode(text, special=False) + it.about["end"])
    np.testing.assert_allclose(got["losses"], losses, atol=1e-4, rtol=0)
    assert losses[-1] < losses[0] and len(got["written"]) == 8
    if kind == "lora":
        read = adapters.read(tmp_path, it.trained.config)
        assert read.base == model.folder.name and read.base_digest
        for role, value in read.weights.items():
            np.testing.assert_allclose(value, weights[role], atol=1e-3, rtol=0)
    else:
        shutil.copy(folder / "tokenizer.json", tmp_path)
        made = weft.load(tmp_path, device="cpu")
        ids = model.encode("def ")
        out = made.generate(ids, max_new_tokens=8)
        assert list(out.ids) == got["written"]
