"""Training in a page: its losses are the CPU's, and its files are read by what reads ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from forced_kit import PLACES, play_at
from page_kit import Browser, need
from rows import few
from training_kit import CHOSEN, STEPS

import weft
from weft.backends import registry
from weft.models.weights import peft_files
from weft.training.step import make_optimizer, make_step
from weft.training.tokens import Batches
from weft.web.training import PageTraining, training

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


def cpu_losses(it: PageTraining, ids: list[int]) -> tuple[list[float], dict[str, np.ndarray]]:
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


@pytest.mark.parametrize("kind", few(["scratch", "lora"], "lora"))
@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=[] if p == "node-wasm" else SLOW) for p in PLACES]
)
def test_the_page_trains_as_the_cpu_does(
    place: str, kind: str, small_page, tmp_path: Path, browser: Browser
) -> None:
    need()
    folder, model = small_page
    text = "def mean(values):\n    return sum(values) / len(values)\n\n\n" * 30
    given = {"kind": kind, "text": text, "steps": STEPS}
    got = play_at(place, folder, TRAIN, given, browser)
    for name, data in got["files"]:
        (tmp_path / name).write_bytes(bytes(data))
    it = training(model, kind, CHOSEN[kind])
    tokenizer = model.need_tokenizer("")
    losses, weights = cpu_losses(it, tokenizer.encode(text, special=False) + it.about["end"])
    np.testing.assert_allclose(got["losses"], losses, atol=1e-4, rtol=0)
    assert losses[-1] < losses[0] and len(got["written"]) == 8
    if kind == "lora":
        read = peft_files.read(tmp_path, it.trained.config)
        assert read.base == model.folder.name and read.base_digest
        for role, value in read.weights.items():
            np.testing.assert_allclose(value, weights[role], atol=1e-3, rtol=0)
    else:
        shutil.copy(folder / "tokenizer.json", tmp_path)
        made = weft.load(tmp_path, device="cpu")
        ids = model.encode("def ")
        out = made.generate(ids, max_new_tokens=8)
        assert list(out.ids) == got["written"]
