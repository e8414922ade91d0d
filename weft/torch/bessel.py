"""torch.special's Bessel functions: midpoints of their integrals near 0, Hankel's series far out;
K by its integral, whose integrand decays fast (Abramowitz and Stegun, chapter 9)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.tensor import elementwise as ew
from weft.tensor.core import Tensor
from weft.tensor.elementwise import wide
from weft.torch.elementwise import of_reals

_EULER = 0.5772156649015329
_NODES = (np.arange(64) + 0.5) * (math.pi / 64)
_FAR = 25.0  # from here on Hankel's series has all digits of float32
# Neumann's series of Y0 in J2, J4, ..., as a weight of each node
_NEUMANN = np.array([
    -sum((-1) ** k * math.cos(2 * k * t) / k for k in range(1, 25)) * 4 / math.pi / len(_NODES)
    for t in _NODES
])  # fmt: skip


def _hankel(order: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of J and Y in phase and out of phase, far from 0."""
    mu, over = 4.0 * order * order, 1.0 / (x * 8.0)
    term, inside, outside = x * 0 + 1.0, x * 0 + 1.0, x * 0
    for k in range(1, 8):
        term = term * over * ((mu - (2 * k - 1) ** 2) / k)
        sign = (-1.0) ** (k // 2)
        if k % 2:
            outside = outside + term * sign
        else:
            inside = inside + term * sign
    return inside, outside


def _waves(order: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """J and Y far from 0."""
    inside, outside = _hankel(order, x)
    phase = x - (order / 2 + 0.25) * math.pi
    size = (2.0 / (x * math.pi)).sqrt()
    c, s = phase.cos(), phase.sin()
    return size * (inside * c - outside * s), size * (inside * s + outside * c)


def _near(x: Tensor, weigh: Callable[[float, int], float], sine: bool) -> Tensor:
    """The sum over nodes of cos (or sin) of x sin(node), weighted."""
    total = x * 0
    for i, t in enumerate(_NODES):
        wave = x * math.sin(t)
        total = total + (wave.sin() if sine else wave.cos()) * weigh(float(t), i)
    return total


def _first(order: int) -> Callable[[Tensor], Tensor]:
    def weigh(t: float, i: int) -> float:
        return (math.sin(t) if order else 1.0) / len(_NODES)

    @wide
    def function(x: Tensor) -> Tensor:
        size = x.abs()
        near = _near(size.minimum(_FAR), weigh, bool(order))
        made = (size > _FAR).where(_waves(order, size.maximum(_FAR))[0], near)
        made = (size == math.inf).where(0.0, made)
        return ew.sign(x) * made if order else made

    return function


_J0, _J1 = _first(0), _first(1)


@wide
def _second0(x: Tensor) -> Tensor:
    near = (x > 0).where(x.minimum(_FAR), 1.0)
    log = (near * 0.5).log() + _EULER
    made = log * _J0(near) * (2 / math.pi) + _near(near, lambda t, i: float(_NEUMANN[i]), False)
    return _outside(x, (x > _FAR).where(_waves(0, x.maximum(_FAR))[1], made))


@wide
def _second1(x: Tensor) -> Tensor:
    near = (x > 0).where(x.minimum(_FAR), 1.0)
    log = (near * 0.5).log() + _EULER
    slope = _near(near, lambda t, i: float(_NEUMANN[i]) * math.sin(t), True)
    made = (log * _J1(near) - _J0(near) / near) * (2 / math.pi) + slope
    return _outside(x, (x > _FAR).where(_waves(1, x.maximum(_FAR))[1], made))


def _outside(x: Tensor, made: Tensor) -> Tensor:
    """Y: -inf at 0, NaN below, 0 at infinity."""
    made = (x == math.inf).where(0.0, made)
    return (x > 0).where(made, (x == 0).where(-math.inf, math.nan).cast(made.dtype))


def _third(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    """K (scaled: exp(x) K): the integral of exp(-x cosh t) cosh(order t), by trapezoids."""
    step, count = 0.3, 80

    @wide
    def function(x: Tensor) -> Tensor:
        held = (x > 0).where(x, 1.0)
        total = held * 0 + 0.5
        for k in range(1, count):
            t = k * step
            rise = min(math.cosh(t) - 1.0, 1e30)
            total = total + (held * -rise).exp() * (math.cosh(t) if order else 1.0)
        # beyond, the integrand is narrower than the steps
        wide_x = held.maximum(9.0)
        term, series, over = wide_x * 0 + 1.0, wide_x * 0 + 1.0, 1.0 / (wide_x * 8.0)
        for k in range(1, 9):
            term = term * over * ((4.0 * order * order - (2 * k - 1) ** 2) / k)
            series = series + term
        far = series * (math.pi / 2 / wide_x).sqrt()
        made = (held > 9.0).where(far, total * step)
        made = made if scaled else made * (-held).exp()
        return (x > 0).where(made, (x == 0).where(math.inf, math.nan).cast(made.dtype))

    return function


bessel_j0, bessel_j1 = of_reals(_J0, "bessel_j0"), of_reals(_J1, "bessel_j1")
bessel_y0, bessel_y1 = of_reals(_second0, "bessel_y0"), of_reals(_second1, "bessel_y1")
modified_bessel_k0 = of_reals(_third(0, False), "modified_bessel_k0")
modified_bessel_k1 = of_reals(_third(1, False), "modified_bessel_k1")
scaled_modified_bessel_k0 = of_reals(_third(0, True), "scaled_modified_bessel_k0")
scaled_modified_bessel_k1 = of_reals(_third(1, True), "scaled_modified_bessel_k1")


@wide
def _spherical(x: Tensor) -> Tensor:
    none = x == 0
    held = none.where(1.0, x)
    made = none.where(1.0, held.sin() / held)
    return (x.abs() == math.inf).where(0.0, made)


spherical_bessel_j0 = of_reals(_spherical, "spherical_bessel_j0")
for _f in (bessel_j0, bessel_j1, bessel_y0, bessel_y1, modified_bessel_k0, modified_bessel_k1,
           scaled_modified_bessel_k0, scaled_modified_bessel_k1, spherical_bessel_j0):  # fmt: skip
    _f.__doc__ = f"The function {_f.__name__} of real numbers."
