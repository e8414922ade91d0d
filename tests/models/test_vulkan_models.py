"""Models on a Vulkan device (a software one will do), against transformers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import DECODERS, ENCODERS, VOCAB, reference_logits, write_model
from present import opened

import weft
from weft.core.dtypes import as_dtype
from weft.core.tolerance import compare

opened("vulkan")

IDS = np.random.default_rng(0).integers(0, VOCAB, 24)


DTYPES = ("float32", "float16", "bfloat16")
# Every dtype and kind of layer; the rest of the matrix is slow.
QUICK = {
    ("gpt2", "float16"), ("llama3", "bfloat16"), ("gemma3", "float32"),
    *((name, "float32") for name in ("bert", "roberta", "modernbert", "deberta-v3", "t5")),
    ("bert", "float16"), ("distilbert", "bfloat16"),
}  # fmt: skip


def cases(names: Iterable[str]) -> list[Any]:
    """(name, dtype) of all."""
    every = itertools.product(names, DTYPES)
    return [pytest.param(*c, marks=[] if c in QUICK else pytest.mark.slow) for c in every]


@pytest.mark.parametrize(("name", "dtype"), cases(DECODERS))
def test_forced_decode_agrees_on_every_token(tmp_path: Path, name: str, dtype: str) -> None:
    """Prefill of a few tokens, then the true tokens one by one: same top token at each step (of
    half checkpoints, wherever the best two are further apart than rounding)."""
    reference = write_model(name, tmp_path, dtype).float()
    want = reference_logits(reference, IDS)[7:]
    runner = weft.load(tmp_path, device="vulkan", context=32).runner()
    steps = [runner.prefill(0, IDS[:8].tolist()).copy()]
    steps += [runner.rows([int(IDS[t])], [0], [t])[0].copy() for t in range(8, len(IDS))]
    got = np.stack(steps)
    outcome = compare(got, want, "model", as_dtype(dtype))
    assert outcome.ok, outcome.message
    best = np.sort(want, 1)
    close = best[:, -1] - best[:, -2] < (0 if dtype == "float32" else 2 * outcome.max_abs)
    assert close.mean() < 0.5
    np.testing.assert_array_equal(got.argmax(1)[~close], want.argmax(1)[~close])


@pytest.mark.parametrize(("name", "dtype"), cases(ENCODERS))
def test_encoders(tmp_path: Path, name: str, dtype: str) -> None:
    import torch

    reference = write_model(name, tmp_path, dtype).float()
    rows = [np.random.default_rng(1).integers(2, VOCAB, n).tolist() for n in (5, 1, 9)]
    got = weft.load(tmp_path, device="vulkan").embed_ids(rows)
    with torch.no_grad():
        want = [reference(torch.tensor([r])).last_hidden_state[0].mean(0).numpy() for r in rows]
    outcome = compare(got, np.stack(want), "model", as_dtype(dtype))
    assert outcome.ok, outcome.message


def test_weights_beyond_a_buffer(tmp_path: Path) -> None:
    """A tied embedding in several buffers gives what one buffer gives, token by token."""
    from weft.backends.wgpu import WgpuDevice

    reference = write_model("gemma3", tmp_path)
    small = WgpuDevice("vulkan", 0, max_buffer_bytes=1 << 14, max_binding_bytes=1 << 14)
    model = weft.load(tmp_path, device=small, context=32)
    runner = model.runner()
    got = np.stack(
        [runner.prefill(0, IDS[:22].tolist()), runner.rows([int(IDS[22])], [0], [22])[0]]
    )
    outcome = compare(got, reference_logits(reference, IDS)[21:23], "model")
    assert outcome.ok, outcome.message
    held = runner.weight_buffers
    assert sum(name.startswith("embed[") for name in held) == 3
