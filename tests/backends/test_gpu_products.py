"""Matrix products as a GPU's own code: executed by the emulator, and taken by ptxas and the linker
without spills at the sizes that the templates are tuned for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_emulator import Emulated
from rows import covering, few

from weft.backends.cpu import CpuDevice
from weft.backends.llvm import gpu_target, offline, ptxas
from weft.core import dtypes as dt
from weft.kernel.ir import Kernel
from weft.kernel.tiles import has_tiles
from weft.ops import functions as f
from weft.templates import registry
from weft.templates.group import Group

sys.path.insert(0, str(Path(__file__).parents[1] / "templates"))
import dotkit as kit
from product_kit import Product

ARCHES = ("sm_80", "gfx90a", "gfx1100")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")


@on_linux
@pytest.mark.parametrize("kind,dtype,arch", covering(
    ["matmul NN", "matmul NT", "matmul TN", "matvec NN", "matvec NT"],
    [dt.float32, dt.bfloat16], ARCHES,
))  # fmt: skip
def test_products_run(kind: str, dtype: dt.DType, arch: str) -> None:
    kind, layout = kind.split()
    shapes = {"matmul": ((32, 40, 64), (37, 17, 35)), "matvec": ((1, 19, 1100), (3, 40, 77))}
    device = Emulated(gpu_target(arch))
    for m, n, k in shapes[kind]:
        p = Product(m, n, k, dtype, layout)
        arrays = p.arrays()
        out = f.cast(p.outs[0], dtype)
        (got,) = kit.play(device, kind, p.ins, [out], arrays)
        kit.close(got, p.truth(arrays)[0], dtype, 4 * k)


@on_linux
@pytest.mark.parametrize("arch", few([*ARCHES, "gfx942"], "sm_80", "gfx942"))
def test_products_of_bytes_have_the_cpus_bits(arch: str) -> None:
    """In the units, however the operands lie, also beyond a span of K."""
    device, cpu = Emulated(gpu_target(arch)), CpuDevice(threads=1)
    sizes = {"NN": (37, 17, 35), "NT": (20, 40, 64), "TN": (16, 48, 80), "TT": (33, 70, 2100)}
    for layout, (m, n, k) in sizes.items():
        p = Product(m, n, k, dt.int8, layout)
        arrays = [np.random.default_rng(k).integers(-128, 128, x.shape, np.int8) for x in p.ins]
        (got,), (want,) = (kit.play(d, "matmul", p.ins, p.outs, arrays) for d in (device, cpu))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got, p.truth(arrays)[0])
    assert has_tiles(registry.get("matmul")(p.group(), device.caps, {}).body)


def kernels(arch: str) -> list[Kernel]:
    """Large products in every layout, with edges, small ones (whose loops are short enough to be
    unrolled into far too many registers), and few rows."""
    cases: list[tuple[str, int, int, int, dt.DType, str]] = [
        ("matmul", 2048, 2048, 2048, dtype, layout)
        for dtype in (dt.float32, dt.bfloat16)
        for layout in ("NN", "NT", "TN")
    ]
    cases += [("matmul", 2048, 2050, 1000, dtype, "TT") for dtype in (dt.float32, dt.float16)]
    cases += [("matmul", 200, 300, 1024, dt.bfloat16, "NT")]
    cases += [("matvec", m, 2048, 2048, dt.bfloat16, "NT" if m == 4 else "NN") for m in (1, 4)]
    cases += [("matmul", 64, 64, 64, dt.float32, "NT")]
    cases += [("matmul", 2048, 2050, 1024, dt.int8, layout) for layout in ("NT", "NN")]
    found = []
    for i, (kind, m, n, k, dtype, layout) in enumerate(cases):
        p = Product(m, n, k, dtype, layout)
        out = f.cast(kit.gelu(p.outs[0]) if i % 3 and dtype.is_float else p.outs[0], dtype)
        own = Group(kind, tuple(p.ins), (out,), None, name=f"{kind}_{i}")
        found.append(registry.get(kind)(own, gpu_target(arch).caps, {}))
    return found


@pytest.mark.skipif(ptxas.find() is None, reason="ptxas was not found")
@pytest.mark.parametrize("arch", few(["sm_80", "sm_90", "sm_120"], "sm_90"))
def test_large_products_assemble(arch: str) -> None:
    found = offline.resources(kernels(arch), gpu_target(arch))
    assert len(found) == 14
    for name, said in found.items():
        assert not said.spills and not said.stack, (name, said)
        # A tile of 64 sums per thread, its running totals and what feeds it: a group per core; two
        # of matrix units.
        if said.threads == 256:
            assert said.registers <= (128 if said.dynamic else 208), (name, said)


@pytest.mark.parametrize("arch", few(["gfx90a", "gfx942", "gfx1100"], "gfx1100"))
def test_large_products_link(arch: str) -> None:
    found = offline.resources(kernels(arch), gpu_target(arch))
    assert len(found) == 14 and not any(said.spills for said in found.values())
