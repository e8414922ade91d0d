"""Level "models": whole models of random weights, compiled for the device, against the oracle.

Logits must agree within the table, and under forced decoding (the oracle's tokens are fed to both)
the likeliest token must be the same at every step wherever the oracle's own margin exceeds the
tolerance; a tie within rounding is nobody's mistake.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.backends.base import Device
from weft.conform.harness import check_close, check_equal
from weft.conform.report import Check, Mismatch, Skip
from weft.core import dtypes as dt
from weft.core.tolerance import tolerance
from weft.models.random_weights import random_folder

_LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 120, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 120,
             "n_positions": 64},
    "llama": {"model_type": "llama", **_LLAMA},
    "mistral": {"model_type": "mistral", **_LLAMA, "sliding_window": 7},
    "qwen2": {"model_type": "qwen2", **_LLAMA, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_LLAMA, "head_dim": 32},
    "gemma2": {"model_type": "gemma2", **_LLAMA, "head_dim": 16, "sliding_window": 8,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"model_type": "gemma3_text", **_LLAMA, "head_dim": 16, "sliding_window": 8},
}  # fmt: skip
_BERT = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 120, "max_position_embeddings": 64,
}  # fmt: skip
_STEPS = 12


def _pair(device: Device, config: dict[str, Any], dtype: str) -> tuple[Any, Any]:
    """The model on the device and on the oracle, from one folder of random weights."""
    if not device.supports(dt.as_dtype(dtype)):
        raise Skip(f"{device.info.id} does not store {dtype}")
    with tempfile.TemporaryDirectory() as name:
        folder = random_folder(Path(name) / "model", {**config, "dtype": dtype}, 3, 0.2)
        model = weft.load(folder, device=device, context=64)
        return model, weft.load(folder, device="oracle", context=64)


def _logits(device: Device, family: str, dtype: str) -> float:
    model, oracle = _pair(device, CONFIGS[family], dtype)
    ids = np.random.default_rng(1).integers(0, 120, 21).tolist()
    got, want = model.logits(ids), oracle.logits(ids)
    worst = check_close(got, want, "model", dt.as_dtype(dtype))
    _forced(model, oracle, ids, dtype)
    return worst


def _forced(model: Any, oracle: Any, ids: list[int], dtype: str) -> None:
    """Forced decoding: both see the oracle's tokens; the likeliest next one must agree."""
    tol = tolerance("model", dt.as_dtype(dtype))
    runners = model.runner(), oracle.runner()
    rows = [r.prefill(0, ids) for r in runners]
    for step in range(_STEPS):
        got, want = rows
        best, top = int(want.argmax()), int(got.argmax())
        slack = 2 * (tol.atol + tol.rtol * abs(float(want[best])))
        if top != best and want[best] - want[top] > slack:
            raise Mismatch(f"step {step}: token {top}, the oracle's is {best}")
        rows = [r.decode([best], [0], [len(ids) + step])[0] for r in runners]


def _batch(device: Device) -> float:
    """Sequences give the same tokens alone and in a batch of different lengths."""
    model, _ = _pair(device, CONFIGS["llama"], "float32")
    prompts = [[5, 7, 9], [11], [3, 1, 4, 1, 5, 9, 2, 6], [100, 2]]
    together = model.generate(prompts, max_new_tokens=8)
    for prompt, one in zip(prompts, together):
        check_equal(np.array(model.generate(prompt, max_new_tokens=8).ids), np.array(one.ids))
    return 0.0


def _encoder(device: Device) -> float:
    model, oracle = _pair(device, _BERT, "float32")
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 120, n).tolist() for n in (3, 17, 9)]
    return check_close(model.embed_ids(rows), oracle.embed_ids(rows), "model", dt.float32)


def checks(device: Device) -> Iterator[Check]:
    """Every family in f32; one in the narrow dtypes; batches; an encoder."""
    for family in CONFIGS:
        label = f"{family} float32: logits and forced decoding"
        yield label, partial(_logits, device, family, "float32")
    for dtype in ("float16", "bfloat16"):
        label = f"llama {dtype}: logits and forced decoding"
        yield label, partial(_logits, device, "llama", dtype)
    yield "llama: alone as in a batch", partial(_batch, device)
    yield "bert: embeddings", partial(_encoder, device)
