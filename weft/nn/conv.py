"""Convolution layers for sequences [N, C, L], images [N, C, H, W] and volumes, and what moves
places."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from weft.core.errors import ShapeError, UsageError
from weft.nn import init, tree
from weft.nn.layers import empty
from weft.nn.module import Module, lacks
from weft.tensor import functional as F
from weft.tensor.convolution import Padding, Sizes, padding_sides, sizes
from weft.tensor.core import Tensor
from weft.tensor.padding import MODES


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
        if padding_mode not in ("zeros", *MODES) or padding_mode == "constant":
            raise UsageError(
                f"{type(self).__name__}: padding_mode {padding_mode!r:.40}; expected zeros, "
                "reflect, replicate or circular"
            )
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        kernel = self._kernel(in_channels, out_channels, kernel_size)
        self._make_weights(out_channels, in_channels // groups, out_channels, kernel, bias)
        if isinstance(padding, str):  # wrong ones are told where the module is made
            self._around()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.padding_mode = kernel, padding_mode

    def _kernel(self, inputs: int, outputs: int, k: Sizes) -> tuple[int, ...]:
        groups = self.groups
        if groups < 1 or inputs % groups or outputs % groups:
            raise ShapeError(
                f"{type(self).__name__}: {groups} groups of {inputs} and {outputs} channels; both "
                "must divide"
            )
        return (k,) * self._axes if isinstance(k, int) else tuple(k)

    def _make_weights(
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

    def _around(self) -> tuple[tuple[int, int], ...]:
        """The sizes of the padding before and after each axis."""
        name = type(self).__name__
        steps, apart = (sizes(name, s, self._axes) for s in (self.stride, self.dilation))
        return padding_sides(name, self.weight, self.padding, steps, apart)

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            widths = [width for pair in self._around()[::-1] for width in pair]
            x, padding = F.pad(x, widths, self.padding_mode), 0
        rest = (self.stride, padding, self.dilation, self.groups)
        return type(self)._apply(x, self.weight, self.bias, *rest)

    def extra_repr(self) -> str:
        size = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        rest = tree.options(self, ("in_channels", "out_channels", "kernel_size"))
        return f"{size}, {rest}" if rest else size


class Conv1d(_Conv):
    """Cross-correlation of x[N, C, L] with learned weights; see functional.conv1d.
    `padding` adds zeros, or with another `padding_mode` elements of x ("reflect", "replicate",
    "circular"; see functional.pad). Raises ShapeError for other channels, UsageError for an unknown
    mode.

    >>> nn.Conv1d(3, 4, 5)(weft.zeros((2, 3, 6))).shape
    (2, 4, 2)
    """

    _axes, _apply = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Cross-correlation of x[N, C, H, W] with learned weights; see functional.conv2d.
    `padding` adds zeros, or with another `padding_mode` elements of x ("reflect", "replicate",
    "circular"; see functional.pad). Raises ShapeError for other channels, UsageError for an unknown
    mode.

    >>> nn.Conv2d(3, 4, 5)(weft.zeros((2, 3, 6, 6))).shape
    (2, 4, 2, 2)
    """

    _axes, _apply = 2, staticmethod(F.conv2d)


class Conv3d(_Conv):
    """Cross-correlation of x[N, C, D, H, W] with learned weights; see functional.conv3d.
    `padding` adds zeros, or with another `padding_mode` elements of x ("reflect", "replicate",
    "circular"; see functional.pad). Raises ShapeError for other channels, UsageError for an unknown
    mode.

    >>> nn.Conv3d(3, 4, 5)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 4, 2, 2, 2)
    """

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
        self._make_weights(in_channels, out_channels // groups, out_channels, kernel, bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = kernel

    def forward(self, x: Tensor) -> Tensor:
        rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return type(self)._apply(x, self.weight, self.bias, *rest)


class ConvTranspose1d(_ConvTranspose):
    """The transposed convolution of x[N, C, L]; see functional.conv_transpose1d. Raises ShapeError
    for other channels.

    >>> nn.ConvTranspose1d(3, 4, 5)(weft.zeros((2, 3, 6))).shape
    (2, 4, 10)
    """

    _axes, _apply = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The transposed convolution of x[N, C, H, W]; see functional.conv_transpose2d. Raises
    ShapeError for other channels.

    >>> nn.ConvTranspose2d(3, 4, 5)(weft.zeros((2, 3, 6, 6))).shape
    (2, 4, 10, 10)
    """

    _axes, _apply = 2, staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The transposed convolution of x[N, C, D, H, W]; see functional.conv_transpose3d. Raises
    ShapeError for other channels.

    >>> nn.ConvTranspose3d(3, 4, 5)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 4, 10, 10, 10)
    """

    _axes, _apply = 3, staticmethod(F.conv_transpose3d)


# -- space ----------------------------------------------------------------------------------------


class Upsample(Module):
    """Images resized; see functional.interpolate. x is [N, C, ...] of floats. Raises UsageError for
    an unknown mode.

    >>> nn.Upsample(scale_factor=2)(weft.zeros((1, 3, 4, 5))).shape
    (1, 3, 8, 10)
    """

    def __init__(
        self, size: Sizes | None = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    ):  # fmt: skip
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        how = (self.mode, self.align_corners, self.recompute_scale_factor)
        return F.interpolate(x, self.size, self.scale_factor, *how)


class UpsamplingNearest2d(Upsample):
    """Upsample of x[N, C, H, W] with mode="nearest". Raises UsageError unless one of `size` and
    `scale_factor` is given.

    >>> nn.UpsamplingNearest2d(scale_factor=2)(weft.zeros((1, 3, 4, 5))).shape
    (1, 3, 8, 10)
    """

    def __init__(self, size: Sizes | None = None, scale_factor: Any = None):
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Upsample of x[N, C, H, W] with mode="bilinear" and aligned corners. Raises UsageError unless
    one of `size` and `scale_factor` is given.

    >>> nn.UpsamplingBilinear2d(scale_factor=2)(weft.zeros((1, 3, 4, 5))).shape
    (1, 3, 8, 10)
    """

    def __init__(self, size: Sizes | None = None, scale_factor: Any = None):
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class ChannelShuffle(Module):
    """The channels of `groups` runs dealt in turn; see functional.channel_shuffle. x is [N, C,
    ...]. Raises ShapeError for groups that do not divide C.

    >>> nn.ChannelShuffle(2)(weft.zeros((1, 4, 3, 3))).shape
    (1, 4, 3, 3)
    """

    def __init__(self, groups: int):
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class PixelShuffle(Module):
    """Channels turned into places; see functional.pixel_shuffle. x is [..., C r r, H, W] (Shi et
    al., arXiv:1609.05158). Raises ShapeError for other channels.

    >>> nn.PixelShuffle(2)(weft.zeros((1, 12, 4, 5))).shape
    (1, 3, 8, 10)
    """

    def __init__(self, upscale_factor: int):
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(Module):
    """Places turned into channels; see functional.pixel_unshuffle. x is [..., C, H r, W r]. Raises
    ShapeError where r does not divide.

    >>> nn.PixelUnshuffle(2)(weft.zeros((1, 3, 8, 10))).shape
    (1, 12, 4, 5)
    """

    def __init__(self, downscale_factor: int):
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)
