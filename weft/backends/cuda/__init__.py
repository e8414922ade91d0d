"""NVIDIA GPUs through the CUDA driver (package cuda-bindings)."""

from weft.backends.cuda.driver import CudaDriver, open_device, probe

__all__ = ["CudaDriver", "open_device", "probe"]
