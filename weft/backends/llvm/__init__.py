"""The LLVM IR dialect: Kernel IR → LLVM IR text, one small target table per kind of machine."""

from weft.backends.llvm.dialect import LlvmDialect, render
from weft.backends.llvm.gpu import render_gpu
from weft.backends.llvm.gpu_target import GpuTarget, amdgcn_target, gpu_target, nvptx_target
from weft.backends.llvm.target import LlvmTarget, cpu_target

__all__ = [
    "GpuTarget",
    "LlvmDialect",
    "LlvmTarget",
    "amdgcn_target",
    "cpu_target",
    "gpu_target",
    "nvptx_target",
    "render",
    "render_gpu",
]
