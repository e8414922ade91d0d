"""AMD code objects without a GPU: linked by weft, and read back."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import struct
import subprocess
from pathlib import Path

import gpu_case as case
import gpu_convs
import numpy as np
import pytest

from weft.backends.llvm import (
    amd_link,
    amd_object,
    gpu_target,
    launch,
    offline,
    render_gpu,
    resources,
)
from weft.core import dtypes as dt
from weft.core.errors import CompileError, LimitError, UsageError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load
from weft.kernel.ir import Collective, Kernel

# In the default suite each architecture has its share of the kernels.
TARGETS = case.targets(case.AMD)
# Machine numbers in the ELF header's flags: LLVM "User Guide for AMDGPU Backend", "ELF Header".
MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx1100": 0x41}
PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4


def check(kernel: Kernel, target) -> resources.Resources:  # type: ignore[no-untyped-def]
    """Links a kernel and checks everything that a loader relies on."""
    data = offline.code(kernel, target)
    elf = amd_link.ElfFile(data)
    assert elf.kind == 3 and elf.ident[7] == 64 and elf.ident[8] == 3  # shared, HSA, version 5
    assert elf.flags & 0xFF == MACHINES[target.arch]
    loads = [s for s in elf.segments if s[0] == PT_LOAD]
    assert [s[1] for s in loads] == [4, 5, 6]  # R, RX, RW
    for kind, _, offset, address, _, size, memory, align in elf.segments:
        assert offset + size <= len(data) and memory >= size
        assert kind != PT_LOAD or (address - offset) % align == 0
    pages = [(a // 4096, (a + n - 1) // 4096) for _, _, _, a, _, _, n, _ in loads]
    assert all(x[1] < y[0] for x, y in itertools.pairwise(pages))
    entry, descriptor = elf.named(launch.entry(kernel)), elf.named(launch.entry(kernel) + ".kd")
    assert entry is not None and descriptor is not None
    assert entry.info == 0x12 and descriptor.info == 0x11  # global function, global object
    assert entry.value % 256 == 0 and descriptor.value % 64 == 0 and descriptor.size == 64
    code, rodata = elf.sections[entry.section], elf.sections[descriptor.section]
    assert code.flags & 4 and code.address <= entry.value < code.address + len(code.data)
    at = descriptor.value - rodata.address
    shared, private, kernargs = struct.unpack_from("<III", rodata.data, at)
    (distance,) = struct.unpack_from("<q", rodata.data, at + 16)
    assert descriptor.value + distance == entry.value
    found = amd_object.kernels(data)[launch.entry(kernel)]
    assert (shared, private) == (found.shared, found.stack)
    assert kernargs == 8 * (len(kernel.buffers) + 1)
    assert found.threads == int(np.prod(kernel.threads))
    assert found.shared <= case.shared_bytes(kernel) + 16 * 8
    assert 0 < found.registers <= 512
    said = amd_object.metadata(data)
    assert said["amdhsa.target"].endswith(target.arch)
    (about,) = said["amdhsa.kernels"]
    assert about[".wavefront_size"] == target.wave
    assert about[".symbol"] == launch.entry(kernel) + ".kd"
    assert [a[".offset"] for a in about[".args"]] == list(range(0, kernargs, 8))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_samples_link(target) -> None:  # type: ignore[no-untyped-def]
    for kernel in case.samples(case.caps_of(target)):
        found = check(kernel, target)
        assert not found.spills and not found.stack, kernel.name


@pytest.mark.parametrize("part", case.PARTS)
@pytest.mark.parametrize("target,share", case.shares(case.AMD))
def test_everything_links(target, share: tuple[int, int], part: str) -> None:  # type: ignore[no-untyped-def]
    """The kernels of nodes, products, primitives, gradients and templates."""
    kernels = case.part(part, case.caps_of(target), share)
    spilled = [k.name for k in kernels if check(k, target).spills]
    assert len(spilled) <= len(kernels) // 100, spilled


@pytest.mark.parametrize("target,name", case.models(case.AMD))
def test_models_link(target, name: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for kernel in case.model_kernels(case.caps_of(target), name, tmp_path):
        assert not check(kernel, target).spills


@pytest.mark.parametrize("target,cases", case.packed_cases(case.AMD))
def test_packed_products_link(target, cases) -> None:  # type: ignore[no-untyped-def]
    for kernel in case.packed_kernels(case.caps_of(target), cases):
        found = check(kernel, target)
        assert not found.spills and not found.stack, kernel.name


@pytest.mark.parametrize("target,names", gpu_convs.cases(case.AMD))
def test_convolutions_link(target, names) -> None:  # type: ignore[no-untyped-def]
    for kernel in gpu_convs.kernels(case.caps_of(target), names):
        assert not check(kernel, target).spills, kernel.name


@pytest.mark.parametrize("target,steps", case.steps(case.AMD))
def test_training_links(target, steps) -> None:  # type: ignore[no-untyped-def]
    for kernel in case.training(case.caps_of(target), steps):
        assert check(kernel, target).spills <= 3, kernel.name  # of 256 registers, on gfx1100


def total(dtype: dt.DType = dt.float32) -> Kernel:
    """The sum over each subgroup, in every thread."""
    b = Builder("total")
    x, out = b.buffer("x", dtype, 64), b.buffer("out", dtype, 64, "w")
    t = b.let(b.thread(0), "t")
    b.store(out, t, Collective("subgroup_add", (load(x, t),), ir.Type(dtype)))
    return b.kernel((1,), (64,))


def test_waves_of_32_and_64() -> None:
    """A wave of 64 exchanges at one distance more, beyond what a swizzle reaches."""
    for arch, far in (("gfx90a", 1), ("gfx942", 1), ("gfx1100", 0)):
        text = render_gpu(total(), gpu_target(arch))
        assert text.count("call i32 @llvm.amdgcn.ds.swizzle") == 5
        assert text.count("call i32 @llvm.amdgcn.ds.bpermute") == far
        check(total(), gpu_target(arch))


def test_threads_along_an_axis_are_limited() -> None:
    """HIP counts threads, not groups, along an axis, and in 32 bits."""
    limit = gpu_target("gfx90a").axis_threads
    kernel = dataclasses.replace(total(), grid=(const((1 << 26) - 1), const(1), const(1)))
    assert launch.launch_grid(kernel, [], limit) == ((1 << 26) - 1, 1, 1)
    more = dataclasses.replace(kernel, grid=(const(1 << 26), const(1), const(1)))
    assert launch.launch_grid(more, []) == (1 << 26, 1, 1)
    with pytest.raises(LimitError, match="67108864 groups of 64 threads along one axis"):
        launch.launch_grid(more, [], limit)


def test_assembly_for_people() -> None:
    text = offline.source(total(), gpu_target("gfx90a"))
    assert "global_load_dword" in text and "weft_total:" in text


def test_unknown_architectures() -> None:
    with pytest.raises(UsageError, match="weft knows"):
        gpu_target("gfx9")


# -- the linker ---------------------------------------------------------------------------------


def relocatable(arch: str = "gfx90a") -> bytes:
    target = gpu_target(arch)
    return offline.compile_object(render_gpu(total(), target), target, "total")


def test_symbol_tables_agree() -> None:
    """Loaders find symbols in .dynsym, by its hash table, or in .symtab."""
    elf = amd_link.ElfFile(amd_link.link(relocatable()))
    by = {s.name: s for s in elf.sections}
    assert by[".dynsym"].data == by[".symtab"].data
    buckets, chains = struct.unpack_from("<II", by[".hash"].data)
    words = struct.unpack_from(f"<{buckets + chains}I", by[".hash"].data, 8)
    reached = set()
    for first in words[:buckets]:
        while first:
            reached.add(first)
            first = words[buckets + first]
    assert reached == {1, 2} and chains == 3
    tags = dict(struct.iter_unpack("<QQ", bytes(by[".dynamic"].data)))
    assert tags[6] == by[".dynsym"].address and tags[4] == by[".hash"].address


@pytest.mark.skipif(shutil.which("ld.lld") is None, reason="ld.lld was not found")
def test_like_lld(tmp_path: Path) -> None:
    """The same code, read-only data and notes as LLVM's own linker leaves."""
    source, out = tmp_path / "k.o", tmp_path / "k.so"
    source.write_bytes(relocatable())
    made = subprocess.run(
        ["ld.lld", "-shared", "-o", str(out), str(source)], capture_output=True, text=True
    )
    if "unknown abi version" in made.stderr:
        pytest.skip("this ld.lld is older than the ABI of the objects")
    assert made.returncode == 0, made.stderr
    theirs = {s.name: s for s in amd_link.ElfFile(out.read_bytes()).sections}
    ours = {s.name: s for s in amd_link.ElfFile(amd_link.link(source.read_bytes())).sections}
    for name in (".text", ".note"):
        assert theirs[name].data == ours[name].data
    assert theirs[".rodata"].data[:16] == ours[".rodata"].data[:16]


@pytest.mark.parametrize("keep", [0, 3, 40, 63, 200, 0.5, 0.9, -1])
def test_cut_objects_are_named_errors(keep: float) -> None:
    data = relocatable()
    size = int(len(data) * keep) if isinstance(keep, float) else keep
    with pytest.raises(CompileError):
        amd_link.link(data[:size])


def test_damaged_objects_never_crash() -> None:
    data, rng = relocatable(), np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(0, len(data), 4):
            broken[at] = rng.integers(0, 256)
        with contextlib.suppress(CompileError):
            amd_object.kernels(amd_link.link(bytes(broken)))


def test_what_the_linker_refuses() -> None:
    target = gpu_target("gfx90a")
    text = render_gpu(total(), target)
    writable = text + "@more = addrspace(1) global i32 7\n"
    with pytest.raises(CompileError, match="writable data"):
        amd_link.link(offline.compile_object(writable, target, "total"))
    outside = (
        text.replace("done:\n", "done:\n  store i32 1, ptr addrspace(1) @elsewhere\n")
        + "@elsewhere = external addrspace(1) global i32\n"
    )
    with pytest.raises(CompileError):
        amd_link.link(offline.compile_object(outside, target, "total"))
