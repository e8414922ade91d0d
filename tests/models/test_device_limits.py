"""A model on a device that cannot hold it: named errors before anything runs. And the spinner."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from weft import ops
from weft.backends.interp import InterpDevice
from weft.compile import compile_graph
from weft.core.caps import PRESETS
from weft.core.dtypes import float16, float32
from weft.core.errors import DeviceError, DTypeError, LimitError
from weft.graph.ir import Graph
from weft.host import progress
from weft.models import random_folder
from weft.models.run.fit import too_large
from weft.ops import functions as f

GPT2 = {"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 |= {"n_positions": 64}


def test_device_without_f16(tmp_path: Path) -> None:
    folder = random_folder(tmp_path, {**GPT2, "dtype": "float16"})
    caps = PRESETS["webgpu"]
    device = InterpDevice(replace(caps, dtypes=caps.dtypes - {float16}))
    with pytest.raises(DTypeError, match=r"float16 \(weight 'embed'\); load with dtype='float32'"):
        weft.load(folder, device=device)
    assert weft.load(folder, device=device, dtype="float32").generate([1], max_new_tokens=1).ids


def test_buffers_beyond_the_device(tmp_path: Path) -> None:
    folder = random_folder(tmp_path, GPT2)
    device = InterpDevice(replace(PRESETS["webgpu"], max_buffer_bytes=2000))
    with pytest.raises(LimitError, match="2,000"):
        weft.load(folder, device=device).generate([1])


def test_weights_beyond_a_buffer_are_cut_by_rows(tmp_path: Path) -> None:
    """Embedding (tied), projections: more bytes than a buffer may have, the same answers."""
    from weft.core.tolerance import compare

    folder = random_folder(tmp_path, {**GPT2, "vocab_size": 1000})
    device = InterpDevice(
        replace(PRESETS["webgpu"], max_buffer_bytes=1 << 14, max_binding_bytes=1 << 13)
    )
    model = weft.load(folder, device=device, context=16)
    want = weft.load(folder, device="oracle", context=16)
    ids = [1, 999, 500, 255]
    outcome = compare(model.runner().prefill(0, ids), want.logits(ids)[-1], "model")
    assert outcome.ok, outcome.message
    got = model.generate([1, 999], max_new_tokens=6)
    assert got.ids == want.generate([1, 999], max_new_tokens=6).ids
    buffers = {name: held.nbytes for name, held in model.runner().weight_buffers.items()
               if name.startswith("embed[")}  # fmt: skip
    assert len(buffers) == 8 and max(buffers.values()) <= 1 << 13


def test_unknown_device(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="unknown device"):
        weft.load(random_folder(tmp_path, GPT2), device="abacus")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_spinner_shows_on_terminals_only(monkeypatch, terminal: bool) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("loading the loom"):
        time.sleep(0.5)
    assert ("loading the loom" in screen.getvalue()) == terminal


def test_what_fits_is_not_called_too_large() -> None:
    """Where something else lacks memory, as a compiler may, a shorter context does not help."""
    x = ops.input_node("w", (4, 4), float32, "weight")
    program = compile_graph(Graph((x,), (f.exp(x),)), PRESETS["cpu-avx2"])
    assert "something else lacked memory" in too_large(program, 64, 1, 1 << 20)
    assert "takes less" in too_large(program, 64, 1, 32)
