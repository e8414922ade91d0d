"""Layers that keep only their window: the bits of a cache of everything, in less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import few

import weft
from weft.conform.models import CONFIGS
from weft.models import random_folder
from weft.models.arch.inputs import PAGE, slides
from weft.models.run import loader

CONTEXT = 2560
IDS = np.random.default_rng(3).integers(0, 90, 2400).tolist()


def folder(tmp_path: Path, family: str, window: int) -> Path:
    sizes = {"max_position_embeddings": CONTEXT, "sliding_window": window}
    return random_folder(tmp_path / family, {**CONFIGS[family], **sizes}, scale=0.3)


def pair(
    monkeypatch: pytest.MonkeyPatch, path: Path, cache: str = "float32", **more: Any
) -> tuple[Any, Any]:
    """The model, and one whose layers keep all keys."""
    model = weft.load(path, device="cpu", context=CONTEXT, cache=cache, **more)
    with monkeypatch.context() as patch:
        patch.setattr(loader, "kept_window", lambda c, context: 0)
        whole = weft.load(path, device="cpu", context=CONTEXT, cache=cache, **more)
    assert whole.runner().windows is None
    return model, whole


@pytest.mark.parametrize(
    "family,window,cache",
    few(
        [
            ("gemma3", 20, "float32"),
            ("mistral", 64, "int8"),
            ("gpt_oss", 130, "float16"),
            ("mistral", 700, "float32"),
            ("gemma4", 65, "float32"),
        ],
        ("gemma3", 20, "float32"),
    ),
)
def test_bits_are_those_of_a_whole_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, window: int, cache: str
) -> None:
    """Prompts in chunks, logits, prefixes found again, batches, drafts."""
    model, whole = pair(monkeypatch, folder(tmp_path, family, window), cache)
    assert model.config.kv_window == window
    np.testing.assert_array_equal(model.logits(IDS[:1500]), whole.logits(IDS[:1500]))
    again = IDS[:1800] + IDS[:9]  # repeats itself, so that drafts are tried
    for draft, reused in ((False, 0), (True, len(again) - 1)):
        got = model.generate(again, 80, draft=draft)
        assert got.ids == whole.generate(again, 80, draft=draft).ids
        assert got.reused == reused
        model.engine().check()
    prompts = [IDS[:1800], [*IDS[:1300], 5], IDS[:70]]
    got, want = (m.generate(prompts, 70) for m in (model, whole))
    assert [g.ids for g in got] == [w.ids for w in want]
    assert [g.reused for g in got] == [w.reused for w in want]
    model.engine(3).check()


def test_preempted_sequences_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few pages for all: twins go to the host and back."""
    from weft.engine.engine import Engine
    from weft.engine.job import Job

    model, whole = pair(monkeypatch, folder(tmp_path, "gemma3", 100))
    prompts = [IDS[: 1000 + 37 * i] for i in range(3)]
    prompts = [[i, *ids] for i, ids in enumerate(prompts)]
    engine = Engine(model.new_runner(3, 52), model.config.vocab, clock=lambda: 0.0)
    outs: list[list[int]] = [[] for _ in prompts]
    for ids, out in zip(prompts, outs):
        job = Job(tuple(ids), 400, decoded=False, drafts=False)
        engine.submit(job, lambda o, out=out: out.extend(t.id for t in o.tokens))  # type: ignore
    while engine.step():
        engine.check()
    assert engine.stats.preempted > 0
    for ids, out in zip(prompts, outs):
        assert tuple(out) == whole.generate(ids, 400).ids


def test_a_runner_by_itself_and_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, whole = pair(monkeypatch, folder(tmp_path, "mistral", 100))
    runner, plain = model.new_runner(2, 80), whole.new_runner(2, 80)
    np.testing.assert_array_equal(runner.prefill(1, IDS), plain.prefill(1, IDS))
    rows = [3, 4], [1, 0], [len(IDS), 0]
    np.testing.assert_array_equal(runner.rows(*rows), plain.rows(*rows))
    assert runner.windows is not None and runner.windows.count == 2 * 12 + 2
    assert model.cache_bytes(2, 80) * 80 == whole.cache_bytes(2, 80) * runner.windows.count
    held = sum(x.nbytes for x in runner.read_pages(range(26), True).values())
    assert held == model.cache_bytes(2, 80) and not runner.read_pages([0])


def test_a_short_context_has_one_table(tmp_path: Path) -> None:
    path = folder(tmp_path, "gemma3", 100)
    model = weft.load(path, device="cpu", context=14 * PAGE)
    assert model.config.kv_window == 0 and model.runner().windows is None


def test_a_compiled_file_keeps_its_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.models.run.saved import save

    model, whole = pair(monkeypatch, folder(tmp_path, "gemma3", 100), max_batch=1)
    path = tmp_path / "model.weft"
    save(model, path, "cpu", model.device.caps, {}, False)
    saved = weft.load(path, device="cpu")
    assert any(slides(saved.config, i) for i in saved.config.caches)
    assert saved.generate(IDS[:1700], 30).ids == whole.generate(IDS[:1700], 30).ids
