"""Vulkan, Metal, DX12 and WebGPU devices through wgpu."""

from weft.backends.wgpu.device import WgpuDevice

__all__ = ["WgpuDevice"]
