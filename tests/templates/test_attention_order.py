"""One order of attention's sums (weft/core/order.py): prefill, decode and whole attention give the
same bits, and for f32 those of the rule taken at its word."""

from __future__ import annotations

from functools import cache
from typing import Any

import dotkit as kit
import numpy as np
import pytest
from attention_kit import PLAIN, Tier, cached, whole
from dotkit import f, source
from harness import targets
from rows import by_turns

from weft.backends.interp import InterpDevice
from weft.conform.harness import elementwise_kernel, run_kernel
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.dtypes import DType
from weft.core.order import KEY_SPAN, KEYS, STRANDS
from weft.kernel import math
from weft.kernel.ir import Kernel
from weft.kernel.lanewise import fma
from weft.kernel.verify import verify
from weft.program.device import Device
from weft.templates import registry
from weft.templates.attention.softmax import FLOOR, HIDDEN
from weft.templates.group import Group

TARGETS = [*PRESETS, "cpu", "vulkan"]


class Cache:
    """Keys and values in slots, and query rows with their places."""

    def __init__(self, length: int, n: int, h: int, g: int, d: int, dtype: DType) -> None:
        shapes = [(n, h, d), (2, g, length, d), (2, g, length, d)]
        rng = np.random.default_rng(length + d)
        self.arrays = [rng.standard_normal(s, np.float32).astype(dtype.numpy) for s in shapes]
        self.dtype = dtype
        self.kernels: dict[tuple[Any, ...], Kernel] = {}

    def play(self, device: Device, rows: slice, slot, pos, **params) -> np.ndarray:  # type: ignore[no-untyped-def]
        """Some of the rows; those are `slot` and `pos` of all."""
        q, kc, vc = self.arrays
        q = q[rows]
        places = [np.asarray(x, np.int32)[rows] for x in (slot, pos)]
        shapes = [("q", q.shape), ("kc", kc.shape), ("vc", vc.shape)]
        ins = [source(n, s, self.dtype) for n, s in shapes]
        ins += [source(n, (len(q),), dt.int32) for n in ("slot", "pos")]
        out = f.call("cached_attention", *ins, **{**PLAIN, **params})
        key = (device, len(q), *params.items())
        if key not in self.kernels:  # one build for all parts of a size
            group = Group("cached_attention", tuple(ins), (out,), out, name="k")
            self.kernels[key] = registry.get(group.kind)(group, device.caps, {})
            verify(self.kernels[key])
        blank = np.full(out.shape, 77, out.dtype.numpy)
        return run_kernel(device, self.kernels[key], [q, kc, vc, *places, blank])[-1]


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit."""
    word = {2: np.uint16, 4: np.uint32}[got.dtype.itemsize]
    np.testing.assert_array_equal(got.view(word), want.view(word))


def parts_agree(device: Device, cache: Cache, slot, pos, parts, **params) -> None:  # type: ignore[no-untyped-def]
    """All rows at once, and parts (first, count) of them, give the same."""
    every = cache.play(device, slice(0, len(pos)), slot, pos, **params)
    for first, count in parts:
        rows = slice(first, first + count)
        same(cache.play(device, rows, slot, pos, **params), every[rows])


UNITS = [(name, dt.bfloat16) for name in ("cpu-amx", "cuda", "hip-wave64")]  # they have some


# The vectors of cpu-avx512 are those of cpu-amx.
VECTORS = [(n, dt.float32) for n in PRESETS if n != "cpu-amx"]


@pytest.mark.parametrize(
    "name,dtype",
    [
        *targets(*VECTORS, *UNITS),
        pytest.param("cpu-amx", dt.float32, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_rows(name: str, dtype: DType) -> None:
    """In the interpreter: a row alone, two, 17 and 18, on both sides of seams."""
    cache = Cache(514, 18, 2, 1, 8, dtype)
    pos = [513, 63, 64, 511, 512, 0, *range(12)]
    parts_agree(Tier(name).device, cache, [0] * 4 + [1] * 14, pos, ((0, 1), (3, 2), (1, 17)))


@pytest.mark.parametrize(
    "name,dtype", by_turns(["cpu", "vulkan"], [dt.float32, dt.bfloat16, dt.float16], 2), ids=str
)
def test_any_number_of_rows_on_devices(name: str, dtype: DType) -> None:
    cache = Cache(1100, 34, 4, 2, 64, dtype)
    pos = [0, 62, 63, 64, 510, 511, 512, 1099, *range(500, 526)]
    parts = [(i, 1) for i in range(9)] + [(i, 2) for i in range(0, 34, 5)] + [(0, 17), (17, 17)]
    parts_agree(Tier(name).device, cache, [0] * 4 + [1] * 30, pos, parts)


@pytest.mark.parametrize("params", [{"window": 70}, {"window": 600}, {"softcap": 0.7}], ids=repr)
@pytest.mark.parametrize("name", ["cpu", "vulkan"])
def test_windows_and_caps(name: str, params: dict[str, float]) -> None:
    cache = Cache(1100, 18, 2, 1, 8, dt.float32)
    pos = [0, 69, 70, 571, 1099, *range(600, 613)]
    parts_agree(Tier(name).device, cache, [1] * 18, pos, ((0, 2), (3, 2)), **params)


HEADS = [(1, 1, 20), (6, 2, 80), (22, 1, 7), (2, 2, 272)]
FEWER = {dt.float32: HEADS[:1] + HEADS[2:], dt.bfloat16: HEADS[1:3]}  # heads and depths, by default


@pytest.mark.parametrize(
    "h,g,d,dtype,name",
    by_turns(
        [
            pytest.param(*h, dtype, marks=[] if h in fewer else [pytest.mark.slow])
            for dtype, fewer in FEWER.items()
            for h in HEADS
        ],
        ["cpu", "vulkan"],
    ),
    ids=repr,
)
def test_heads_and_depths(name: str, h: int, g: int, d: int, dtype: DType) -> None:
    """Depths beyond a chunk too."""
    cache = Cache(600, 20, h, g, d, dtype)
    parts_agree(Tier(name).device, cache, [1] * 20, range(561, 581), ((0, 2), (1, 17)))


@pytest.mark.parametrize("name", ["cpu", "vulkan"])
def test_long_contexts(name: str) -> None:
    """Against float64. (llvmpipe ends loops that have gone round 65,535 times in all.)"""
    whole(Tier(name).device, 1, 1, 1, 1100, 1100, 64)
    cached(Tier(name).device, [0, 1, 1], [1099, 700, 3], length=1100, d=64)


def test_many_rows() -> None:
    """300 at once on this CPU."""
    cache = Cache(1100, 300, 4, 2, 64, dt.bfloat16)
    parts_agree(
        Tier("cpu").device, cache, [0] * 300, range(800, 1100), ((0, 16), (7, 150), (299, 1))
    )


@pytest.mark.parametrize("name", targets(*TARGETS))
def test_whole_attention_is_prefill(name: str) -> None:
    """Causal attention of a sequence and the same rows over a cache that holds it."""
    device = Tier(name).device
    h, d = 2, 16
    interp = name in PRESETS
    t = 20 if interp else 70
    for s, dtype in ((t, dt.float32), (130 if interp else 530, dt.bfloat16)):
        cache = Cache(s, t, h, h, d, dtype)
        q, kc, vc = cache.arrays
        ins = [source(n, (1, h, x, d), dtype) for n, x in (("q", t), ("k", s), ("v", s))]
        out = f.call("attention", *ins, causal=True, **PLAIN)
        arrays = [q.transpose(1, 0, 2)[None], kc[:1], vc[:1]]
        (got,) = kit.play(device, "attention", ins, [out], arrays)
        want = cache.play(device, slice(0, t), [0] * t, range(s - t, s))
        same(np.ascontiguousarray(got[0].transpose(1, 0, 2)), want)


# -- the rule, taken at its word


@cache
def _exp_kernel(n: int):  # type: ignore[no-untyped-def]
    caps = PRESETS["webgpu"]
    return elementwise_kernel(
        "exp", caps, n, [dt.float32], dt.float32, lambda b, i, x: math.exp(b, x)
    )


def exp(x: np.ndarray) -> np.ndarray:
    """weft's polynomial, in the interpreter."""
    flat = np.asarray(x, np.float32).ravel()
    out = run_kernel(InterpDevice("webgpu"), _exp_kernel(flat.size), [flat, flat])[1]
    return out.reshape(np.shape(x))


def by_the_rule(q, k, v, scale: float, window: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """One row q[D] over its keys k[n, D] and values v[n, D]; the row stands at the last key."""
    f32 = np.float32
    n, d = k.shape
    score = np.zeros(n, f32)
    for i in range(d):
        score = fma(np.full(n, q[i]), k[:, i], score)
    score = score * f32(scale)
    low = max(n - window, 0) if window else 0
    score[:low] = HIDDEN
    top, total, out = f32(FLOOR), f32(0), np.zeros(d, f32)
    for span in range(0, n, KEY_SPAN):
        m, one, o = f32(FLOOR), f32(0), np.zeros(d, f32)
        for k0 in range(span, min(span + KEY_SPAN, n), KEYS):
            s = np.full(KEYS, HIDDEN, f32)
            block = score[k0 : k0 + KEYS]
            s[: len(block)] = block
            new = max(m, s.max())
            p, fade = exp(s - new), exp(m - new)[()]
            strands = np.zeros(STRANDS, f32)
            for i in range(0, KEYS, STRANDS):
                strands = strands + p[i : i + STRANDS]
            while len(strands) > 1:
                half = len(strands) // 2
                strands = strands[:half] + strands[half:]
            m, one = new, fma(one, fade, strands[0])
            o = o * fade
            for j in range(len(block)):
                o = fma(np.full(d, p[j]), v[k0 + j], o)
        new = max(top, m)
        fade, by = exp(top - new)[()], exp(m - new)[()]
        top, total, out = new, fma(one, by, total * fade), fma(o, np.full(d, by), out * fade)
    return out * (f32(1) / total) if total else out * f32(0)


@pytest.mark.parametrize(
    "name,window",
    [
        ("cpu", 0),
        ("cpu", 100),
        ("cpu-avx2", 100),
        pytest.param("cpu-avx2", 0, marks=pytest.mark.slow),
    ],
)
def test_the_rule(name: str, window: int) -> None:
    """f32 on CPUs: few rows and many are what the rule says, bit for bit."""
    device = Tier(name).device
    cache = Cache(1100, 18, 2, 1, 24, dt.float32)
    pos = [0, 62, 63, 64, 510, 511, 512, 1099, *range(600, 610)]
    many = cache.play(device, slice(0, 18), [1] * 18, pos, window=window)
    few = cache.play(device, slice(0, 3), [1] * 18, pos, window=window)
    same(few, many[:3])
    q, kc, vc = cache.arrays
    for n in (0, 3, 4, 6, 7):
        stop = pos[n] + 1
        want = by_the_rule(q[n, 1], kc[1, 0, :stop], vc[1, 0, :stop], 0.25, window)
        same(many[n, 1], want)
