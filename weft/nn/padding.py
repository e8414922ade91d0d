"""Layers that make axes longer: by a value, or by elements of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from weft.core.errors import ShapeError
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.core import Tensor


class _Pad(Module):
    """The base of paddings. A number pads all sides alike; otherwise there is a (before, after)
    pair per axis, from the last one on. A negative width takes elements away."""

    _axes: ClassVar[int]
    _mode: ClassVar[str] = "constant"

    def __init__(self, padding: int | Sequence[int]):
        both = 2 * self._axes
        self.padding = (padding,) * both if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != both:
            raise ShapeError(
                f"{type(self).__name__}: {len(self.padding)} widths; expected 1 or {both}"
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """The base of paddings with a value."""

    def __init__(self, padding: int | Sequence[int], value: float):
        super().__init__(padding)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """`value` added before and after the last axis of x[..., L]. `padding` is one width, or a
    (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ConstantPad1d(1, 7.0)(weft.ones((1, 2, 3))).shape
    (1, 2, 5)
    """

    _axes = 1


class ConstantPad2d(_ConstantPad):
    """`value` added before and after the last two axes of x[..., H, W]. `padding` is one width,
    or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ConstantPad2d(1, 7.0)(weft.ones((1, 2, 3, 3))).shape
    (1, 2, 5, 5)
    """

    _axes = 2


class ConstantPad3d(_ConstantPad):
    """`value` added before and after the last three axes of x[..., D, H, W]. `padding` is one
    width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ConstantPad3d(1, 7.0)(weft.ones((1, 2, 3, 3, 3))).shape
    (1, 2, 5, 5, 5)
    """

    _axes = 3


class ZeroPad1d(_Pad):
    """Zeros added before and after the last axis of x[..., L]. `padding` is one width, or a
    (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ZeroPad1d(1)(weft.ones((1, 2, 3))).shape
    (1, 2, 5)
    """

    _axes = 1


class ZeroPad2d(_Pad):
    """Zeros added before and after the last two axes of x[..., H, W]. `padding` is one width,
    or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ZeroPad2d(1)(weft.ones((1, 2, 3, 3))).shape
    (1, 2, 5, 5)
    """

    _axes = 2


class ZeroPad3d(_Pad):
    """Zeros added before and after the last three axes of x[..., D, H, W]. `padding` is one
    width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ZeroPad3d(1)(weft.ones((1, 2, 3, 3, 3))).shape
    (1, 2, 5, 5, 5)
    """

    _axes = 3


class ReflectionPad1d(_Pad):
    """Elements mirrored at the ends of the last axis of x[..., L]. `padding` is one width, or a
    (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ReflectionPad1d(1)(weft.ones((1, 2, 3))).shape
    (1, 2, 5)
    """

    _axes = 1
    _mode = "reflect"


class ReflectionPad2d(_Pad):
    """Elements mirrored at the ends of the last two axes of x[..., H, W]. `padding` is one
    width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ReflectionPad2d(1)(weft.ones((1, 2, 3, 3))).shape
    (1, 2, 5, 5)
    """

    _axes = 2
    _mode = "reflect"


class ReflectionPad3d(_Pad):
    """Elements mirrored at the ends of the last three axes of x[..., D, H, W]. `padding` is one
    width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ReflectionPad3d(1)(weft.ones((1, 2, 3, 3, 3))).shape
    (1, 2, 5, 5, 5)
    """

    _axes = 3
    _mode = "reflect"


class ReplicationPad1d(_Pad):
    """The outer elements again before and after the last axis of x[..., L]. `padding` is one
    width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ReplicationPad1d(1)(weft.ones((1, 2, 3))).shape
    (1, 2, 5)
    """

    _axes = 1
    _mode = "replicate"


class ReplicationPad2d(_Pad):
    """The outer elements again before and after the last two axes of x[..., H, W]. `padding` is
    one width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.ReplicationPad2d(1)(weft.ones((1, 2, 3, 3))).shape
    (1, 2, 5, 5)
    """

    _axes = 2
    _mode = "replicate"


class ReplicationPad3d(_Pad):
    """The outer elements again before and after the last three axes of x[..., D, H, W].
    `padding` is one width, or a (before, after) pair per axis from the last one on. See
    weft.functional.pad.

    >>> nn.ReplicationPad3d(1)(weft.ones((1, 2, 3, 3, 3))).shape
    (1, 2, 5, 5, 5)
    """

    _axes = 3
    _mode = "replicate"


class CircularPad1d(_Pad):
    """Elements of the other end before and after the last axis of x[..., L]. `padding` is one
    width, or a (before, after) pair per axis from the last one on. See weft.functional.pad.

    >>> nn.CircularPad1d(1)(weft.ones((1, 2, 3))).shape
    (1, 2, 5)
    """

    _axes = 1
    _mode = "circular"


class CircularPad2d(_Pad):
    """Elements of the other end before and after the last two axes of x[..., H, W]. `padding`
    is one width, or a (before, after) pair per axis from the last one on. See
    weft.functional.pad.

    >>> nn.CircularPad2d(1)(weft.ones((1, 2, 3, 3))).shape
    (1, 2, 5, 5)
    """

    _axes = 2
    _mode = "circular"


class CircularPad3d(_Pad):
    """Elements of the other end before and after the last three axes of x[..., D, H, W].
    `padding` is one width, or a (before, after) pair per axis from the last one on. See
    weft.functional.pad.

    >>> nn.CircularPad3d(1)(weft.ones((1, 2, 3, 3, 3))).shape
    (1, 2, 5, 5, 5)
    """

    _axes = 3
    _mode = "circular"
