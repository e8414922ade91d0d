"""NVIDIA GPUs through the CUDA driver (package cuda-bindings)."""

from weft.backends.cuda.driver import CudaApi, open_device, probe

__all__ = ["CudaApi", "open_device", "probe"]
