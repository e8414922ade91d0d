"""Matrix products as a GPU's own code: executed by the emulator, and taken by ptxas and the linker
without spills at the sizes that the templates are tuned for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_emulator import Emulated

from weft.backends.llvm import gpu_target, offline, ptxas
from weft.core import dtypes as dt
from weft.kernel.ir import Kernel
from weft.ops import functions as f
from weft.templates import registry
from weft.templates.group import Group

sys.path.insert(0, str(Path(__file__).parents[1] / "templates"))
import dotkit as kit

ARCHES = ("sm_80", "gfx90a", "gfx1100")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")


def group(kind: str, m: int, n: int, k: int, dtype: dt.DType, a_t: bool, b_t: bool, **kw: Any):  # type: ignore[no-untyped-def]
    """A product, with a gelu where asked for."""
    x = kit.source("x", (k, m) if a_t else (m, k), dtype)
    w = kit.source("w", (n, k) if b_t else (k, n), dtype)
    y = f.dot(f.swap_last(x) if a_t else x, f.swap_last(w) if b_t else w, dt.float32)
    out = f.cast(kit.gelu(y) if kw.get("gelu") else y, dtype)
    return [x, w], out


def truth(x: np.ndarray, w: np.ndarray, a_t: bool, b_t: bool) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    return (x.T if a_t else x) @ (w.T if b_t else w)


@on_linux
@pytest.mark.parametrize("layout", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("arch", ARCHES)
def test_blocks_run(arch: str, dtype: dt.DType, layout: tuple[bool, bool]) -> None:
    device = Emulated(gpu_target(arch))
    for m, n, k in ((32, 40, 64), (37, 17, 35)):
        ins, out = group("matmul", m, n, k, dtype, *layout)
        arrays = [kit.fill(node) for node in ins]
        (got,) = kit.play(device, "matmul", ins, [out], arrays)
        kit.close(got, truth(*arrays, *layout), dtype, 4 * k)


@on_linux
@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("arch", ARCHES)
def test_few_rows_run(arch: str, dtype: dt.DType, b_t: bool) -> None:
    device = Emulated(gpu_target(arch))
    for m, n, k in ((1, 19, 1100), (3, 40, 77)):
        ins, out = group("matvec", m, n, k, dtype, False, b_t)
        arrays = [kit.fill(node) for node in ins]
        (got,) = kit.play(device, "matvec", ins, [out], arrays)
        kit.close(got, truth(*arrays, False, b_t), dtype, 4 * k)


def kernels(arch: str) -> list[Kernel]:
    """Large products in every layout, with edges, small ones (whose loops are short enough to be
    unrolled into far too many registers), and few rows."""
    cases = [("matmul", 2048, 2048, 2048, dtype, a_t, b_t)
             for dtype in (dt.float32, dt.bfloat16)
             for a_t, b_t in ((False, False), (False, True), (True, False))]  # fmt: skip
    cases += [("matmul", 2048, 2050, 1000, dtype, True, True) for dtype in (dt.float32, dt.float16)]
    cases += [("matmul", 200, 300, 1024, dt.bfloat16, False, True)]
    cases += [("matvec", m, 2048, 2048, dt.bfloat16, False, m == 4) for m in (1, 4)]
    cases += [("matmul", 64, 64, 64, dt.float32, False, True)]
    found = []
    for i, (kind, *case) in enumerate(cases):
        ins, out = group(kind, *case, gelu=i % 3 != 0)
        own = Group(kind, tuple(ins), (out,), None, name=f"{kind}_{i}")
        found.append(registry.get(kind)(own, gpu_target(arch).caps, {}))
    return found


@pytest.mark.skipif(ptxas.find() is None, reason="ptxas was not found")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_large_products_assemble(arch: str) -> None:
    found = offline.resources(kernels(arch), gpu_target(arch))
    assert len(found) == 12
    for name, said in found.items():
        assert not said.spills and not said.stack, (name, said)
        # A tile of 64 sums per thread, its running totals and what feeds it: a group per core; two
        # of matrix units.
        if said.threads == 256:
            assert said.registers <= (128 if said.dynamic else 208), (name, said)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
def test_large_products_link(arch: str) -> None:
    found = offline.resources(kernels(arch), gpu_target(arch))
    assert len(found) == 12 and not any(said.spills for said in found.values())
