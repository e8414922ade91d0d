"""The templates of attention's derivative: one contract, a row per tier of execution."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dotkit as kit
import numpy as np
import pytest
from attention_kit import (
    BF16,
    F16,
    F32,
    PLAIN,
    QUICK,
    TIERS,
    Tier,
    cached,
    gradients,
    operands,
    whole,
)
from dotkit import f, source
from harness import targets
from hypothesis import given, settings, strategies as st
from rows import by_turns, covering
from test_attention import PLACES, SLOTS

from weft.backends.cpu import CpuDevice
from weft.backends.llvm import gpu_target, offline, ptxas
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.dtypes import DType
from weft.kernel.ir import Kernel
from weft.kernel.tiles import has_tiles
from weft.ops import input_node
from weft.templates import registry
from weft.templates.group import Group
from weft.templates.registry import COMPOSITES, claimed_by

sys.path.append(str(Path(__file__).parent.parent / "backends"))
# batch, heads, kv heads, T, S, D, then what differs from plain attention
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "causal": ((2, 4, 2, 40, 40, 16), {"causal": True}),
    "grouped": ((1, 4, 1, 9, 9, 8), {"causal": True}),
    "long": ((1, 1, 1, 5, 150, 12), {"causal": True}),
    "short": ((1, 1, 1, 70, 9, 4), {"causal": True}),
    "window": ((1, 2, 1, 80, 80, 8), {"causal": True, "window": 7}),
    "near": ((1, 1, 1, 70, 75, 8), {"window": 5}),
    "softcap": ((1, 2, 2, 20, 20, 7), {"softcap": 0.7, "causal": True}),
    "padding": ((3, 2, 1, 20, 30, 8), {"lengths": [30, 0, 11], "causal": True}),
    "full": ((2, 2, 2, 33, 66, 20), {"lengths": [66, 64]}),
    "chunks": ((1, 2, 1, 270, 260, 4), {"causal": True}),
}
CPU = TIERS["one thread"]
RUNS = [
    pytest.param(tier, parts, id=f"{name}, {'in parts' if parts else 'at once'}", marks=marks)
    for name, tier in TIERS.items()
    for parts in (True, False)
    if parts or (tier.target.startswith("cpu") and tier.dtype == F32)
    for marks in [[] if name in QUICK else [pytest.mark.slow]]
]
each_run = pytest.mark.parametrize("tier,parts", RUNS)


@pytest.mark.parametrize(
    "tier,parts,name", by_turns(RUNS, ["grouped", "window", "padding", "softcap", "near"], 2)
)
def test_gradients(tier: Tier, parts: bool, name: str) -> None:
    """Against PyTorch, whatever rows see."""
    (b, h, g, t, s, d), params = CASES[name]
    if tier.target not in ("cpu", "vulkan"):
        t, s = min(t, 40), min(s, 45)
    d = d if tier.dtype == F32 else -(-d // 8) * 8  # what units take
    gradients(tier.device, b, h, g, t, s, d, tier.dtype, parts=parts, **params)


@each_run
def test_places_in_memory(tier: Tier, parts: bool) -> None:
    """Heads side by side, components far apart, f16, depths that fill no vector."""
    d, more = tier.device, {"parts": parts, "causal": True}
    gradients(d, 1, 2, 1, 7, 9, 5, tier.dtype, packed="turned", **more)
    gradients(d, 1, 1, 1, 5, 6, 24, F16, packed=True, **more)


@each_run
def test_the_same_bits_every_time_and_nan(tier: Tier, parts: bool) -> None:
    device = tier.device
    for group in calls((1, 1, 20, 16), tier.dtype, parts):
        arrays = [kit.fill(x) for x in group.inputs]
        inputs, outputs = list(group.inputs), list(group.outputs)
        runs = [kit.play(device, group.kind, inputs, outputs, arrays) for _ in range(2)]
        for a, b in zip(*runs, strict=True):
            np.testing.assert_array_equal(a, b)
        for i in range(len(arrays)):
            poisoned = [a.copy() for a in arrays]
            poisoned[i].reshape(-1)[5] = np.nan
            got = kit.play(device, group.kind, inputs, outputs, poisoned)
            assert any(np.isnan(x.astype(np.float32)).any() for x in got)


def same_bits_on(parts: bool) -> list[Any]:
    """This CPU as if it had vectors of 16, 8 and 4 lanes, and groups of threads."""
    found: list[Any] = []
    for name in ("cpu-avx512", "cpu-avx2", "cpu-neon"):
        device = CpuDevice()
        device.caps = replace(PRESETS[name], features=device.caps.features)
        found.append(device)
    return found + [Tier("cuda").device] * parts


@pytest.mark.parametrize("shape,parts", covering([(1, 1, 40, 20), (1, 1, 260, 4)], [False, True]))
def test_the_same_bits_everywhere(parts, shape) -> None:  # type: ignore[no-untyped-def]
    """f32 gradients do not depend on lanes or on how many threads share the work: 260 keys are
    more than one chain."""
    for group in calls(shape, F32, parts):
        arrays = [kit.fill(x) for x in group.inputs]
        inputs, outputs = list(group.inputs), list(group.outputs)
        first, *others = (
            kit.play(device, group.kind, inputs, outputs, arrays) for device in same_bits_on(parts)
        )
        for other in others:
            for a, b in zip(first, other, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=group.name)


def calls(shape: tuple[int, ...], dtype: DType, parts: bool) -> list[Group]:
    """The composites over causal operands of one shape, a group each."""
    ins = [*operands(shape, dtype, "qkvg")]
    rows = [source(n, shape[:3]) for n in ("lse", "delta")]
    params = {**PLAIN, "causal": True}
    taken = {"attention_lse": ins[:2], "attention_dq": ins + rows, "attention_dkv": ins + rows}
    groups = []
    for name, inputs in taken.items() if parts else [("attention_grad", ins)]:
        call = f.call(name, *inputs, **params)
        outs = call if isinstance(call, tuple) else (call,)
        groups.append(Group(COMPOSITES[name], tuple(inputs), outs, outs[0], name=name))
    return groups


@pytest.mark.parametrize(
    "name,parts", by_turns(["causal", "long", "short", "full", "chunks"], [False, True])
)
def test_more_sizes(name: str, parts: bool) -> None:
    shape, params = CASES[name]
    gradients(CPU.device, *shape, parts=parts, **params)


@pytest.mark.parametrize("target", targets("lavapipe", "webgpu"))
def test_chunks_in_threads(target: str) -> None:
    shape, params = CASES["chunks"]
    gradients(Tier(target).device, *shape, parts=True, **params)


@given(
    st.tuples(*(st.integers(1, n) for n in (2, 2, 2, 80, 80, 20))), st.booleans(),
    st.integers(0, 20), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
@settings(max_examples=3, deadline=None)
def test_any_shape(shape, causal, window, packed, random) -> None:  # type: ignore[no-untyped-def]
    b, groups, share, t, s, d = shape
    lengths = random.choice([None, [random.randrange(s + 1) for _ in range(b)]])
    for parts in (False, True):
        gradients(
            CPU.device, b, groups * share, groups, t, s, d, causal=causal, window=window,
            packed=packed, lengths=lengths, parts=parts,
        )  # fmt: skip


def test_claims() -> None:
    """Whole where the keys of a head fit in scratch and heads fill the cores."""

    def claimed(caps: str, heads: int, s: int) -> str | None:
        xs = [input_node(n, (1, heads, s, 64), dt.float32) for n in "qkvg"]
        return claimed_by(f.call("attention_grad", *xs, scale=1.0)[0], PRESETS[caps])

    assert claimed("cpu-avx512", 12, 1024) == "attention_grad"
    assert claimed("cpu-avx512", 12, 8192) is None
    assert claimed("cpu-avx512", 1, 256) is None
    assert claimed("cuda", 12, 1024) is None


# -- as GPUs' own code


def some(few: tuple[str, ...], more: tuple[str, ...]) -> pytest.MarkDecorator:
    """Architectures of which all but a few are for the long run of the tests."""
    slow = [pytest.param(a, marks=pytest.mark.slow) for a in more]
    return pytest.mark.parametrize("arch", [*few, *slow])


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")
@some(("gfx1100",), ("sm_80", "gfx90a", "gfx942"))
def test_as_code(arch: str) -> None:
    """What LLVM makes of it, executed: matrix units and all."""
    from gpu_emulator import Emulated

    device = Emulated(gpu_target(arch))
    whole(device, 1, 2, 1, 70, 70, 32, BF16)
    gradients(device, 1, 1, 1, 40, 40, 16, BF16, parts=True, causal=True)
    cached(device, SLOTS[:19], PLACES[:19], dtype=F16)
    cached(device, [0, 2, 1], [0, 95, 40], 7, 1, dtype=BF16)


def kernels(arch: str, depth: int) -> list[Kernel]:
    """Attention at the sizes of models, as an architecture gets it."""
    ins = [*operands((1, 8, 4096, depth), BF16)]
    out = f.call("attention", *ins, causal=True, **PLAIN)
    groups = [Group("attention", tuple(ins), (out,), None, name="attention")]
    for rows in (1, 2048):
        ins = [source("q", (rows, 32, depth), BF16)]
        ins += [source(n, (4, 8, 4096, depth), BF16) for n in "kv"]
        ins += [source(n, (rows,), dt.int32) for n in ("slot", "pos")]
        out = f.call("cached_attention", *ins, **PLAIN)
        groups.append(Group("cached_attention", tuple(ins), (out,), None, name=f"cached{rows}"))
    groups += calls((1, 8, 1024, depth), BF16, True)
    return [registry.get(g.kind)(g, gpu_target(arch).caps, {}) for g in groups]


@pytest.mark.parametrize("depth", [pytest.param(64, marks=pytest.mark.slow), 128])
@some(("sm_90",), ("gfx1100", "sm_80", "sm_120", "gfx90a", "gfx942"))
def test_resources(arch: str, depth: int) -> None:
    """Everything runs in the units, and no thread spills registers. Totals of spans, which are
    touched once in 512 keys, may lie in memory."""
    if arch.startswith("sm_") and ptxas.find() is None:
        pytest.skip("ptxas was not found")
    made = kernels(arch, depth)
    plain = {k.name for k in made if not has_tiles(k.body)}
    assert plain == ({"attention_dkv"} if (arch, depth) == ("gfx1100", 128) else set())
    for name, taken in offline.resources(made, gpu_target(arch)).items():
        assert taken.spills == 0 and taken.stack <= 528, (name, taken)
