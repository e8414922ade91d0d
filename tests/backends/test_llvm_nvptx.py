"""PTX without a GPU: what the text says, and that NVIDIA's assembler takes every kernel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gpu_case as case
import gpu_convs
import numpy as np
import ptx_flow
import pytest

from weft.backends.llvm import gpu_target, launch, nvptx_target, offline, ptxas, resources
from weft.core import dtypes as dt
from weft.core.errors import CompileError, LimitError, UsageError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, load
from weft.kernel.ir import Collective, Kernel, Param, Type

needs_ptxas = pytest.mark.skipif(ptxas.find() is None, reason="ptxas was not found")
# In the default suite each architecture has its share of the kernels.
TARGETS = case.targets(case.NVIDIA)
F32, I32 = dt.float32, dt.int32


def ptx(kernel: Kernel, arch: str = "sm_80") -> str:
    return offline.code(kernel, gpu_target(arch)).decode()


def one(body, dtype=F32, size: int = 64, threads: int = 64, grid=(1,)) -> Kernel:  # type: ignore[no-untyped-def]
    """A kernel of one input and one output; `body(builder, input, output, thread)` writes it."""
    b = Builder("one")
    x, out = b.buffer("x", dtype, size), b.buffer("out", dtype, size, "w")
    body(b, x, out, b.let(b.thread(0), "t"))
    return b.kernel(grid, (threads,))


def test_versions_and_names() -> None:
    kernel = one(lambda b, x, out, t: b.store(out, t, load(x, t)))
    for arch, version in (("sm_80", "7.1"), ("sm_90", "7.8"), ("sm_120", "8.7")):
        text = ptx(kernel, arch)
        assert f".version {version}\n.target {arch}\n" in text
        assert f".visible .entry {launch.entry(kernel)}(" in text
        assert ".reqntid 64, 1, 1" in text
    newer = nvptx_target("sm_80", 84)
    assert ".version 8.4\n.target sm_80" in offline.code(kernel, newer).decode()
    for wrong in (("sm_80", 70), ("sm_35", None), ("gfx90a", None)):
        with pytest.raises(UsageError):
            nvptx_target(*wrong)
    with pytest.raises(UsageError, match="weft knows sm_80"):
        gpu_target("sm_1")


def test_wide_loads_where_the_index_is_aligned() -> None:
    """Four elements move at once where the index is known to be a multiple of four."""

    def wide(b, x, out, t) -> None:  # type: ignore[no-untyped-def]
        at = b.let(t * 4, "at")
        b.store(out, at, load(x, at, 4))

    text = ptx(one(wide, size=256))
    assert "ld.global.nc.v4" in text and "st.global.v4" in text
    text = ptx(one(wide, dt.bfloat16, 256))
    assert "ld.global.nc.b64" in text or "ld.global.nc.v2.b32" in text or ".v4.b16" in text
    text = ptx(one(lambda b, x, out, t: b.store(out, t, load(x, t, 4)), size=67))
    assert ".v4" not in text and ".v2" not in text


def test_products_and_sums_round_apart() -> None:
    """Only Fma is fused: ptxas may not contract what the Kernel IR keeps apart."""
    text = ptx(one(lambda b, x, out, t: b.store(out, t, load(x, t) * load(x, t) + 1.5)))
    assert "mul.rn.f32" in text and "add.rn.f32" in text and "fma" not in text


def test_subgroups() -> None:
    def total(b, x, out, t) -> None:  # type: ignore[no-untyped-def]
        b.store(out, t, Collective("subgroup_add", (load(x, t),), ir.F32))

    assert ptx(one(total)).count("shfl.sync.bfly") == 5

    def integers(b, x, out, t) -> None:  # type: ignore[no-untyped-def]
        most = b.let(Collective("subgroup_max", (load(x, t),), ir.I32), "most")
        b.store(out, t, Collective("subgroup_xor", (most,), ir.I32, 3))

    text = ptx(one(integers, I32))
    assert "redux.sync.max.s32" in text and text.count("shfl.sync.bfly") == 1
    far = one(
        lambda b, x, out, t: b.store(out, t, Collective("subgroup_xor", (load(x, t),), ir.F32, 32))
    )
    with pytest.raises(CompileError, match="subgroup_xor with 32"):
        ptx(far)


def test_dots_of_bytes() -> None:
    b = Builder("dots")
    x, y = b.buffer("x", dt.int8, 256), b.buffer("y", dt.int8, 256)
    u, out = b.buffer("u", dt.uint8, 256), b.buffer("out", I32, 128, "w")
    t = b.let(b.thread(0), "t")
    at, wide = b.let(t * 4, "at"), Type(I32, 2)
    part = Collective("dot4", (const(1), load(x, at, 4), load(y, at, 4)), ir.I32)
    b.store(out, t, part)
    two = b.let(t * 8, "two")
    mixed = Collective("dot4", (const(0, wide), load(u, two, 8), load(y, two, 8)), wide)
    b.store(out, 64 + t * 2, mixed)
    text = ptx(b.kernel((1,), (32,)))
    assert text.count("dp4a.s32.s32") == 1 and text.count("dp4a.u32.s32") == 2


def test_runtime_scalars_and_long_grids() -> None:
    """Grid axes 1 and 2 beyond the hardware's limit, or not known, become part of axis 0."""
    b = Builder("grid")
    out = b.buffer("out", I32, 1 << 20, "w")
    n = Param("n", 3)
    b.store(out, b.group(0) + b.group(1) * 4 + b.group(2) * 8, n)
    kernel = b.kernel((4, n, 2))
    assert launch.folded(kernel)
    assert launch.launch_grid(kernel, [0, 0, 0, 5]) == (40, 1, 1)
    assert launch.launch_grid(kernel, [0, 0, 0, 0]) == (0, 1, 1)
    text = ptx(kernel)
    assert "%ctaid.y" not in text and "ld.global.nc.b32" in text and "+12]" in text
    with pytest.raises(LimitError, match="a grid of 4 x 500000000 x 2"):
        launch.launch_grid(kernel, [0, 0, 0, 500_000_000])
    plain = dataclasses.replace(kernel, grid=tuple(const(k) for k in (7, 65535, 2)))
    assert launch.launch_grid(plain, []) == (7, 65535, 2)
    assert "%ctaid.y" in ptx(plain)
    long = dataclasses.replace(kernel, grid=tuple(const(k) for k in (7, 65536, 1)))
    assert launch.launch_grid(long, []) == (7 * 65536, 1, 1)


def swapping(size: int) -> Kernel:
    """Through two shared arrays, of `size` elements and of 3."""

    def body(b, x, out, t) -> None:  # type: ignore[no-untyped-def]
        three = b.array("three", F32, 3, "shared")
        tmp = b.array("tmp", F32, size, "shared")
        b.store(three, t % 3, 1.0, mask=t < 3)
        b.store(tmp, t, load(x, t))
        b.barrier()
        b.store(out, t, load(tmp, 63 - t) + load(three, t % 3))

    return one(body)


@needs_ptxas
def test_shared_memory_that_the_launch_asks_for() -> None:
    """More than 48 KiB cannot be declared: arrays get their places in one of no size."""
    (small,) = offline.resources([swapping(12284)], gpu_target("sm_80")).values()
    assert (small.shared, small.dynamic) == (48 << 10, 0)
    for arch, most in (("sm_80", 163), ("sm_86", 99), ("sm_90", 227), ("sm_120", 99)):
        kernel = swapping(most * 256 - 4)
        text = ptx(kernel, arch)
        assert ".extern .shared .align 16 .b8 weft_one_shared[]" in text
        found = offline.resources([kernel], gpu_target(arch))
        assert (found["one"].shared, found["one"].dynamic) == (0, most << 10)
        assert f"{most << 10:,}" in resources.text(found)
        with pytest.raises(LimitError, match=f"kernel one: {(most << 10) + 16} bytes"):
            ptx(swapping(most * 256), arch)


def test_limits_name_the_kernel() -> None:
    with pytest.raises(LimitError, match="kernel one: 232464 bytes of shared memory"):
        ptx(swapping(58112 - 1), "sm_90")
    with pytest.raises(LimitError, match="kernel one: 2048 threads"):
        ptx(one(lambda b, x, out, t: b.store(out, t, load(x, t)), size=2048, threads=2048))

    def deep(b, x, out, t) -> None:  # type: ignore[no-untyped-def]
        tmp = b.array("tmp", F32, 1 << 17)
        b.store(tmp, t, load(x, t))
        b.store(out, t, load(tmp, t))

    with pytest.raises(LimitError, match="private arrays"):
        ptx(one(deep))


def test_bfloat_rounds_in_one_instruction() -> None:
    b = Builder("narrow")
    x, out = b.buffer("x", F32, 64), b.buffer("out", dt.bfloat16, 64, "w")
    t = b.let(b.thread(0), "t")
    b.store(out, t, cast(load(x, t), dt.bfloat16))
    assert "cvt.rn.bf16" in ptx(b.kernel((1,), (64,)))


# -- ptxas --------------------------------------------------------------------------------------


def assemble(kernels: list[Kernel], target) -> dict[str, resources.Resources]:  # type: ignore[no-untyped-def]
    """What the assembler says of every kernel; none may be missing, or read what it has not
    written."""
    codes = [offline.code(k, target) for k in kernels]
    unwritten = [line for c in codes for line in ptx_flow.unwritten(c.decode())]
    assert not unwritten, "\n".join(unwritten)
    found = offline.resources(kernels, target, codes)
    assert set(found) == {k.name for k in kernels}
    for kernel in kernels:
        said, shared = found[kernel.name], case.shared_bytes(kernel)
        assert 0 < said.registers <= 255 and said.threads == int(np.prod(kernel.threads))
        # All of the group's threads fit an SM's 65,536 registers, given out eight at a time.
        assert said.threads * (-(-said.registers // 8) * 8) <= 65536, kernel.name
        assert said.shared <= -(-shared // 16) * 16 + 16 * 8, kernel.name
    return found


@needs_ptxas
@pytest.mark.parametrize("target", TARGETS)
def test_samples_assemble(target) -> None:  # type: ignore[no-untyped-def]
    found = assemble(case.samples(case.caps_of(target)), target)
    assert not any(r.spills or r.stack for r in found.values()), resources.text(found)
    assert "registers" in resources.text(found)


@needs_ptxas
@pytest.mark.parametrize("part", case.PARTS)
@pytest.mark.parametrize("target,share", case.shares(case.NVIDIA))
def test_everything_assembles(target, share: tuple[int, int], part: str) -> None:  # type: ignore[no-untyped-def]
    """The kernels of nodes, products, primitives, gradients and templates."""
    found = assemble(case.part(part, case.caps_of(target), share), target)
    spilled = [n for n, r in found.items() if r.spills]
    assert len(spilled) <= len(found) // 100, spilled


@needs_ptxas
@pytest.mark.parametrize("target,name", case.models(case.NVIDIA))
def test_models_assemble(target, name: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    kernels = case.model_kernels(case.caps_of(target), name, tmp_path)
    found = assemble(kernels, target)
    assert not any(r.spills for r in found.values()), resources.text(found)


@needs_ptxas
@pytest.mark.parametrize("target,cases", case.packed_cases(case.NVIDIA))
def test_packed_products_assemble(target, cases) -> None:  # type: ignore[no-untyped-def]
    found = assemble(case.packed_kernels(case.caps_of(target), cases), target)
    assert not any(r.spills or r.stack for r in found.values()), resources.text(found)


@needs_ptxas
@pytest.mark.parametrize("target,names", gpu_convs.cases(case.NVIDIA))
def test_convolutions_assemble(target, names) -> None:  # type: ignore[no-untyped-def]
    found = assemble(gpu_convs.kernels(case.caps_of(target), names), target)
    assert not any(r.spills for r in found.values()), resources.text(found)


@needs_ptxas
@pytest.mark.parametrize("target,steps", case.steps(case.NVIDIA))
def test_training_assembles(target, steps) -> None:  # type: ignore[no-untyped-def]
    found = assemble(case.training(case.caps_of(target), steps), target)
    assert not any(r.spills for r in found.values()), resources.text(found)


@needs_ptxas
def test_refused_code_is_said() -> None:
    with pytest.raises(CompileError, match="ptxas refuses the code for sm_80"):
        ptxas.assemble(".version 7.1\n.target sm_80\n.address_size 64\nnonsense\n", "sm_80")


def test_a_missing_assembler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find", lambda: None)
    with pytest.raises(CompileError, match="ptxas was not found"):
        ptxas.assemble("", "sm_80")


def test_ptxas_of_a_wheel_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "ptxas"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ptxas, "_FOLDERS", ())
    monkeypatch.setattr(ptxas, "_wheels", lambda: [tmp_path / "none", tmp_path])
    assert ptxas.find() == str(tool)
