"""A model traced from transformers' code in a page, against the oracle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import causal_zoo as kit
from forced_kit import CONTEXT, PLACES, VOCAB, agree, asked, byte_tokenizer, play
from page_kit import Browser, export_light, need
from rows import few
from zoo_kit import here

import weft
from weft.core import dtypes as dt
from weft.core.tolerance import tolerance
from weft.models.zoo import ask
from weft.web.export import export_web


@pytest.mark.parametrize("place", few(PLACES, "node-wasm"))
def test_a_traced_model(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Bloom: ALiBi, and attention that the model writes out."""
    need()
    monkeypatch.setattr(ask, "_asked", here)
    kit.written("bloom", tmp_path / "model", vocab_size=VOCAB, eos_token_id=None)
    byte_tokenizer(tmp_path / "model")
    cpu, oracle = (
        weft.load(tmp_path / "model", device=d, context=CONTEXT, max_batch=1)
        for d in ("cpu", "oracle")
    )
    (export_web if place.endswith("webgpu") else export_light)(cpu, tmp_path / "page")
    it = asked(cpu, oracle)
    agree(play(place, tmp_path / "page", it, browser), it, tolerance("model", dt.float32))
