"""Pools of maxima at random places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from weft.core.errors import UsageError
from weft.nn import tree
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.convolution import Sizes
from weft.tensor.core import Tensor
from weft.tensor.fractional import Ratios, ratios


class _FractionalMaxPool(Module):
    """The largest of windows that lie at random, of a number or a ratio of the input's size."""

    _apply: ClassVar[Callable[..., Any]]

    def __init__(
        self, kernel_size: Sizes, output_size: Sizes | None = None, output_ratio: Ratios = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ):  # fmt: skip
        if (output_size is None) == (output_ratio is None):
            raise UsageError(f"{type(self).__name__}: give either output_size or output_ratio")
        if output_ratio is not None:
            ratios(type(self).__name__, output_ratio, int(type(self).__name__[-2]))
        self.kernel_size, self.output_size = kernel_size, output_size
        self.output_ratio, self.return_indices = output_ratio, return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, x: Tensor) -> Any:
        how = (self.output_size, self.output_ratio, self.return_indices, self._random_samples)
        return type(self)._apply(x, self.kernel_size, *how)

    def extra_repr(self) -> str:
        return tree.options(self, ("_random_samples",))


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest in each of output_size windows of x[N, C, H, W], which lie at random (Graham,
    arXiv:1412.6071). See functional.fractional_max_pool2d.

    >>> nn.FractionalMaxPool2d(2, output_ratio=0.5)(weft.zeros((2, 3, 8, 6))).shape
    (2, 3, 4, 3)
    """

    _apply = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest in each of output_size windows of x[N, C, D, H, W], which lie at random. See
    functional.fractional_max_pool3d.

    >>> nn.FractionalMaxPool3d(2, output_size=2)(weft.zeros((2, 3, 4, 5, 6))).shape
    (2, 3, 2, 2, 2)
    """

    _apply = staticmethod(F.fractional_max_pool3d)
