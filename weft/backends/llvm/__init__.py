"""The LLVM IR dialect: Kernel IR → LLVM IR text, one small target table per kind of machine."""

from weft.backends.llvm.dialect import LlvmDialect, render
from weft.backends.llvm.target import LlvmTarget, cpu_target

__all__ = ["LlvmDialect", "LlvmTarget", "cpu_target", "render"]
