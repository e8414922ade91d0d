"""The templates of attention's derivative against PyTorch, on every kind of target."""

from __future__ import annotations

from typing import Any

import dotkit as kit
import numpy as np
import pytest
import torch
from dotkit import f, source
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.backends.cpu import CpuDevice
from weft.backends.interp import InterpDevice
from weft.backends.registry import devices, get
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.dtypes import DType
from weft.ops import input_node
from weft.templates.registry import claimed_by

CPU = CpuDevice()
SMALL = (1, 2, 1, 7, 9, 5)
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
}
TARGETS = ("cpu-avx512", "cpu-avx2", "cpu-neon", "webgpu", "webgpu-small", "lavapipe", "cuda")


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

    def play(name: str, picked: list[int], *rows: np.ndarray) -> np.ndarray:
        sums = [source("row", r.shape) for r in rows]
        call = f.call(name, *(nodes[i] for i in picked), *sums, *n, **params)
        values = [*(arrays[i] for i in picked), *rows, *extra]
        kept = [*(ins[i] for i in picked), *sums, *n]
        return kit.play(device, "attention_grad", kept, [call], values, config=config)[0]

    if parts:
        lse = play("attention_lse", [0, 1])
        delta = (plain[4].astype(np.float32) * out.astype(np.float32)).sum(-1)
        got = [play("attention_dq", [0, 1, 2, 4], lse, delta)]
        got += [*play("attention_dkv", [0, 1, 2, 4], lse, delta)]
    else:
        flat = play("attention_grad", [0, 1, 2, 4])
        ends = np.cumsum([0, *(np.prod(x) for x in shapes[:3])])
        got = [
            flat[ends[i] : ends[i + 1]].reshape(x[0], x[2], x[1], x[3]).transpose(0, 2, 1, 3)
            for i, x in enumerate(shapes[:3])
        ]
    want = torch_grads(*(plain[i] for i in (0, 1, 2, 4)), lengths, **params)
    for one, truth in zip(got, want):
        kit.close(one, truth, dtype, 64)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_cpu(name, parts) -> None:  # type: ignore[no-untyped-def]
    shape, params = CASES[name]
    case(CPU, *shape, parts=parts, **params)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["grouped", "padding", "softcap", "near"])
def test_parts_everywhere(target, name) -> None:  # type: ignore[no-untyped-def]
    shape, params = CASES[name]
    shape = (*shape[:3], min(shape[3], 40), min(shape[4], 45), shape[5])
    case(InterpDevice(target), *shape, parts=True, **params)


@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("name", ["window", "padding", "softcap"])
def test_whole_on_other_cpus(target, name) -> None:  # type: ignore[no-untyped-def]
    shape, params = CASES[name]
    case(InterpDevice(target), *shape, **params)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_narrow(dtype, packed) -> None:  # type: ignore[no-untyped-def]
    for parts in (False, True):
        case(CPU, 2, 4, 2, 21, 21, 24, dtype, parts=parts, packed=packed, causal=True)
    case(InterpDevice("webgpu"), *SMALL, dtype, parts=True, packed=packed)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16])
def test_turned_operands(dtype) -> None:  # type: ignore[no-untyped-def]
    """Components far apart in memory."""
    for parts in (False, True):
        case(CPU, 2, 2, 1, 9, 21, 20, dtype, parts=parts, packed="turned", causal=True)
    for target in ("webgpu", "lavapipe"):
        case(InterpDevice(target), *SMALL, dtype, parts=True, packed="turned")


@pytest.mark.parametrize("d", [1, 80, 256])
def test_depths(d) -> None:  # type: ignore[no-untyped-def]
    for parts in (False, True):
        case(CPU, 1, 2, 1, 13, 17, d, parts=parts, causal=True)
    for target in ("webgpu", "cuda", "lavapipe"):
        case(InterpDevice(target), 1, 1, 1, 5, 6, d, parts=True)


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


@pytest.mark.parametrize("name", ["grouped", "window", "padding", "softcap"])
def test_vulkan(name) -> None:  # type: ignore[no-untyped-def]
    if not any(d.kind == "vulkan" and d.available for d in devices()):
        pytest.skip("no Vulkan device; install mesa-vulkan-drivers for a software one")
    shape, params = CASES[name]
    case(get("vulkan"), *shape, parts=True, **params)


def test_the_same_bits_every_time() -> None:
    ins = [source(n, (2, 2, 70, 16)) for n in "qkvg"]
    arrays = [kit.fill(x) for x in ins]
    call = f.call("attention_grad", *ins, scale=0.3, causal=True)
    first, *others = (kit.play(CPU, "attention_grad", ins, [call], arrays)[0] for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_nan_comes_through() -> None:
    ins = [source(n, (1, 2, 9, 8)) for n in "qkvg"]
    call = f.call("attention_grad", *ins, scale=0.3, causal=True)
    for i in range(4):
        arrays = [kit.fill(x) for x in ins]
        arrays[i][0, 1, 4, 3] = np.nan
        (got,) = kit.play(CPU, "attention_grad", ins, [call], arrays)
        assert np.isnan(got).any()


def test_claims() -> None:
    """Whole where the keys of a head fit in scratch and heads fill the cores."""

    def claimed(caps: str, heads: int, s: int) -> str | None:
        xs = [input_node(n, (1, heads, s, 64), dt.float32) for n in "qkvg"]
        return claimed_by(f.call("attention_grad", *xs, scale=1.0), PRESETS[caps])

    assert claimed("cpu-avx512", 12, 1024) == "attention_grad"
    assert claimed("cpu-avx512", 12, 8192) is None
    assert claimed("cpu-avx512", 1, 256) is None
    assert claimed("cuda", 12, 1024) is None
