"""A tiny model on the checking interpreter: every kernel that it needs, shaped for other hardware,
runs without an access out of bounds, a read of unwritten memory, a race or a divergent barrier."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rows import few

import weft
from weft.models import random_folder

LLAMA = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
}
GEMMA = {**LLAMA, "model_type": "gemma2", "head_dim": 8, "sliding_window": 3}
BERT = {**LLAMA, "model_type": "bert", "type_vocab_size": 2}
PRESETS = ["cpu-avx512", "webgpu", "cuda", "hip-wave64"]


@pytest.mark.parametrize(
    "config,preset",
    few(itertools.product([LLAMA, GPT2, GEMMA], PRESETS),
        (LLAMA, "cpu-avx512"), (LLAMA, "hip-wave64"), (GPT2, "cuda"), (GEMMA, "webgpu")),
    ids=lambda c: c["model_type"] if isinstance(c, dict) else c,
)  # fmt: skip
def test_decoders(tmp_path: Path, preset: str, config: dict) -> None:
    folder = random_folder(tmp_path, config, scale=0.3)
    oracle = weft.load(folder, device="oracle", max_batch=2)
    model = weft.load(folder, device=f"interp:{preset}", max_batch=2)
    for prompt in ([1, 2, 3, 4, 5], [[1, 2, 3], [5]]):
        want = oracle.generate(prompt, max_new_tokens=3)
        assert model.generate(prompt, max_new_tokens=3) == want


@pytest.mark.parametrize("preset", few(PRESETS, "hip-wave64"))
def test_a_cache_of_int8(tmp_path: Path, preset: str) -> None:
    folder = random_folder(tmp_path, LLAMA, scale=0.3)
    devices = ("oracle", f"interp:{preset}")
    oracle, model = (weft.load(folder, device=d, cache="int8", max_batch=2) for d in devices)
    for prompt in ([1, 2, 3, 4, 5], [[1, 2, 3], [5]]):
        want = oracle.generate(prompt, max_new_tokens=3)
        assert model.generate(prompt, max_new_tokens=3) == want


@pytest.mark.parametrize("preset", ["cpu-avx512", "webgpu", "hip-wave64"])
def test_encoder(tmp_path: Path, preset: str) -> None:
    folder = random_folder(tmp_path, BERT, scale=0.3)
    rows = [[1, 2, 3], [4, 5, 6, 7, 8]]
    got = weft.load(folder, device=f"interp:{preset}").embed_ids(rows)
    want = weft.load(folder, device="oracle").embed_ids(rows)
    assert abs(got - want).max() < 1e-5
