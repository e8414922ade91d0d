"""Pooling layers for sequences [N, C, L], images [N, C, H, W] and volumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.convolution import Padding, Sizes
from weft.tensor.core import Tensor
from weft.tensor.pooling import Wanted


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


class _LPPool(Module):
    """The norm of each window; stride defaults to the kernel."""

    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
        ceil_mode: bool = False,
    ):  # fmt: skip
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        pool = (self.norm_type, self.kernel_size, self.stride, self.ceil_mode)
        return type(self)._apply(x, *pool)


class _AdaptivePool(Module):
    """A pool with a given number of windows per axis, as equal as possible; None keeps a size."""

    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(self, output_size: Wanted):
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._apply(x, self.output_size)


class MaxPool1d(_MaxPool):
    """The largest in each window of x[N, C, L]; see functional.max_pool1d. Stride defaults to the
    kernel; `return_indices` also gives places.

    >>> nn.MaxPool1d(2)(weft.zeros((2, 3, 6))).shape
    (2, 3, 3)
    """

    _apply = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest in each window of x[N, C, H, W]; see functional.max_pool2d. Stride defaults to
    the kernel; `return_indices` also gives places.

    >>> nn.MaxPool2d(2)(weft.zeros((2, 3, 6, 6))).shape
    (2, 3, 3, 3)
    """

    _apply = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest in each window of x[N, C, D, H, W]; see functional.max_pool3d. Stride defaults to
    the kernel; `return_indices` also gives places.

    >>> nn.MaxPool3d(2)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 3, 3, 3, 3)
    """

    _apply = staticmethod(F.max_pool3d)


class _MaxUnpool(Module):
    """The inverse of _MaxPool with return_indices, of its kernel, stride and padding."""

    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0):
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(
        self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        pool = (self.kernel_size, self.stride, self.padding)
        return type(self)._apply(x, indices, *pool, output_size)


class MaxUnpool1d(_MaxUnpool):
    """The elements of x[N, C, L] at their indices in a longer line of zeros. See
    functional.max_unpool1d.

    >>> nn.MaxUnpool1d(2)(weft.ones((1, 1, 2)), weft.tensor([[[0, 3]]])).tolist()
    [[[1.0, 0.0, 0.0, 1.0]]]
    """

    _apply = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """The elements of x[N, C, H, W] at their indices in a larger image of zeros. See
    functional.max_unpool2d.

    >>> nn.MaxUnpool2d(2)(weft.ones((1, 1, 1, 1)), weft.tensor([[[[2]]]])).tolist()
    [[[[0.0, 0.0], [1.0, 0.0]]]]
    """

    _apply = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """The elements of x[N, C, D, H, W] at their indices in a larger volume of zeros. See
    functional.max_unpool3d.

    >>> nn.MaxUnpool3d(2)(weft.ones((1, 1, 1, 1, 1)), weft.tensor([[[[[2]]]]])).shape
    (1, 1, 2, 2, 2)
    """

    _apply = staticmethod(F.max_unpool3d)


class AvgPool1d(_AvgPool):
    """The average of each window of x[N, C, L]; see functional.avg_pool1d. x is floats; stride
    defaults to the kernel.

    >>> nn.AvgPool1d(2)(weft.zeros((2, 3, 6))).shape
    (2, 3, 3)
    """

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ):  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)

    _apply = staticmethod(F.avg_pool1d)


class AvgPool2d(_AvgPool):
    """The average of each window of x[N, C, H, W]; see functional.avg_pool2d. x is floats; stride
    defaults to the kernel.

    >>> nn.AvgPool2d(2)(weft.zeros((2, 3, 6, 6))).shape
    (2, 3, 3, 3)
    """

    _apply = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The average of each window of x[N, C, D, H, W]; see functional.avg_pool3d. x is floats;
    stride defaults to the kernel.

    >>> nn.AvgPool3d(2)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 3, 3, 3, 3)
    """

    _apply = staticmethod(F.avg_pool3d)


class LPPool1d(_LPPool):
    """(sum of x^p)^(1 / p), p being norm_type, over each window of x[N, C, L]. x is floats;
    stride defaults to the kernel. See functional.lp_pool1d.

    >>> nn.LPPool1d(2, 2)(weft.zeros((2, 3, 6))).shape
    (2, 3, 3)
    """

    _apply = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """(sum of x^p)^(1 / p), p being norm_type, over each window of x[N, C, H, W]. x is floats;
    stride defaults to the kernel. See functional.lp_pool2d.

    >>> nn.LPPool2d(2, 2)(weft.zeros((2, 3, 6, 6))).shape
    (2, 3, 3, 3)
    """

    _apply = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """(sum of x^p)^(1 / p), p being norm_type, over each window of x[N, C, D, H, W]. x is floats;
    stride defaults to the kernel. See functional.lp_pool3d.

    >>> nn.LPPool3d(2, 2)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 3, 3, 3, 3)
    """

    _apply = staticmethod(F.lp_pool3d)


class AdaptiveAvgPool1d(_AdaptivePool):
    """Averages over output_size windows of x[N, C, L]. See weft.functional.adaptive_avg_pool1d.

    >>> nn.AdaptiveAvgPool1d(2)(weft.zeros((2, 3, 6))).shape
    (2, 3, 2)
    """

    _apply = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptivePool):
    """Averages over output_size windows of x[N, C, H, W]. See weft.functional.adaptive_avg_pool2d.

    >>> nn.AdaptiveAvgPool2d(2)(weft.zeros((2, 3, 6, 6))).shape
    (2, 3, 2, 2)
    """

    _apply = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptivePool):
    """Averages over output_size windows of x[N, C, D, H, W]. See
    weft.functional.adaptive_avg_pool3d.

    >>> nn.AdaptiveAvgPool3d(2)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 3, 2, 2, 2)
    """

    _apply = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(_AdaptivePool):
    """An _AdaptivePool of maxima; with return_indices also the position of each in its image."""

    def __init__(self, output_size: Wanted, return_indices: bool = False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        return type(self)._apply(x, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest in each of output_size windows of x[N, C, L]. See
    weft.functional.adaptive_max_pool1d.

    >>> nn.AdaptiveMaxPool1d(2)(weft.zeros((2, 3, 6))).shape
    (2, 3, 2)
    """

    _apply = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest in each of output_size windows of x[N, C, H, W]. See
    weft.functional.adaptive_max_pool2d.

    >>> nn.AdaptiveMaxPool2d(2)(weft.zeros((2, 3, 6, 6))).shape
    (2, 3, 2, 2)
    """

    _apply = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest in each of output_size windows of x[N, C, D, H, W]. See
    weft.functional.adaptive_max_pool3d.

    >>> nn.AdaptiveMaxPool3d(2)(weft.zeros((2, 3, 6, 6, 6))).shape
    (2, 3, 2, 2, 2)
    """

    _apply = staticmethod(F.adaptive_max_pool3d)
