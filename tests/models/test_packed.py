"""Models of packed weights have the bits of the same weights in float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from present import opened
from rows import few

from weft.backends.registry import get
from weft.conform.models import forced
from weft.core.dtypes import DType, bfloat16, float16, float32, int8
from weft.core.packed import Form, Packed, dequantized, packed_codes
from weft.core.tolerance import Tolerance
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import with_tables
from weft.models.arch.weights import Weight, Weights, held
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.eager_runner import EagerRunner
from weft.models.run.placed import Placed
from weft.models.weights.adapter_merge import added
from weft.models.weights.adapters import Adapter
from weft.models.weights.decoder_names import decoder_layout

IDS = list(range(5, 25))
FORMS = {
    "q4_0": Form(4, 32, offset=8),
    "q8_0": Form(8, 32, offset=128),
    "q5_0": Form(5, 32, offset=16),
    "q6_k": Form(6, 16, offset=32, super_group=64),
    "q4_k": Form(4, 32, shift="low", super_group=64),
    "int4, zeros": Form(4, 64, shift="zero"),
    "int8 per channel": Form(8, 64, offset=128),
    "nf4": Form(4, 64, "nf4"),
    "e4m3": Form(8, 32, "e4m3"),
}


def packed(form: Form, n: int, k: int, rng: np.random.Generator) -> Packed:
    """A random matrix of elements of a sensible size."""
    codes = rng.integers(0, 1 << form.bits, (n, k), dtype=np.uint8)
    if form.values == "e4m3":
        codes &= 0xF7  # no NaN
    parts = packed_codes(form, codes)
    size = 1.0 if form.values in ("nf4", "e4m3") else 1 / (1 << form.bits)
    for part, shape in form.shapes(n, k).items():
        if part == "zeros" or (form.super_group and part in ("scales", "lows")):
            parts[part] = rng.integers(1, 16, shape).astype(np.uint8)
        elif part not in parts:
            parts[part] = (rng.standard_normal(shape) * size / 16).astype(np.float16)
    form.check(parts, n, k)
    return Packed(form, {p: parts[p] for p in form.parts})


def model(form: Form, tied: bool, width: int = 64, heads: int = 4) -> tuple[DecoderConfig, dict]:
    config = DecoderConfig("llama", 96, width, 2, heads, 2, 16, 128, 64, tied=tied, scale=0.25)
    rng, weights = np.random.default_rng(0), {}
    for role, spec in decoder_layout(config).weights.items():
        matrix = len(spec.shape) == 2
        weights[role] = (
            packed(form, *spec.shape, rng) if matrix else np.ones(spec.shape, np.float32)
        )
    return config, weights


def widened(weights: dict) -> dict:
    return {k: dequantized(*v) if isinstance(v, Packed) else v for k, v in weights.items()}


def lazily(weights: dict) -> dict[str, Weight]:
    return {role: held(value) for role, value in weights.items()}


def runner(config: DecoderConfig, weights: dict, device):  # type: ignore[no-untyped-def]
    arrays = Weights.of(weights)
    config = replace(config, forms=arrays.forms)
    placed = Placed(with_tables(config, arrays, 32), device)
    kind = EagerRunner if device is None else CompiledRunner
    return kind(config, placed, 32, 1, 1)


@pytest.mark.parametrize("name", few(FORMS, "q4_k", "int4, zeros"))
def test_logits_are_those_of_float32_bit_for_bit(name: str) -> None:
    form = FORMS[name]
    config, weights = model(form, tied=form.bits != 4)
    ours, theirs = (runner(config, w, get("cpu")) for w in (weights, widened(weights)))
    got = ours.prefill(0, IDS)
    np.testing.assert_array_equal(got, theirs.prefill(0, IDS))
    np.testing.assert_array_equal(ours.rows([7], [0], [20]), theirs.rows([7], [0], [20]))
    again = runner(config, weights, get("cpu"))
    again.prefill(0, IDS[:-1])
    np.testing.assert_array_equal(again.rows(IDS[-1:], [0], [19])[0], got)
    oracle = runner(config, weights, None).prefill(0, IDS)
    np.testing.assert_allclose(got, oracle, rtol=1e-3, atol=1e-3)


def test_an_adapter_stands_beside_packed_weights() -> None:
    """And is merged into others."""
    config, weights = model(FORMS["q4_0"], tied=True)
    rng = np.random.default_rng(5)
    low = {
        "0.q.lora_a": rng.standard_normal((4, 64)).astype(np.float32),
        "0.q.lora_b": rng.standard_normal((64, 4)).astype(np.float32) / 8,
    }
    adapter = Adapter(4, 8.0, 0.0, "", low)
    beside, found = added(config, lazily(weights), adapter)
    both = {role: weight.value() for role, weight in found.items()}
    assert beside.adapter_scale == 2.0 and isinstance(both["0.q.w"], Packed)
    got = runner(beside, both, get("cpu")).prefill(0, IDS)
    np.testing.assert_array_equal(
        got, runner(beside, {**widened(weights), **low}, get("cpu")).prefill(0, IDS)
    )
    merged, floats = added(config, lazily(widened(weights)), adapter)
    want = runner(merged, {role: w.value() for role, w in floats.items()}, None).prefill(0, IDS)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert np.abs(got - runner(config, weights, get("cpu")).prefill(0, IDS)).max() > 0.01


@pytest.mark.slow
def test_a_gpu_decodes_as_it_does_in_float32() -> None:
    config, weights = model(FORMS["q4_k"], tied=True)
    vulkan = opened("vulkan")
    ours, theirs = (runner(config, w, vulkan) for w in (weights, widened(weights)))
    np.testing.assert_array_equal(ours.prefill(0, IDS[:9]), theirs.prefill(0, IDS[:9]))
    np.testing.assert_array_equal(ours.rows([7], [0], [9]), theirs.rows([7], [0], [9]))


@pytest.mark.parametrize("name", few(FORMS, "q6_k"))
def test_int8_inputs_have_one_meaning(name: str) -> None:
    """Decode has the bits of prefill, and both are the oracle's graph within rounding."""
    config, weights = model(FORMS[name], tied=name == "q8_0")
    config = replace(config, act_dtype=int8)
    ours = runner(config, weights, get("cpu"))
    got = ours.prefill(0, IDS)
    again = runner(config, weights, get("cpu"))
    again.prefill(0, IDS[:-1])
    np.testing.assert_array_equal(again.rows(IDS[-1:], [0], [19])[0], got)
    oracle = runner(config, weights, None).prefill(0, IDS)
    plain = runner(replace(config, act_dtype=float32), weights, None).prefill(0, IDS)
    whole = FORMS[name].values == "int"
    assert np.array_equal(oracle, plain) != whole
    np.testing.assert_allclose(got, oracle, rtol=2e-2, atol=2e-2 * np.abs(oracle).max())


@pytest.mark.parametrize(
    ("device", "name"),
    few(
        [(d, n) for d in ("cpu", "vulkan") for n in ("q4_0", "q6_k", "q8_0")],
        ("cpu", "q4_0"),
        ("vulkan", "q6_k"),
    ),
)
def test_a_row_that_prefill_selects_early_is_multiplied_as_integers(device: str, name: str) -> None:
    """The last layer's queries are those of one row, whose keys and values are those of all. Sums
    of 512 terms do not have the same bits in floats, where those of 64 do."""
    config, weights = model(FORMS[name], tied=False, width=512, heads=16)
    config = replace(config, act_dtype=int8)
    at_once, by_row = (runner(config, weights, opened(device)) for _ in range(2))
    got = at_once.prefill(0, IDS)
    by_row.prefill(0, IDS[:4])
    rest = by_row.rows(IDS[4:], [0] * (len(IDS) - 4), range(4, len(IDS)))
    np.testing.assert_array_equal(got, rest[-1])


@pytest.mark.parametrize(
    "bits,asked,layers,logits",
    [
        (4, None, 1, 2), (5, None, 1, 2), (6, None, 2, 2), (8, None, 2, 2), (3, None, 1, 2),
        (4, int8, 1, 2), (6, int8, 1, 2), (8, int8, 2, 2),
        (4, float32, 0, 0), (8, float32, 0, 0), (4, bfloat16, 0, 0),
    ],
)  # fmt: skip
def test_planes_by_form(bits: int, asked: DType | None, layers: int, logits: int) -> None:
    """None is the default, as `weft.load` sets it."""
    config = replace(
        model(FORMS["q4_0"], tied=True)[0], act_dtype=asked or float32, act_by_form=asked is None
    )
    form = Form(bits, 32, offset=1)
    assert config.planes_of(form, "1.gate.w") == layers
    assert config.planes_of(form, "head") == config.planes_of(form, "embed") == logits


@pytest.mark.parametrize(
    "name,inputs", few([(n, d) for n in FORMS for d in (float32, int8)], ("q4_k", int8))
)
def test_vulkan_decodes_as_the_cpu(name: str, inputs: DType) -> None:
    """Every token the same, whatever its margin; integers of inputs by the kernel of few rows and
    by that of many."""
    config, weights = model(FORMS[name], tied=True)
    config = replace(config, act_dtype=inputs)
    ours, theirs = (runner(config, weights, opened(d)) for d in ("vulkan", "cpu"))
    forced(ours, theirs, IDS, Tolerance(0, 0, "every token the same"))


@pytest.mark.parametrize(
    "cache,inputs,name",
    few(
        [
            (c, d, n)
            for c in (float32, float16, bfloat16, int8)
            for d in (float32, int8)
            for n in ("cpu", "vulkan")
        ],
        (int8, float32, "cpu"),
        (float16, int8, "vulkan"),
    ),
)
def test_outliers_in_a_cache_are_right_or_not_finite(
    cache: DType, inputs: DType, name: str
) -> None:
    """Values up to 60,000, which float16 holds, and 16 times as large: the logits are those of a
    float32 cache on the oracle within what the cache rounds, or none is a number."""
    for most in (60000.0, 960000.0):
        config, weights = model(FORMS["q8_0"], tied=True)
        for i in range(2):
            form, parts = weights[f"{i}.v.w"]
            size = np.abs(dequantized(form, parts)).sum(1).max()
            larger = parts["scales"].astype(np.float32) * np.float32(most / size)
            weights[f"{i}.v.w"] = Packed(form, {**parts, "scales": larger})
        config = replace(config, kv_dtype=cache)
        ours = runner(replace(config, act_dtype=inputs), weights, opened(name))
        ours.prefill(0, IDS)
        (got,) = ours.rows([7], [0], [20])
        oracle = runner(replace(config, kv_dtype=float32), weights, None)
        oracle.prefill(0, IDS)
        (want,) = oracle.rows([7], [0], [20])
        if np.isfinite(got).any():
            np.testing.assert_allclose(got, want, rtol=0.05, atol=0.05 * np.abs(want).max())
        else:
            assert cache is float16 and most > 65504
