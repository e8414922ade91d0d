"""The templates of attention's derivative: one contract, a row per tier of execution."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dotkit as kit
import numpy as np
import pytest
import torch
from dotkit import f, source
from hypothesis import given, settings, strategies as st
from test_attention import case as forward
from test_attention_cached import case as cached

from weft.backends.cpu import CpuDevice
from weft.backends.interp import InterpDevice
from weft.backends.llvm import gpu_target, offline, ptxas
from weft.backends.registry import devices, get
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.dtypes import DType
from weft.kernel.ir import Kernel
from weft.kernel.tiles import has_tiles
from weft.ops import input_node
from weft.templates import registry
from weft.templates.group import Group
from weft.templates.registry import COMPOSITES, claimed_by

CPU = CpuDevice()
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
    "chunks": ((1, 2, 1, 300, 290, 4), {"causal": True}),
}
BF16, F16, F32 = dt.bfloat16, dt.float16, dt.float32


@dataclass(frozen=True)
class Tier:
    """A device (by its preset's name, "cpu" or "vulkan" for a real one), the dtype that leads to
    the tier, and whether its kernels are the three parts or one for all gradients."""

    target: str
    dtype: DType = F32
    parts: bool = True

    def device(self) -> Any:
        if self.target == "cpu":
            return CPU
        if self.target != "vulkan":
            return InterpDevice(self.target)
        if not any(d.kind == "vulkan" and d.available for d in devices()):
            pytest.skip("no Vulkan device; install mesa-vulkan-drivers for a software one")
        return get("vulkan")


TIERS = {
    "one thread, all at once": Tier("cpu", parts=False),
    "one thread, in parts": Tier("cpu"),
    "8 lanes, all at once": Tier("cpu-avx2", parts=False),
    "4 lanes, all at once": Tier("cpu-neon", parts=False),
    "16 lanes": Tier("cpu-avx512"),
    "8 lanes": Tier("cpu-avx2"),
    "4 lanes": Tier("cpu-neon"),
    "matrix registers": Tier("cpu-amx", BF16),
    "threads alone": Tier("lavapipe"),
    "threads alone, real": Tier("vulkan"),
    "small groups": Tier("webgpu-small"),
    "groups": Tier("webgpu"),
    "large groups": Tier("cuda"),
    "units, wave 32": Tier("cuda", BF16),
    "units, wave 64": Tier("hip-wave64", BF16),
    "units, f16": Tier("hip-wave32", F16),
}
QUICK = {"one thread, all at once", "16 lanes", "threads alone, real", "groups", "units, wave 32"}
each_tier = pytest.mark.parametrize(
    "tier",
    [
        pytest.param(tier, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, tier in TIERS.items()
    ],
)


def torch_grads(q, k, v, g, lengths, causal, scale, window, softcap):  # type: ignore[no-untyped-def]
    """PyTorch's gradients of attention by the book, in float64."""
    leaves = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v)]
    (heads, t), (groups, s) = q.shape[1:3], k.shape[1:3]
    kk, vv = (x.repeat_interleave(heads // groups, 1) for x in leaves[1:])
    scores = leaves[0] @ kk.mT * scale
    scores = torch.tanh(scores / softcap) * softcap if softcap else scores
    gap = torch.arange(t)[:, None] + s - t - torch.arange(s)[None]  # how far a key lies behind
    seen = (gap >= 0) if causal else torch.ones(t, s, dtype=torch.bool)
    seen = seen & (gap.abs() < window) if window else seen
    seen = seen.expand(scores.shape)
    if lengths is not None:
        seen = seen & (torch.arange(s) < torch.tensor(lengths)[:, None, None, None])
    p = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
    (p @ vv).backward(torch.tensor(g.astype(np.float64)))
    return [x.grad.numpy() for x in leaves]


ORDERS = {False: (0, 1, 2, 3), True: (0, 2, 1, 3), "turned": (0, 1, 3, 2)}  # of [B,H,T,D]


def place(packed: Any, name: str, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Any]:
    """An operand [B,H,T,D] and the value in memory that it is, its axes in another order."""
    order = ORDERS[packed]
    x = source(name, tuple(shape[i] for i in order), dtype)
    return x, (f.transpose(x, order) if packed else x)


def case(  # type: ignore[no-untyped-def]
    device, b, h, g, t, s, d, dtype: DType = dt.float32, lengths=None, parts=False, packed=False,
    config=None, **params,
) -> None:  # fmt: skip
    """Plays `attention_grad`, or the three parts, and compares all gradients."""
    params = {"causal": False, "window": 0, "softcap": 0.0, "scale": d**-0.5, **params}
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, d), (b, h, t, d), (b, h, t, d))
    ins, nodes = zip(*(place(packed, n, x, dtype) for n, x in zip("qkvog", shapes)))
    arrays = [kit.fill(x) for x in ins]
    n = [] if lengths is None else [source("lengths", (b,), dt.int32)]
    extra = [] if lengths is None else [np.asarray(lengths, np.int32)]
    plain = [x.transpose(ORDERS[packed]) for x in arrays]
    like = [source("x", x, dtype) for x in shapes[:3]]
    forward = f.call("attention", *like, *n, **params)
    (out,) = kit.oracle([*like, *n], [forward], [*plain[:3], *extra])
    arrays[3][:] = out.transpose(ORDERS[packed])
    plain[3] = out

    def play(name: str, picked: list[int], *rows: np.ndarray) -> list[np.ndarray]:
        sums = [source("row", r.shape) for r in rows]
        call = f.call(name, *(nodes[i] for i in picked), *sums, *n, **params)
        values = [*(arrays[i] for i in picked), *rows, *extra]
        kept = [*(ins[i] for i in picked), *sums, *n]
        outputs = call if isinstance(call, tuple) else [call]
        return kit.play(device, COMPOSITES[name], kept, outputs, values, config=config)

    if parts:
        (lse,) = play("attention_lse", [0, 1])
        delta = (plain[4].astype(np.float32) * out.astype(np.float32)).sum(-1)
        got = play("attention_dq", [0, 1, 2, 4], lse, delta)
        got += [*play("attention_dkv", [0, 1, 2, 4], lse, delta)[0]]
    else:
        got = [x.transpose(0, 2, 1, 3) for x in play("attention_grad", [0, 1, 2, 4])]
    want = torch_grads(*(plain[i] for i in (0, 1, 2, 4)), lengths, **params)
    for one, truth in zip(got, want):
        kit.close(one, truth, dtype, 64)


@each_tier
@pytest.mark.parametrize("name", ["grouped", "window", "padding", "softcap", "near"])
def test_gradients(tier, name) -> None:  # type: ignore[no-untyped-def]
    """Against PyTorch, whatever rows see."""
    shape, params = CASES[name]
    if tier.target not in ("cpu", "vulkan"):
        shape = (*shape[:3], min(shape[3], 40), min(shape[4], 45), shape[5])
    if tier.dtype != F32:
        shape = (*shape[:3], shape[3], shape[4], -(-shape[5] // 8) * 8)  # what units take
    case(tier.device(), *shape, tier.dtype, parts=tier.parts, **params)


@each_tier
def test_places_in_memory(tier) -> None:  # type: ignore[no-untyped-def]
    """Heads side by side, components far apart, f16, depths that fill no vector."""
    d, parts = tier.device(), tier.parts
    case(d, 1, 2, 1, 7, 9, 5, tier.dtype, parts=parts, packed="turned", causal=True)
    case(d, 1, 1, 1, 5, 6, 24, F16, parts=parts, packed=True)


@each_tier
def test_the_same_bits_every_time_and_nan(tier) -> None:  # type: ignore[no-untyped-def]
    device = tier.device()
    for group in calls((1, 2, 40, 16), tier.dtype, tier.parts):
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
    return found + [InterpDevice(name) for name in ("cuda", "hip-wave64") if parts]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 40, 20), (1, 1, 290, 4)])
def test_the_same_bits_everywhere(parts, shape) -> None:  # type: ignore[no-untyped-def]
    """f32 gradients do not depend on lanes or on how many threads share the work: 290 keys are
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
    ins = [source(n, shape, dtype) for n in "qkvg"]
    rows = [source(n, shape[:3]) for n in ("lse", "delta")]
    params = {"causal": True, "scale": 0.125, "window": 0, "softcap": 0.0}
    taken = {"attention_lse": ins[:2], "attention_dq": ins + rows, "attention_dkv": ins + rows}
    groups = []
    for name, inputs in taken.items() if parts else [("attention_grad", ins)]:
        call = f.call(name, *inputs, **params)
        outs = call if isinstance(call, tuple) else (call,)
        groups.append(Group(COMPOSITES[name], tuple(inputs), outs, outs[0], name=name))
    return groups


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("name", ["causal", "long", "short", "full", "chunks"])
def test_cpu(name, parts) -> None:  # type: ignore[no-untyped-def]
    shape, params = CASES[name]
    case(CPU, *shape, parts=parts, **params)


@pytest.mark.parametrize("target", ["lavapipe", "webgpu"])
def test_chunks_in_threads(target) -> None:  # type: ignore[no-untyped-def]
    shape, params = CASES["chunks"]
    case(InterpDevice(target), *shape, parts=True, **params)


@given(
    st.tuples(*(st.integers(1, n) for n in (2, 2, 2, 80, 80, 20))), st.booleans(),
    st.integers(0, 20), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
@settings(max_examples=6, deadline=None)
def test_any_shape(shape, causal, window, packed, random) -> None:  # type: ignore[no-untyped-def]
    b, groups, share, t, s, d = shape
    lengths = random.choice([None, [random.randrange(s + 1) for _ in range(b)]])
    for parts in (False, True):
        case(
            CPU, b, groups * share, groups, t, s, d, causal=causal, window=window,
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
@some(("sm_80", "gfx1100"), ("gfx90a", "gfx942"))
def test_as_code(arch: str) -> None:
    """What LLVM makes of it, executed: matrix units and all."""
    from gpu_emulator import Emulated

    device = Emulated(gpu_target(arch))
    forward(device, 1, 2, 1, 70, 70, 32, BF16)
    case(device, 1, 1, 1, 40, 40, 16, BF16, parts=True, causal=True)
    slot = [0] * 7 + [2] * 9 + [0] * 3
    cached(device, slot, [5, 90, 3, 3, 17, 64, 63, *range(9), 1, 2, 95], dtype=F16)
    cached(device, [0, 2, 1], [0, 95, 40], 7, 1, dtype=BF16)


def kernels(arch: str) -> list[Kernel]:
    """Attention at the sizes of models, as an architecture gets it."""
    caps, found = gpu_target(arch).caps, []
    for depth in (64, 128):
        ins = [source(n, (1, 8, 4096, depth), BF16) for n in "qkv"]
        out = f.call("attention", *ins, causal=True, scale=0.125, window=0, softcap=0.0)
        groups = [Group("attention", tuple(ins), (out,), None, name="attention")]
        for rows in (1, 2048):
            ins = [source("q", (rows, 32, depth), BF16)]
            ins += [source(n, (4, 8, 4096, depth), BF16) for n in "kv"]
            ins += [source(n, (rows,), dt.int32) for n in ("slot", "pos")]
            out = f.call("cached_attention", *ins, scale=0.125, window=0, softcap=0.0)
            name = f"cached{rows}"
            groups.append(Group("cached_attention", tuple(ins), (out,), None, name=name))
        groups += calls((1, 8, 1024, depth), BF16, True)
        for group in groups:
            kernel = registry.get(group.kind)(group, caps, {})
            found.append(replace(kernel, name=f"{kernel.name}_{depth}"))
    return found


@some(("sm_90", "gfx1100"), ("sm_80", "sm_120", "gfx90a", "gfx942"))
def test_resources(arch: str) -> None:
    """Everything runs in the units, and no thread spills registers. Totals of spans, which are
    touched once in 512 keys, may lie in memory."""
    if arch.startswith("sm_") and ptxas.find() is None:
        pytest.skip("ptxas was not found")
    made = kernels(arch)
    plain = {k.name for k in made if not has_tiles(k.body)}
    assert plain == ({"attention_dkv_128"} if arch == "gfx1100" else set())
    for name, taken in offline.resources(made, gpu_target(arch)).items():
        assert taken.spills == 0 and taken.stack <= 528, (name, taken)
