"""The shared part of CUDA and HIP devices: everything but the names of the driver's calls."""

from weft.backends.gpu.api import Api, Card, DriverError
from weft.backends.gpu.device import GpuDevice
from weft.backends.gpu.driver import Driver

__all__ = ["Api", "Card", "Driver", "DriverError", "GpuDevice"]
