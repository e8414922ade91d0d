"""The WGSL dialect: Kernel IR to WebGPU shading language, for Vulkan, Metal, DX12 and browsers."""

from weft.backends.wgsl.dialect import ENTRY, Wgsl, render
from weft.backends.wgsl.layout import Binding, BindingLayout, fold_grid, plan

__all__ = ["ENTRY", "Binding", "BindingLayout", "Wgsl", "fold_grid", "plan", "render"]
