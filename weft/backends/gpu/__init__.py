"""What CUDA and HIP devices share: everything but the calls of the driver."""

from weft.backends.gpu.device import GpuDevice
from weft.backends.gpu.driver import Driver

__all__ = ["Driver", "GpuDevice"]
