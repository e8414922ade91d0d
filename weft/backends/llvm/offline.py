"""GPU kernels compiled without a GPU: their code, and what they take of the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.llvm import amd_link, amd_object, gpu_compile, launch, ptxas
from weft.backends.llvm.gpu import render_gpu
from weft.backends.llvm.gpu_target import GpuTarget
from weft.backends.llvm.resources import Resources
from weft.kernel.ir import Kernel


def code(kernel: Kernel, target: GpuTarget) -> bytes:
    """Returns the code for a driver: PTX text, or a linked AMD code object. Raises CompileError or
    LimitError naming the kernel."""
    text = render_gpu(kernel, target)
    if target.code == "ptx":
        return gpu_compile.assembly(text, target, kernel.name).encode()
    return amd_link.link(gpu_compile.compile_object(text, target, kernel.name))


def source(kernel: Kernel, target: GpuTarget) -> str:
    """The optimised assembly for people: PTX, or AMD's."""
    return gpu_compile.assembly(render_gpu(kernel, target), target, kernel.name)


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
