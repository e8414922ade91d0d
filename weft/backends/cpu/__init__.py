"""The CPU device: kernels through LLVM, a whole Program in one native call."""

from weft.backends.cpu.device import CpuBound, CpuDevice
from weft.backends.cpu.memory import CpuBuffer

__all__ = ["CpuBound", "CpuBuffer", "CpuDevice"]
