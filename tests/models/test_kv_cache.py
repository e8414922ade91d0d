"""What a decoder keeps of keys and values, in each dtype: against float64 on the same rounded
numbers, prefill against decode bit for bit, and against the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from present import opened
from rows import few

import weft
from weft.core.dtypes import as_dtype
from weft.core.tolerance import compare
from weft.errors import ModelError, UsageError
from weft.models import random_folder
from weft.models.arch import kv_cache
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import PAGE, position_bytes, states
from weft.models.arch.weights import Weights
from weft.models.run.loader import decoder_from
from weft.models.run.model import Decoder
from weft.models.weights.placement import Placement
from weft.models.weights.source import Source
from weft.models.weights.weight_dtypes import wanted_cache

CACHES = ("f32", "f16", "bf16", "int8")
CONFIG = {
    "model_type": "llama", "vocab_size": 120, "hidden_size": 48, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 96,
}  # fmt: skip
IDS = np.random.default_rng(0).integers(0, 120, 70).tolist()


def device(name: str) -> str:
    if name == "vulkan":
        opened("vulkan")
    return name


def rounded(x: np.ndarray, cache: str) -> np.ndarray:
    """float64 of what the cache holds of x."""
    if cache == "int8":
        scale = np.abs(x).max(-1, keepdims=True) / 127.0
        return np.round(x / scale).astype(np.float64) * scale
    narrow = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[cache]
    return x.astype(narrow).astype(np.float64)


def hadamard(depth: int) -> np.ndarray:
    """Sylvester's, orthonormal: the sign of (i, j) is the parity of i & j."""
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(depth)] for i in range(depth)]
    return np.array(signs) / np.sqrt(depth)


@pytest.mark.parametrize("cache,depth", [*((c, 8) for c in CACHES), ("int8", 6)])
def test_attention_is_float64s_on_the_same_numbers(cache: str, depth: int) -> None:
    """Rows of three slots, stored in two steps, some of them padding."""
    config = DecoderConfig("llama", 9, 32, 1, 4, 2, depth, 9, 16, scale=depth**-0.5)
    config = replace(config, kv_dtype=wanted_cache(cache))
    rng = np.random.default_rng(1)
    k, v = (rng.normal(size=(9, 2, depth)).astype(np.float32) * 3 for _ in range(2))
    q = rng.normal(size=(9, 4, depth)).astype(np.float32)
    slot = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2], np.int32)
    pos = np.array([0, 1, 2, 0, 1, 0, 1, 2, 3], np.int32)
    at = (np.arange(2) * 3 + slot[:, None]) * PAGE + pos[:, None]  # a page for each slot
    at = at.astype(np.int32)
    table = np.arange(3, dtype=np.int32)[:, None]
    kept = states(config, 3, PAGE, 3).values()
    held: kv_cache.Cache = tuple(np.zeros(shape, dtype.numpy) for shape, dtype in kept)
    for rows in (slice(0, 4), slice(4, 9)):
        places = np.concatenate((at[rows].reshape(-1), [-1, -1])).astype(np.int32)
        padded = [np.concatenate((x[rows], np.full((1, 2, depth), 7, np.float32))) for x in (k, v)]
        held = kv_cache.store(config, held, places, *padded)
    got = np.asarray(kv_cache.attend(config, held, q, slot, pos, table, 0)).astype(np.float64)
    if cache == "int8" and depth == 8:  # q . k stays, what is rounded does not
        q, k = (x.astype(np.float64) @ hadamard(depth) for x in (q, k))
    keys, values = (rounded(x, cache) for x in (k, v))
    query = rounded(q, "f32" if cache == "int8" else cache)
    for n in range(9):
        seen = [m for m in range(9) if slot[m] == slot[n] and pos[m] <= pos[n]]
        for h in range(4):
            s = keys[seen, h // 2] @ query[n, h] * depth**-0.5
            p = np.exp(s - s.max())
            want = p @ values[seen, h // 2] / p.sum()
            tolerance = {"f32": 1e-6, "int8": 1e-6, "f16": 2e-3, "bf16": 2e-2}[
                cache
            ]  # of the rounded result
            np.testing.assert_allclose(got[n, h], want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "cache,place",
    few(
        itertools.product(CACHES[1:], ("cpu", "vulkan")),
        ("f16", "cpu"),
        ("int8", "cpu"),
        ("int8", "vulkan"),
    ),
)
def test_prefill_is_decode(tmp_path: Path, cache: str, place: str) -> None:
    """Bit for bit, alone and beside another sequence; and close to the oracle's same cache."""
    folder = random_folder(tmp_path, CONFIG, scale=0.3)
    model = weft.load(folder, device=device(place), context=96, max_batch=2, cache=cache)
    runner = model.runner(2)
    whole = runner.prefill(0, IDS).copy()
    runner.prefill(1, IDS[:62])
    for i, token in enumerate(IDS[62:], 62):
        last = runner.rows([token], [1], [i])[0].copy()
    np.testing.assert_array_equal(last, whole)
    both = runner.rows([3, 3], [0, 1], [70, 70])
    np.testing.assert_array_equal(both[0], both[1])
    oracle = weft.load(folder, device="oracle", context=96, cache=cache)
    kind = {"f16": "float16", "bf16": "bfloat16"}.get(cache, "float32")
    outcome = compare(whole, oracle.logits(IDS)[-1], "model", as_dtype(kind))
    assert outcome.ok, outcome.message


def test_a_cache_is_an_option(tmp_path: Path) -> None:
    folder = random_folder(tmp_path, CONFIG, scale=0.3)
    sizes = {}
    for cache in CACHES:
        model = weft.load(folder, device="oracle", cache=cache)
        sizes[cache] = position_bytes(model.config)
        assert ("cache" in model.precision) == (cache != "f32")
    assert sizes == {"f32": 256, "f16": 128, "bf16": 128, "int8": 64 + 16}  # of 1 layer, 2 heads
    plain = weft.load(folder, device="oracle", dtype="float16")
    assert plain.config.kv_dtype.name == "float16"
    with pytest.raises(UsageError, match="float32, float16"):
        weft.load(folder, device="oracle", cache="q4")
    bert = {k: v for k, v in CONFIG.items() if "key_value" not in k and k != "head_dim"}
    encoder = random_folder(tmp_path / "bert", bert | {"model_type": "bert", "type_vocab_size": 2})
    with pytest.raises(UsageError, match="encoder"):
        weft.load(encoder, cache="f16")


@pytest.mark.parametrize("sign", [1, -1])
def test_what_float16_does_not_hold_is_no_answer(tmp_path: Path, sign: int) -> None:
    """A key beyond 65,504 is an error of the model, whatever its query: an infinite score below
    all others would leave a finite answer."""
    folder = random_folder(tmp_path, CONFIG, scale=0.3)
    exact = weft.load(folder, device="oracle", cache="f32")
    weights = dict(exact.weights)
    weights["0.k.w"] = weights["0.k.w"] * np.float32(sign * 2e5)

    def built(cache: str) -> Decoder:
        source = Source(folder, exact.config, exact.tokens)
        return decoder_from(source, Weights.of(weights), None, Placement(context=32, cache=cache))

    assert np.isfinite(built("f32").logits(IDS[:9])).all()
    with pytest.raises(ModelError, match="overflowed"):
        built("f16").logits(IDS[:9])


@pytest.mark.parametrize("depth", [32, 6])
def test_codes_of_odd_rows(depth: int) -> None:
    """Zeros, subnormals, outliers near float16's largest and beyond give codes within 127 and what
    they stand for to half a step; a row that is not finite gives NaN, never a finite number."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(7, 1, depth)).astype(np.float32)
    rows[0], rows[1], rows[2] = 0, 1e-41, rows[2] * np.float32(1e-33)
    rows[3, 0, 1], rows[4, 0, 2] = 65504, 3e38
    rows[5, 0, 3], rows[6, 0, 0] = np.inf, np.nan
    codes, scale = (np.asarray(x).astype(np.float64) for x in kv_cache.quantized(rows))
    assert np.abs(codes[:5]).max() <= 127 and (scale[:3] == 0).all() and (codes[:3] == 0).all()
    near = np.abs(codes * scale - rows)[:5] <= 0.5001 * scale[:5] + 1e-30
    assert near.all() and np.isfinite(scale[:5]).all()
    assert np.isnan(scale[5:]).all()
