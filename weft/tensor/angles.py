"""The array API's angles and hyperbolic functions (Python array API standard 2024.12), as
`weft.atan2`, ...: formulas over primitives, computed in float32 for float16 and bfloat16."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.tensor.core import Tensor
from weft.tensor.elementwise import (
    Operand,
    derivative,
    expm1,
    float_pair,
    hypot,
    log1p,
    reals,
    wide,
)
from weft.tensor.signs import copysign, signbit


def _sign(t: Tensor) -> Tensor:
    """-1 or 1, by the sign bit."""
    return signbit(t).where(-1.0, 1.0).cast(t.dtype)


@wide
@derivative(lambda g, out, x: g * (out * out + 1.0))
def tan(x: Operand, /) -> Tensor:
    """The tangent of radians."""
    t = reals(x)
    return t.sin() / t.cos()


@wide
@derivative(lambda g, out, x: g / (x * x + 1.0))
def atan(x: Operand, /) -> Tensor:
    """The angle in [-π/2, π/2] whose tangent is x: atan(x) = 2 atan(x / (1 + sqrt(1 + x²)))
    brings x near 0, where the series of odd powers converges fast (Euler)."""
    t = reals(x)
    halvings, terms = (3, 10) if t.dtype == dt.float64 else (2, 7)
    far = t.abs() > 1.0
    y = far.where(1.0 / (t == 0).where(1.0, t), t)
    for _ in range(halvings):
        y = y / ((y * y + 1.0).sqrt() + 1.0)
    z = y * y
    series = z * 0.0 + (-1.0) ** (terms - 1) / (2 * terms - 1)
    for k in reversed(range(terms - 1)):
        series = series * z + (-1.0) ** k / (2 * k + 1)
    angle = series * y * float(2**halvings)
    return far.where(copysign(math.pi / 2, t) - angle, angle)


def _turn(side: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """side / (x² + y²) without overflow; 0 where both are."""
    radius = hypot(x, y)
    radius = (radius == 0).where(math.inf, radius)
    return side / radius / radius


@wide
@derivative(lambda g, out, y, x: g * _turn(x, y, x), lambda g, out, y, x: -g * _turn(y, y, x))
def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle in [-π, π] of the point with ordinate x1 and abscissa x2."""
    y, x = float_pair(x1, x2)
    both = (x.abs() == math.inf) & (y.abs() == math.inf)
    nowhere = (x == 0) & (y == 0)
    sign = _sign(y)
    below = nowhere.where(1.0, x * _sign(x))
    angle = atan(both.where(1.0, y * sign / below))  # The angle is in [0, π/2].
    angle = signbit(x).where(math.pi - angle, angle)
    return (x.isnan() | y.isnan()).where(math.nan, angle * sign)


@wide
@derivative(lambda g, out, x: g / ((1.0 - x) * (1.0 + x)).sqrt())
def asin(x: Operand, /) -> Tensor:
    """The angle in [-π/2, π/2] whose sine is x; NaN outside [-1, 1]."""
    t = reals(x)
    return atan2(t, ((1.0 - t) * (1.0 + t)).sqrt())


@wide
@derivative(lambda g, out, x: -g / ((1.0 - x) * (1.0 + x)).sqrt())
def acos(x: Operand, /) -> Tensor:
    """The angle in [0, π] whose cosine is x; NaN outside [-1, 1]."""
    t = reals(x)
    return atan2(((1.0 - t) * (1.0 + t)).sqrt(), t)


@wide
@derivative(lambda g, out, x: g * cosh(x))
def sinh(x: Operand, /) -> Tensor:
    """The hyperbolic sine, (e - 1 / (e + 1) + 1) / 2 with e = expm1(|x|)."""
    t = reals(x)
    sign = _sign(t)
    a = t * sign
    e = expm1(a)
    large = a > 20.0
    half = (a * 0.5).exp()  # exp(x) overflows before exp(x) / 2 does
    middle = (e + e / (large.where(0.0, e) + 1.0)) * 0.5
    return large.where(half * 0.5 * half, middle) * sign


@wide
@derivative(lambda g, out, x: g * sinh(x))
def cosh(x: Operand, /) -> Tensor:
    """The hyperbolic cosine."""
    half = (reals(x).abs() * 0.5).exp()
    return half * 0.5 * half + 0.5 / half / half


@wide
@derivative(lambda g, out, x: g / hypot(x, 1.0))
def asinh(x: Operand, /) -> Tensor:
    """The inverse hyperbolic sine, log1p(a + a² / (1 + sqrt(a² + 1))) with a = |x|."""
    t = reals(x)
    sign = _sign(t)
    a = t * sign
    large = a > 1e8
    near = large.where(1.0, a)
    middle = log1p(near + near * near / ((near * near + 1.0).sqrt() + 1.0))
    return large.where(large.where(a, 1.0).log() + math.log(2), middle) * sign


@wide
@derivative(lambda g, out, x: g / ((x - 1.0).sqrt() * (x + 1.0).sqrt()))
def acosh(x: Operand, /) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    t = reals(x)
    large = t > 1e8
    more = large.where(1.0, t) - 1.0
    middle = log1p(more + (more * (more + 2.0)).sqrt())
    far = large.where(t, 1.0).log() + math.log(2)
    return (t < 1.0).where(math.nan, large.where(far, middle))


@wide
@derivative(lambda g, out, x: g / ((1.0 - x) * (1.0 + x)))
def atanh(x: Operand, /) -> Tensor:
    """The inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
    t = reals(x)
    sign = _sign(t)
    a = t * sign
    return log1p(2.0 * a / (1.0 - a)) * 0.5 * sign
