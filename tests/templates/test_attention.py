"""Attention, whole and over a cache: one contract, a row per tier of execution (`attention_kit`).
That rows do not depend on each other, and in which order sums are taken: `test_attention_order`."""

from __future__ import annotations

import functools

import attention_kit as att
import dotkit as kit
import numpy as np
import pytest
from attention_kit import BF16, F16, F32, QUICK, TIERS, Tier, cached, each_tier, operands, whole
from dotkit import f, source
from harness import random, trace
from rows import by_turns, few

from weft import ops
from weft.compile.passes import compile_graph
from weft.core.caps import PRESETS, Caps
from weft.core.dtypes import DType
from weft.graph.ir import toposort
from weft.kernel.tiles import has_tiles
from weft.ops.evaluate import evaluate
from weft.program.session import Session
from weft.templates import registry
from weft.templates.attention.matrix_units import StorageNeed, plan_of
from weft.templates.group import Group
from weft.templates.registry import claimed_by
from weft.templates.view import OperandView
from weft.transform.split_for_gpu import split_decoding

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
CPU, CUDA = TIERS["one thread"], TIERS["units, wave 32"]
SLOTS = [0] * 7 + [2] * 9 + [0] * 3 + [1] * 21  # several in one block, one that comes back
PLACES = [5, 90, 3, 3, 17, 64, 63, *range(9), 1, 2, 95, *range(50, 71)]  # in no order


@each_tier()
def test_whole_sequences(tier: Tier) -> None:
    d, dtype = tier.device, tier.dtype
    whole(d, 1, 2, 2, 37, 37, 64, dtype, causal=False)
    whole(d, 1, 2, 1, 40, 100, 48, dtype, packed=True)
    whole(d, 1, 2, 1, 70, 70, 24, dtype)
    whole(d, 1, 4, 2, 9, 11, 10, dtype, packed="turned")


@each_tier()
def test_what_rows_see(tier: Tier) -> None:
    d, dtype = tier.device, tier.dtype
    whole(d, 1, 2, 1, 75, 100, 16, dtype, causal=False, window=30, softcap=0.5)
    whole(d, 1, 2, 1, 80, 80, 16, dtype, window=9)
    got = whole(d, 3, 2, 1, 35, 70, 32, dtype, lengths=[70, 0, 33], packed=True)
    assert (got[1] == 0).all()
    got = whole(d, 1, 1, 1, 70, 5, 32, dtype)
    assert (got[:, :, :65] == 0).all()


@each_tier()
def test_caches(tier: Tier) -> None:
    """A step of few rows, a block of many, in any order, fewer at run time."""
    d, dtype = tier.device, tier.dtype
    for h, g in ((4, 2), (7, 1)):
        cached(d, [0, 2, 1], [0, 95, 40], h, g, dtype=dtype, flat=True)
    cached(d, [0, 1], [50, 13], d=24, softcap=0.7, dtype=dtype)
    cached(d, [1] * 20, [*range(20, 40)], window=6, d=20, dtype=dtype, flat=True)
    cached(d, SLOTS, PLACES, d=16, dtype=dtype)
    cached(d, [0] * 40, [*range(10, 50)], 2, 2, 64, 16, slots=1, dtype=dtype, wanted=25)


@each_tier(QUICK - {"threads alone, real"})
def test_latents(tier: Tier) -> None:
    """One plane for all heads, whose wide rows are keys and values."""
    d, dtype = tier.device, tier.dtype
    cached(d, [0, 1], [69, 13], 6, 1, 70, 576, slots=2, dtype=dtype, one=True)
    cached(d, [0] * 18, [*range(50, 68)], 3, 1, 70, 160, slots=1, dtype=dtype, one=True)


@each_tier()
def test_nan_stays_in_its_row(tier: Tier) -> None:
    ins = operands((1, 1, 40, 16), tier.dtype)
    arrays = [kit.fill(x) for x in ins]
    arrays[0][0, 0, 7, 3] = np.nan
    out = f.call("attention", *ins, causal=True, **att.PLAIN)
    (got,) = kit.play(tier.device, "attention", ins, [out], arrays)
    rows = got[0, 0].astype(np.float32)
    assert not np.isfinite(rows[7]).any() and np.isfinite(np.delete(rows, 7, 0)).all()


# -- more sizes on this CPU


@pytest.mark.parametrize(
    "d,causal,dtype",
    by_turns(
        [
            *((128, False), (80, True), (20, False), (7, True)),
            *(slow(*c) for c in ((128, True), (80, False), (20, True), (7, False))),
        ],
        [F32, F16, BF16],
    ),
    ids=repr,
)
def test_depths(d: int, dtype: DType, causal: bool) -> None:
    whole(CPU.device, 1, 2, 2, 37, 37, d, dtype, causal=causal, packed=True)
    cached(CPU.device, [0, 2], [61, 5], d=d, dtype=dtype)
    cached(CPU.device, [1] * 20, [*range(30, 50)], d=d, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("t,s", [(1, 1), (5, 200), (200, 5), (130, 130), (64, 64), (1, 77)])
def test_lengths_of_sides(t: int, s: int, causal: bool) -> None:
    whole(CPU.device, 1, 2, 1, t, s, 32, causal=causal)


@pytest.mark.parametrize("window", few([1, 5, 70, 200], 1, 70))
def test_windows(window: int) -> None:
    for causal in (False, True):
        whole(CPU.device, 1, 2, 1, 150, 150, 16, causal=causal, window=window)
    cached(CPU.device, [0, 1], [299, 130], length=301, window=window)
    cached(CPU.device, [1] * 40, [*range(250, 290)], length=300, window=window)


def test_a_sequence_does_not_see_its_neighbours() -> None:
    ins = operands((3, 2, 70, 32), F32)
    arrays = [kit.fill(x) for x in ins]
    call = f.call("attention", *ins, causal=True, **att.PLAIN)
    (every,) = kit.play(CPU.device, "attention", ins, [call], arrays)
    ins = operands((1, 2, 70, 32), F32)
    call = f.call("attention", *ins, causal=True, **att.PLAIN)
    for i in range(3):
        own = [a[i : i + 1] for a in arrays]
        np.testing.assert_array_equal(
            kit.play(CPU.device, "attention", ins, [call], own)[0][0], every[i]
        )


# -- which kernel


def kernel_of(caps: str, dtype: DType, t: int, d: int = 64):  # type: ignore[no-untyped-def]
    ins = operands((1, 2, t, d), dtype)
    out = f.call("attention", *ins, causal=True, **att.PLAIN)
    return registry.get("attention")(Group("attention", ins, (out,), None), PRESETS[caps], {})


def test_matrix_units_are_chosen_by_dtype_and_depth_never_by_rows() -> None:
    for t in (1, 70, 500):
        assert has_tiles(kernel_of("cuda", BF16, t).body)
        assert has_tiles(kernel_of("cpu-amx", BF16, t).body)
    for caps, dtype, d in (
        ("cpu-amx", F32, 64), ("cpu-avx512", BF16, 64),
        ("cuda", F32, 64), ("cuda", BF16, 20), ("webgpu", BF16, 64),
    ):  # fmt: skip
        assert not has_tiles(kernel_of(caps, dtype, 70, d).body)
    views = [OperandView(source("x", (1,), BF16), 0, (64, 1))] * 3
    plan = plan_of("attention", BF16, 128, views, PRESETS["cuda"], {})
    assert plan is not None and plan.shared_bytes(StorageNeed()) <= PRESETS["cuda"].shared_bytes
    turned = [OperandView(views[0].node, 0, (1, 64))] * 3
    assert plan_of("attention", BF16, 64, turned, PRESETS["cuda"], {}) is None


@pytest.mark.parametrize("shape", [(32, 4, 64), (32, 2, 32), (16, 4, 32), (16, 2, 32)], ids=repr)
def test_shapes_of_blocks(shape: tuple[int, int, int]) -> None:
    whole(CUDA.device, 1, 2, 1, 90, 90, 32, BF16, config={"shape": shape})


def test_candidates_add_up_alike() -> None:
    """What tuning may choose from changes how many rows a group takes, not a bit of a row."""
    ins, device = operands((1, 2, 90, 32), BF16), Tier("hip-wave64").device
    arrays = [kit.fill(x) for x in ins]
    out = f.call("attention", *ins, causal=True, **att.PLAIN)
    group = Group("attention", ins, (out,), None, name="k")
    found = registry.candidates(group, device.caps)
    assert found
    first, *others = (
        kit.play(device, "attention", ins, [out], arrays, config=config)[0]
        for config in ({}, *found)
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


# -- a decoding step in parts, on GPUs


def _long(length: int, n: int = 3):  # type: ignore[no-untyped-def]
    """A decoding step over a long cache as a Graph, and what goes into it."""
    shapes = [(n, 4, 16), (2, 2, length, 16), (2, 2, length, 16)]
    arrays = [random(BF16, s, i, 1.0) for i, s in enumerate(shapes)]
    slot, pos = np.array([0, 1, 1], np.int32), np.array([length - 1, 700, 3], np.int32)
    arrays += [slot[:n], pos[:n]]
    return trace(lambda *xs: ops.call("cached_attention", *xs, **att.PLAIN), arrays), arrays


def play(device, program, arrays) -> np.ndarray:  # type: ignore[no-untyped-def]
    session = Session(program, device)
    return np.asarray(session.run({f"x{i}": a for i, a in enumerate(arrays)})[0])


def _claims(caps: Caps):  # type: ignore[no-untyped-def]
    return lambda node: claimed_by(node, caps) is not None


@pytest.mark.parametrize("length", [1300, pytest.param(5000, marks=pytest.mark.slow)])
def test_parts_mean_the_same(length: int) -> None:
    """The bodies of both composites, and their kernels, against the whole; through both kernels a
    row has the same bits alone and beside others."""
    graph, arrays = _long(length)
    (want,) = evaluate(graph, arrays)
    parted = split_decoding(graph, _claims(PRESETS["cuda"]))
    names = [n.attrs["name"] for n in toposort(parted.outputs) if n.op == "call"]
    assert names == ["cached_attention_parts", "attention_merge"]
    kit.close(np.asarray(evaluate(parted, arrays)[0]), np.asarray(want), BF16, 2)
    one, _ = _long(length, n=1)
    for target in ("cuda", "hip-wave64", "hip-wave32"):
        device = Tier(target).device
        program = compile_graph(graph, device.caps)
        assert len(program.kernels) == 2
        got = play(device, program, arrays)
        kit.close(got, np.asarray(want), BF16, 2)
        own = [a[1:2] if k in (0, 3, 4) else a for k, a in enumerate(arrays)]
        alone = play(device, compile_graph(one, device.caps), own)
        np.testing.assert_array_equal(alone[0], got[1])


def test_where_there_are_no_parts() -> None:
    for length, target in ((1000, "cuda"), (1300, "cpu-avx512")):
        parted = split_decoding(_long(length)[0], _claims(PRESETS[target]))
        assert [n.op for n in toposort(parted.outputs)].count("call") == 1
