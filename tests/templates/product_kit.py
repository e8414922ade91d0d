"""Products for the contract suites: the tiers that compute them, their operands and two truths
(float64, and the chain of fused multiply-adds that weft/core/order.py prescribes)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source

from weft.backends.cpu import CpuDevice
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.core.errors import WeftError
from weft.core.order import CHUNK, SPAN
from weft.graph.ir import Node
from weft.kernel.ir import Kernel
from weft.kernel.tiles import expand
from weft.program.device import Device
from weft.templates.group import Group
from weft.templates.product.problem import MatmulProblem, problem_of

GPUS = ["cuda", "hip-wave64", "hip-wave32"]
TILES = ["cpu-amx", "tiles", "amx"]  # interpreted, expanded for this CPU, in its own registers
TIERS = ["cpu", "vulkan", *PRESETS]
WIDE = [dt.float32, dt.float16, dt.bfloat16]
RUNS = [(tier, kind) for tier in TIERS for kind in ("matmul", "matvec")]


class Tiles(CpuDevice):
    """This CPU, given kernels for matrix registers, by default in their portable form."""

    portable = True

    def __init__(self) -> None:
        super().__init__(threads=2)
        self.own_features = self.caps.features
        self.caps = PRESETS["cpu-amx"]

    def load(self, kernels: Sequence[Kernel]) -> Sequence[int]:
        return super().load([expand(k) for k in kernels] if self.portable else kernels)


@functools.cache
def device(tier: str) -> Device:
    """Who computes: this CPU, a Vulkan device, or the interpreter with the Caps of a preset."""
    if tier == "cpu":
        return CpuDevice()
    if tier == "vulkan":
        try:
            return get("vulkan")
        except WeftError as error:
            pytest.skip(f"no Vulkan here: {error}")
    if tier in PRESETS:
        return InterpDevice(tier)
    tiles = Tiles()
    tiles.portable = tier == "tiles"
    if not tiles.portable and "mma_bf16" not in tiles.own_features:
        pytest.skip("this CPU has no AMX, or the system refuses its use")
    return tiles


class Product:
    """x @ w of m rows, n columns and k terms: x[m, k] or x.T, w[k, n] or w.T as they are stored."""

    def __init__(
        self, m: int, n: int, k: int, dtype: dt.DType = dt.float32, layout: str = "NT",
        batch: tuple[int, ...] = (), dots: int = 1,
    ) -> None:  # fmt: skip
        self.turned = layout[0] == "T", layout[1] == "T"
        x = source("x", (*batch, *((k, m) if self.turned[0] else (m, k))), dtype)
        shape = (*batch, *((n, k) if self.turned[1] else (k, n)))
        ws = [source("w", shape, dtype) for _ in range(dots)]
        a = f.swap_last(x) if self.turned[0] else x
        out = dt.float32 if dtype.is_float else dt.int32
        self.k, self.ins = k, [x, *ws]
        self.outs = [f.dot(a, f.swap_last(w) if self.turned[1] else w, out) for w in ws]

    def arrays(self) -> list[np.ndarray]:
        return [kit.fill(x) for x in self.ins]

    def operands(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays as the dots see them."""
        x, *ws = (a.astype(np.float64) for a in arrays)
        left = x.swapaxes(-1, -2) if self.turned[0] else x
        return [left, *(w.swapaxes(-1, -2) if self.turned[1] else w for w in ws)]

    def truth(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        left, *rights = self.operands(arrays)
        return [left @ right for right in rights]

    def chain(self, arrays: Sequence[np.ndarray], add: Any = None) -> np.ndarray:
        """The first dot as the order of sums prescribes it, bit for bit."""
        left, right, *_ = self.operands(arrays)
        return chain(left, right, add or fma)

    def play(self, tier: str, kind: str, arrays: Sequence[np.ndarray], *scalars: int, **more: Any):  # type: ignore[no-untyped-def]
        return kit.play(device(tier), kind, self.ins, self.outs, arrays, scalars, **more)

    def check(self, tier: str, kind: str = "matmul", **more: Any) -> None:
        arrays = self.arrays()
        for got, want in zip(self.play(tier, kind, arrays, **more), self.truth(arrays)):
            kit.close(got, want, np.float32, 4 * self.k)

    def group(self, kind: str = "matmul") -> Group:
        return Group(kind, tuple(self.ins), tuple(self.outs), None, name="k")

    def problem(self) -> MatmulProblem:
        return problem(self.ins, self.outs)


def problem(ins: Sequence[Node], outs: Sequence[Node]) -> MatmulProblem:
    group = Group("matmul", tuple(ins), tuple(outs), None, name="k")
    return problem_of(group)


def plain(caps: Caps) -> set[dt.DType]:
    """Dtypes whose products go through f32 multiply-adds."""
    unit = {"mma_bf16", "dot2_bf16", "mma16_bf16"} & caps.features
    halves = set() if "mma16_f16" in caps.features else {dt.float16}
    return {dt.float32} | halves | (set() if unit else {dt.bfloat16})


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z of float32, rounded once: the product is exact in float64, and a sum of float64
    whose bits lost are kept in the last place (round to odd) rounds to float32 as the exact one."""
    product = x.astype(np.float64) * y.astype(np.float64)
    total = product + z.astype(np.float64)
    low = total - z
    lost = (product - low) + (z - (total - low))
    bits = total.view(np.int64)
    toward = np.where((lost > 0) == (total > 0), 0, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), np.where(toward == 0, bits + 1, bits - 1), bits)
    return odd.view(np.float64).astype(np.float32)


def apart(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z rounded twice, as a shader's compiler may take an fma."""
    return x * y + z


def chain(a: np.ndarray, b: np.ndarray, add: Any = fma) -> np.ndarray:
    """a . b in the order: chunks of multiply-adds, chunks within spans, spans."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = None
    for s in range(0, a.shape[-1], SPAN):
        span = None
        for c in range(s, min(s + SPAN, a.shape[-1]), CHUNK):
            acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
            for k in range(c, min(c + CHUNK, s + SPAN, a.shape[-1])):
                acc = add(a[:, k : k + 1], b[k : k + 1], acc)
            span = acc if span is None else span + acc
        total = span if total is None else total + span
    assert total is not None
    return total
