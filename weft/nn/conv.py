"""Convolution and pooling layers for images [N, C, H, W] and sequences [N, C, L]."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.errors import ShapeError
from weft.nn import init
from weft.nn.layers import empty
from weft.nn.module import Module, lacks
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.spatial import Sizes


class _Conv(Module):
    """What convolutions share: weight [O, C / groups, *kernel] and bias [O], both uniform in
    +- 1/sqrt(inputs per output)."""

    _axes: int  # of the kernel

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros",
    ):  # fmt: skip
        lacks(self, padding_mode=None if padding_mode == "zeros" else padding_mode)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        k, inputs, outputs = kernel_size, in_channels, out_channels
        kernel = (k,) * self._axes if isinstance(k, int) else tuple(k)
        if groups < 1 or inputs % groups or outputs % groups:
            raise ShapeError(
                f"{type(self).__name__}: {groups} groups of {inputs} and {outputs} channels; both "
                "must divide"
            )
        self.weight = empty(outputs, inputs // groups, *kernel)
        self.bias = empty(outputs) if bias else None
        self._shown = f"{inputs}, {outputs}, kernel_size={kernel}"
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values."""
        bound = 1.0 / math.sqrt(max(init.fans(self.weight)[0], 1))
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform_(p, -bound, bound)

    def extra_repr(self) -> str:
        return self._shown


class Conv2d(_Conv):
    """Cross-correlation of x[N, C, H, W] with learned weights; see functional.conv2d."""

    _axes = 2

    def forward(self, x: Tensor) -> Tensor:
        rest = (self.stride, self.padding, self.dilation, self.groups)
        return F.conv2d(x, self.weight, self.bias, *rest)


class Conv1d(_Conv):
    """Cross-correlation of x[N, C, L] with learned weights; see functional.conv1d."""

    _axes = 1

    def forward(self, x: Tensor) -> Tensor:
        rest = (self.stride, self.padding, self.dilation, self.groups)
        return F.conv1d(x, self.weight, self.bias, *rest)


class MaxPool2d(Module):
    """The largest in each window; stride defaults to the kernel."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        dilation: Sizes = 1, return_indices: bool = False, ceil_mode: bool = False,
    ):  # fmt: skip
        lacks(self, return_indices=return_indices)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        pool = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return F.max_pool2d(x, *pool)


class AvgPool2d(Module):
    """The average of each window; stride defaults to the kernel."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):  # fmt: skip
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        counted = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, *counted)


class AdaptiveAvgPool2d(Module):
    """The average over H' x W' windows, as equal as can be; None keeps a size."""

    def __init__(self, output_size: int | Sequence[int | None] | None):
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.output_size)
