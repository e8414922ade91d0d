"""Convolution and pooling layers for sequences [N, C, L], images [N, C, H, W] and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from weft.core.errors import ShapeError
from weft.nn import init, tree
from weft.nn.layers import empty
from weft.nn.module import Module, lacks
from weft.tensor import functional as F
from weft.tensor.convolution import Padding, Sizes
from weft.tensor.core import Tensor
from weft.tensor.pooling import Wanted


class _Conv(Module):
    """The base of convolutions: weight [O, C / groups, *kernel] and bias [O], both uniform in +-
    1/sqrt(inputs per output)."""

    _axes: ClassVar[int]  # number of the kernel's axes
    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros",
    ):  # fmt: skip
        lacks(self, padding_mode=None if padding_mode == "zeros" else padding_mode)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        kernel = self._kernel(in_channels, out_channels, kernel_size)
        self._parameters(out_channels, in_channels // groups, out_channels, kernel, bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = kernel

    def _kernel(self, inputs: int, outputs: int, k: Sizes) -> tuple[int, ...]:
        groups = self.groups
        if groups < 1 or inputs % groups or outputs % groups:
            raise ShapeError(
                f"{type(self).__name__}: {groups} groups of {inputs} and {outputs} channels; both "
                "must divide"
            )
        return (k,) * self._axes if isinstance(k, int) else tuple(k)

    def _parameters(
        self, first: int, second: int, outputs: int, kernel: tuple[int, ...], bias: bool
    ) -> None:
        self.weight = empty(first, second, *kernel)
        self.bias = empty(outputs) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values."""
        bound = 1.0 / math.sqrt(max(init.fans(self.weight)[0], 1))
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        rest = (self.stride, self.padding, self.dilation, self.groups)
        return type(self)._apply(x, self.weight, self.bias, *rest)

    def extra_repr(self) -> str:
        size = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        rest = tree.options(self, ("in_channels", "out_channels", "kernel_size"))
        return f"{size}, {rest}" if rest else size


class Conv1d(_Conv):
    """Cross-correlation of x[N, C, L] with learned weights; see functional.conv1d."""

    _axes, _apply = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Cross-correlation of x[N, C, H, W] with learned weights; see functional.conv2d."""

    _axes, _apply = 2, staticmethod(F.conv2d)


class Conv3d(_Conv):
    """Cross-correlation of x[N, C, D, H, W] with learned weights; see functional.conv3d."""

    _axes, _apply = 3, staticmethod(F.conv3d)


class _ConvTranspose(_Conv):
    """The base of transposed convolutions: weight [C, O / groups, *kernel] and bias [O]."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, bias: bool = True,
        dilation: Sizes = 1, padding_mode: str = "zeros",
    ):  # fmt: skip
        lacks(self, padding_mode=None if padding_mode == "zeros" else padding_mode)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.output_padding = output_padding
        kernel = self._kernel(in_channels, out_channels, kernel_size)
        self._parameters(in_channels, out_channels // groups, out_channels, kernel, bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = kernel

    def forward(self, x: Tensor) -> Tensor:
        rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return type(self)._apply(x, self.weight, self.bias, *rest)


class ConvTranspose1d(_ConvTranspose):
    """The transposed convolution of x[N, C, L]; see functional.conv_transpose1d."""

    _axes, _apply = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The transposed convolution of x[N, C, H, W]; see functional.conv_transpose2d."""

    _axes, _apply = 2, staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The transposed convolution of x[N, C, D, H, W]; see functional.conv_transpose3d."""

    _axes, _apply = 3, staticmethod(F.conv_transpose3d)


# -- pools ----------------------------------------------------------------------------------------


class _MaxPool(Module):
    """The largest in each window; stride defaults to the kernel. With return_indices also the
    position of each in its image."""

    _apply: ClassVar[Callable[..., Any]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0,
        dilation: Sizes = 1, return_indices: bool = False, ceil_mode: bool = False,
    ):  # fmt: skip
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.ceil_mode, self.return_indices = dilation, ceil_mode, return_indices

    def forward(self, x: Tensor) -> Any:
        pool = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return type(self)._apply(x, *pool, self.return_indices)


class _AvgPool(Module):
    """The average of each window; stride defaults to the kernel."""

    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):  # fmt: skip
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        counted = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        return type(self)._apply(x, self.kernel_size, self.stride, self.padding, *counted)


class _AdaptivePool(Module):
    """A pool with a given number of windows per axis, as equal as possible; None keeps a size."""

    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(self, output_size: Wanted):
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._apply(x, self.output_size)


class MaxPool1d(_MaxPool):
    """The largest in each window of x[N, C, L]; see functional.max_pool1d."""

    _apply = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest in each window of x[N, C, H, W]; see functional.max_pool2d."""

    _apply = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest in each window of x[N, C, D, H, W]; see functional.max_pool3d."""

    _apply = staticmethod(F.max_pool3d)


class AvgPool1d(_AvgPool):
    """The average of each window of x[N, C, L]; see functional.avg_pool1d."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ):  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)

    _apply = staticmethod(F.avg_pool1d)


class AvgPool2d(_AvgPool):
    """The average of each window of x[N, C, H, W]; see functional.avg_pool2d."""

    _apply = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The average of each window of x[N, C, D, H, W]; see functional.avg_pool3d."""

    _apply = staticmethod(F.avg_pool3d)


class AdaptiveAvgPool1d(_AdaptivePool):
    """Averages over output_size windows of x[N, C, L]."""

    _apply = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptivePool):
    """Averages over output_size windows of x[N, C, H, W]."""

    _apply = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptivePool):
    """Averages over output_size windows of x[N, C, D, H, W]."""

    _apply = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(_AdaptivePool):
    """An _AdaptivePool of maxima; with return_indices also the position of each in its image."""

    def __init__(self, output_size: Wanted, return_indices: bool = False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        return type(self)._apply(x, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest in each of output_size windows of x[N, C, L]."""

    _apply = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest in each of output_size windows of x[N, C, H, W]."""

    _apply = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest in each of output_size windows of x[N, C, D, H, W]."""

    _apply = staticmethod(F.adaptive_max_pool3d)


# -- space ----------------------------------------------------------------------------------------


class Upsample(Module):
    """Images resized; see functional.interpolate."""

    def __init__(
        self, size: Sizes | None = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    ):  # fmt: skip
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        how = (self.mode, self.align_corners, self.recompute_scale_factor)
        return F.interpolate(x, self.size, self.scale_factor, *how)


class PixelShuffle(Module):
    """Channels turned into places; see functional.pixel_shuffle."""

    def __init__(self, upscale_factor: int):
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(Module):
    """Places turned into channels; see functional.pixel_unshuffle."""

    def __init__(self, downscale_factor: int):
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)
