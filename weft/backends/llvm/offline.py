"""GPU kernels compiled without a GPU, by llvmlite: their code, and what they take of the hardware.
Imported only when something is compiled."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import replace

import llvmlite.binding as llvm

from weft.backends.llvm import amd_link, amd_object, launch, ptxas
from weft.backends.llvm.gpu import render_gpu
from weft.backends.llvm.gpu_target import GpuTarget
from weft.backends.llvm.optimise import LLVM, optimised
from weft.backends.llvm.resources import Resources
from weft.core.errors import CompileError
from weft.kernel.ir import Kernel

_LOCK = threading.Lock()  # a target machine is for one thread at a time


def code(kernel: Kernel, target: GpuTarget) -> bytes:
    """Returns the code for a driver: PTX text, or a linked AMD code object. Raises CompileError or
    LimitError naming the kernel."""
    text = render_gpu(kernel, target)
    if target.code == "ptx":
        return assembly(text, target, kernel.name).encode()
    return amd_link.link(compile_object(text, target, kernel.name))


def source(kernel: Kernel, target: GpuTarget) -> str:
    """The optimised assembly for people: PTX, or AMD's."""
    return assembly(render_gpu(kernel, target), target, kernel.name)


def resources(
    kernels: Sequence[Kernel], target: GpuTarget, codes: Sequence[bytes] | None = None
) -> dict[str, Resources]:
    """Returns the resources of each kernel, by name (names must differ); `codes`, if known, are the
    results of `code`. For NVIDIA this needs ptxas: raises CompileError where it is missing or
    rejects the code."""
    named = {launch.entry(k): k for k in kernels}
    found: dict[str, Resources] = {}
    codes = [code(k, target) for k in kernels] if codes is None else codes
    if target.code == "ptx":
        if codes:
            texts = [c.decode() for c in codes]
            found = ptxas.assemble(ptxas.join(texts), target.arch)[1]
    else:
        for each in codes:
            found |= amd_object.kernels(each)
    return {
        kernel.name: replace(
            found[entry], dynamic=launch.shared_bytes(kernel, target.static_shared)
        )
        for entry, kernel in named.items()
        if entry in found
    }


# -- LLVM IR as machine code


@functools.lru_cache(maxsize=32)
def _machine(triple: str, arch: str, features: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as e:
        raise CompileError(f"this llvmlite has no LLVM back end for {arch}: {e}") from None
    return target.create_target_machine(cpu=arch, features=features, opt=3, reloc="pic")


def _optimised(
    text: str, target: GpuTarget, name: str
) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    machine = _machine(target.triple, target.arch, target.features)
    # Threads are the vectors here: loops stay scalar.
    return optimised(text, machine, name, level=3, loops=False), machine


def assembly(text: str, target: GpuTarget, name: str = "kernel") -> str:
    """The optimised assembly of one module: PTX, or AMD's. Raises CompileError naming the
    kernel."""
    with LLVM, _LOCK:
        module, machine = _optimised(text, target, name)
        found = str(machine.emit_assembly(module))
    return _whole_pairs(found) if target.code == "ptx" else found


_PAIR = re.compile(r"\tmov\.b(?:32|64) \t%rd?\d+, \{(%rs?\d+), (%rs?\d+)\};")
_RESULT = re.compile(r"^\t(?!st\.)[a-z][\w.]*\s+(%rs?\d+|\{[^}]*\})", re.M)


def _whole_pairs(ptx: str) -> str:
    """Returns the same PTX, with 0 in each unused half of a pair. LLVM takes such a half from a
    register that it never writes, and an executor of the plain PTX would find stale content
    there."""
    halves = {half for pair in _PAIR.findall(ptx) for half in pair}
    missing = halves and halves.difference(re.findall(r"%rs?\d+", str(_RESULT.findall(ptx))))

    def filled(pair: re.Match[str]) -> str:
        sizes = {half: 16 if half.startswith("%rs") else 32 for half in pair.groups()}
        zeros = [f"\tmov.b{n} \t{half}, 0;\n" for half, n in sizes.items() if half in missing]
        return "".join([*zeros, pair[0]])

    return _PAIR.sub(filled, ptx) if missing else ptx


def compile_object(text: str, target: GpuTarget, name: str) -> bytes:
    """The relocatable ELF object of one module for an AMD target. Raises CompileError naming the
    kernel."""
    with LLVM, _LOCK:
        module, machine = _optimised(text, target, name)
        return bytes(machine.emit_object(module))
