"""The machines: one row each, with all that weft knows of an instruction set.

Kernels are those of a CPU (one thread per group, vectors of `lanes`), compiled by LLVM for
`triple`, `cpu` and `features`; `target` lists the intrinsics that the dialect may write. `qemu` is
the emulator with the options that make it this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft.backends.llvm.launch import ALIGN
from weft.backends.llvm.target import LlvmTarget, neon
from weft.core.caps import CPU, Caps


@dataclass(frozen=True)
class Machine:
    """`syscall` are the words of a function that takes a system call's six arguments and then its
    number, which calls Linux; `numbers` are those of read, write, exit and mmap. `pointer` is
    bytes, `order` that of its numbers ("<" little-endian, ">" big-endian), `memory` bytes that its
    buffers may take in all (the file is sparse: what is not written takes none). `soft` is how
    the names of functions begin that LLVM calls where it knows no instruction to divide integers
    or to take roots ("": there are instructions). `options` are those of LLVM's command line."""

    name: str
    title: str
    triple: str
    cpu: str
    features: str
    qemu: tuple[str, ...]
    caps: Caps
    target: LlvmTarget
    syscall: tuple[int, ...]
    numbers: tuple[int, int, int, int] = (63, 64, 93, 222)
    pointer: int = 8
    order: str = "<"
    memory: int = 64 << 30
    soft: str = ""
    options: tuple[str, ...] = ()


def _caps(name: str, lanes: int, registers: int = 32, *features: str) -> Caps:
    return replace(
        CPU,
        name=name,
        lanes=lanes,
        registers=registers,
        max_groups=(1 << 31) - 1,
        cores=1,
        features=frozenset(features),
    )


def _riscv(vlen: int = 0) -> Machine:
    """RV64GC, with vectors of `vlen` bits where there are any."""
    name = f"riscv64-v{vlen}" if vlen else "riscv64"
    vectors = f",+v,+zvl{vlen}b" if vlen else ""
    cpu = f"rv64,Zfh=true{f',v=true,vlen={vlen},vext_spec=v1.0' if vlen else ''}"
    return Machine(
        name,
        f"RISC-V, {vlen}-bit vectors" if vlen else "RISC-V RV64GC",
        "riscv64-unknown-linux-gnu",
        "generic-rv64",
        f"+m,+a,+f,+d,+c,+zfhmin,-relax{vectors}",
        ("qemu-riscv64", "-cpu", cpu),
        _caps(name, max(vlen // 32, 4)),
        LlvmTarget(name, f16_convert=not vlen, to_zero=not vlen),
        syscall=(0x00080893, 0x00000073, 0x00008067),  # mv a7, a6; ecall; ret
    )


def _aarch64(name: str, title: str, bits: int = 0) -> Machine:
    """ARMv8 with NEON and its dot products; with SVE's vectors of `bits` where there are any."""
    cpu = f"max,sve-default-vector-length={bits // 8}" if bits else "cortex-a76"
    scale = f" vscale_range({bits // 128},{bits // 128})" if bits else ""
    features = "+neon,+dotprod" + (",+i8mm,+sve,+sve2" if bits else "")
    return Machine(
        name,
        title,
        "aarch64-unknown-linux-gnu",
        "generic",
        features,
        ("qemu-aarch64", "-cpu", cpu),
        _caps(name, max(bits // 32, 4), 32, "dot4"),
        neon(name, f"noinline nounwind{scale}", frozenset(re.findall(r"\w+", features))),
        syscall=(0xAA0603E8, 0xD4000001, 0xD65F03C0),  # mov x8, x6; svc #0; ret
    )


def _matrix() -> Machine:
    """ARMv9 with SME in vectors of 512 bits, as Apple's M4 has it: SVE's instructions exist in
    streaming mode only, so vectors are NEON's elsewhere."""
    plain = _aarch64("aarch64-sme512", "AArch64, SME of 512 bits")
    return replace(
        plain,
        features=f"{plain.features},+sme",
        qemu=("qemu-aarch64", "-cpu", "max,sme512=on,sme-default-vector-length=64"),
        caps=_caps(plain.name, 4, 32, "dot4", "outer16_f32"),
        target=replace(plain.target, outer=16),
    )


def _power() -> Machine:
    """Returns POWER9: a big-endian machine. Its buffers are little-endian, as files and Programs
    are, so loads and stores reverse bytes."""
    return Machine(
        "ppc64",
        "POWER9, big-endian",
        "powerpc64-unknown-linux-musl",  # musl: the second version of the ABI
        "pwr9",
        "",
        ("qemu-ppc64", "-cpu", "power9"),
        _caps("ppc64", 4),
        LlvmTarget("ppc64", f16_convert=False, swap=True),
        syscall=(0x7D204B78, 0x44000002, 0x4E800020),  # mr r0, r9; sc; blr
        numbers=(3, 4, 1, 90),
        order=">",
    )


def _hexagon(hvx: bool) -> Machine:
    """Returns Hexagon v67, Qualcomm's NPU, with or without HVX's vectors of 128 bytes.

    HVX sums four products of bytes in 32 lanes at once. Only kernels that do so are compiled with
    it: it lacks floats, and LLVM 22 fails (by an assertion, or in its stores) on much else. All
    other vectors are split, so without HVX they have 8 lanes, which compile four times as fast.
    """
    name = "hexagon-hvx" if hvx else "hexagon"
    dot = "llvm.hexagon.V6.vrmpyb{}.acc.128B"
    return Machine(
        name,
        "Hexagon v67, HVX of 128 bytes" if hvx else "Hexagon v67",
        "hexagon-unknown-linux-musl",
        "hexagonv67",
        "-small-data",
        ("qemu-hexagon", "-cpu", "v67"),
        _caps(name, 32, 16, "dot4") if hvx else _caps(name, 8, 8),
        LlvmTarget(
            name,
            f16_convert=False,
            dot4={32: dot.format("usv")} if hvx else {},
            dot4_signed={32: dot.format("v")} if hvx else {},
            dot4_features="-small-data,+hvxv67,+hvx-length128b" if hvx else "",
            min_max=False,
            index="i32",
            base_align=ALIGN if hvx else 1,
        ),
        # { r6 = memw(r29+#0) } (the seventh argument), { trap0(#1) }, { jumpr r31 }
        syscall=(0x919DC006, 0x5400C004, 0x529FC000),
        pointer=4,
        soft="__hexagon_",
        memory=3 << 29,
        # Three passes that take three quarters of the time where all vectors are taken apart.
        options=("-enable-pipeliner=false", "-hexagon-insert=false", "-hexagon-bit=false"),
    )


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            _riscv(),
            *map(_riscv, (128, 256, 512, 1024)),
            _aarch64("aarch64", "AArch64, NEON"),
            *(_aarch64(f"aarch64-sve{n}", f"AArch64, SVE of {n} bits", n) for n in (256, 512)),
            _matrix(),
            _power(),
            *map(_hexagon, (False, True)),
        )
    }
)
