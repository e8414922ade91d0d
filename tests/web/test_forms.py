"""Every family of decoders and every form of weights that a page can be made of, by forced decoding
against the NumPy oracle, in Node and in Chromium, on WebAssembly and on WebGPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced_kit import CONTEXT, PLACES, VOCAB, agree, asked, byte_tokenizer, packed_pair, play
from page_kit import Browser, export_light, need
from stepping import scores

import weft
from weft.backends.interp import InterpDevice
from weft.conform.models import CONFIGS
from weft.conform.packed import FORMS
from weft.core import dtypes as dt
from weft.core.packed import Form
from weft.core.tolerance import tolerance
from weft.models.weights.random_weights import random_folder
from weft.web import targets
from weft.web.export import export_web

FAST = "gemma4"  # of the families, on WebAssembly in Node
WIDE = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
PACKED = FORMS | {"Q5_K": Form(5, 32, shift="low", super_group=256)}
SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


def case(place: str, name: str, fast: bool) -> Any:
    return pytest.param(place, name, marks=[] if fast else SLOW, id=f"{place}-{name}")


@pytest.mark.parametrize(
    ("place", "family"),
    [case(p, f, p == "node-wasm" and f == FAST) for p in PLACES for f in CONFIGS],
)
def test_families(tmp_path: Path, browser: Browser, place: str, family: str) -> None:
    need()
    config = {**CONFIGS[family], "vocab_size": VOCAB}
    folder = random_folder(tmp_path / "model", config, 3, 0.2)
    byte_tokenizer(folder)
    cpu, oracle = (
        weft.load(folder, device=d, context=CONTEXT, max_batch=1) for d in ("cpu", "oracle")
    )
    (export_light if place == "node-wasm" else export_web)(cpu, tmp_path / "page")
    it = asked(cpu, oracle)
    agree(play(place, tmp_path / "page", it, browser), it, tolerance("model", dt.float32))


@pytest.mark.parametrize(
    ("place", "form"),
    [
        case(p, f"{f}-{d}", (p, f, d) == ("node-wasm", "Q6_K", "int8"))
        for p in PLACES
        for f in PACKED
        for d in ("float32", "int8")
    ],
)
def test_packed_weights(tmp_path: Path, browser: Browser, place: str, form: str) -> None:
    need()
    form, _, dtype = form.rpartition("-")
    inputs = dt.as_dtype(dtype)
    cpu, oracle = packed_pair(tmp_path / "model", WIDE, PACKED[form], inputs)
    (export_light if place == "node-wasm" else export_web)(cpu, tmp_path / "page")
    it = asked(cpu, oracle)
    tol = tolerance("model", dt.float16 if inputs is dt.int8 else dt.float32)
    # of integers, a code that one side rounds otherwise may turn a close choice of token
    agree(play(place, tmp_path / "page", it, browser), it, tol, texts=inputs is dt.float32)


def test_rows_that_nobody_asked_for_hold_junk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short prompt in the interpreter: a product of integers reads the rows after it too, whose
    codes may be -128, which it promises not to multiply. What comes of them is dropped."""
    monkeypatch.setattr("weft.backends.interp.POISON", 0x80)
    device = InterpDevice(targets.WEBGPU)
    played, oracle = packed_pair(tmp_path / "model", WIDE, PACKED["Q6_K"], dt.int8, device)
    got, want = (scores(model.runner(), [5, 6, 7]) for model in (played, oracle))
    tol = tolerance("model", dt.float16)
    np.testing.assert_allclose(got, want, atol=tol.atol, rtol=tol.rtol)
