"""The array API's functions of signs and neighbours, and division toward zero: formulas over
primitives; operands as in elementwise.py."""

from __future__ import annotations

import math

from weft.tensor.core import Tensor
from weft.tensor.create import zeros_like
from weft.tensor.elementwise import Operand, as_tensor, derivative, float_pair, two
from weft.tensor.namespace import finfo


@derivative(lambda g, out, x, y: g, lambda g, out, x, y: zeros_like(g))
def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The float next to x1 in the direction of x2 (NaN when either is NaN, x2 where both are
    equal), after Rump, Zimmermann, Boldo and Melquiond, "Computing predecessor and successor in
    rounding to nearest" (2009)."""
    a, b = float_pair(x1, x2)
    info = finfo(a.dtype)
    unit, least, size = info.eps / 2, info.smallest_normal * info.eps, a.abs()
    grows = (a == 0) | ((a < b) == (a > 0))
    scale = (size < 1).where(1 / unit, 1.0).cast(a.dtype)  # the step must not be subnormal
    scaled = size * scale
    step = scaled * (unit * (1 + info.eps))
    moved = grows.where(scaled + step, scaled - step) / scale
    tiny = grows.where(size + least, size - least)
    moved = (size < 2 * info.smallest_normal).where(tiny, moved)
    moved = (size == math.inf).where(info.max, moved)
    moved = copysign(moved, (a == 0).where(b, a))
    return ((a == b) | b.isnan()).where(b, moved)


def signbit(x: Operand, /) -> Tensor:
    """True where the sign is set (bool): below zero, -0.0, or a NaN whose sign bit is set (WebGPU
    may lose that one)."""
    t = as_tensor(x)
    return t._as_number()._unary("signbit")


@derivative(lambda g, out, x, y: g * (x.sign() * out.sign()), lambda g, out, x, y: zeros_like(g))
def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """The magnitude of x1 with the sign of x2."""
    a, b = float_pair(x1, x2)
    return signbit(b).where(-a.abs(), a.abs())


def trunc(x: Operand, /) -> Tensor:
    """Rounded toward zero."""
    t = as_tensor(x)
    return (t < 0).where(t.ceil(), t.floor()) if t.dtype.is_float else t


def divide_toward_zero(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2 rounded toward zero, as C does, in the promoted dtype; integers by 0 give 0."""
    a, b = two(x1, x2)
    if isinstance(a, Tensor):
        return trunc(a / b) if _any_float(a, b) else a._binary("div", b)
    return trunc(a / b) if _any_float(a, b) else b._binary("div", a, True)


def _any_float(*operands: Operand) -> bool:
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return any(isinstance(x, float) for x in operands) or any(t.dtype.is_float for t in tensors)


def fmod(x1: Operand, x2: Operand, /) -> Tensor:
    """The remainder of division toward zero, with the sign of x1, as in C."""
    a, b = two(x1, x2)
    if not _any_float(a, b):
        whole: Tensor = a - divide_toward_zero(a, b) * b
        return whole
    left, right = float_pair(a, b)
    rest = left.abs() % right.abs()
    return signbit(left).where(-rest, rest)
