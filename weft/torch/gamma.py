"""The gamma function's logarithm and its derivatives (Abramowitz and Stegun, chapter 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.tensor import angles, elementwise as ew
from weft.tensor.core import Tensor
from weft.tensor.elementwise import derivative, wide
from weft.torch.elementwise import of_reals
from weft.torch.tensor import floats, public, real

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)  # B2, B4, ...
_SHIFT = 8  # from here on the asymptotic series have all digits of float32


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, the highest first."""
    made = x * 0 + coefficients[0]
    for c in coefficients[1:]:
        made = made * x + c
    return made


# -- the gamma function


def _zeta_less_one(s: int) -> float:
    """Riemann's zeta at a whole number, less 1."""
    n = 20.0
    head = sum(k ** -float(s) for k in range(2, 20))
    return float(head + n ** (1 - s) / (s - 1) + n**-s / 2 + s * n ** (-s - 1) / 12)


def _log_near_zeros(t: Tensor) -> Tensor:
    """log gamma of 0.5 to 2.5, by its series at 2: there and at 1 it is 0."""
    upper = t >= 1.5
    z = upper.where(t - 2.0, t - 1.0)
    last = 30 if t.dtype == dt.float64 else 15
    terms = [(-1) ** k * _zeta_less_one(k) / k for k in range(last, 1, -1)]
    made = (polynomial(z, terms) * z + (1.0 - 0.5772156649015329)) * z
    return upper.where(made, made - ew.log1p(upper.where(0.0, z)))


@wide
@derivative(lambda g, out, x: g * _digamma(x))
def _lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|, by Stirling's series."""
    mirrored = x < 0.5
    t = mirrored.where(1.0 - x, x)
    near = _log_near_zeros(t.minimum(2.5))
    product, high = t * 0 + 1.0, t
    for _ in range(_SHIFT):
        low = high < _SHIFT
        product = low.where(product * high, product)
        high = low.where(high + 1.0, high)
    z = 1.0 / (high * high)
    terms = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:5], 1)]
    series = polynomial(z, terms[::-1]) / high
    made = (high - 0.5) * high.log() - high + 0.5 * math.log(2 * math.pi) + series - product.log()
    made = (t < 2.5).where(near, made)
    fraction = x - x.round()
    turned = math.log(math.pi) - (fraction * math.pi).sin().abs().log() - made
    out: Tensor = mirrored.where(turned, made)
    out = ((x <= 0) & (fraction == 0)).where(math.inf, out)
    return (x.abs() == math.inf).where(math.inf, out)


@wide
@derivative(lambda g, out, x: g * _hurwitz(2, x))
def _digamma(x: Tensor) -> Tensor:
    """The derivative of log gamma."""
    mirrored = x < 0.0
    t = mirrored.where(1.0 - x, x)
    total, high = t * 0, t
    for _ in range(_SHIFT):
        low = high < _SHIFT
        total = low.where(total - 1.0 / high, total)
        high = low.where(high + 1.0, high)
    z = 1.0 / (high * high)
    terms = [-b / (2 * k) for k, b in enumerate(_BERNOULLI[:6], 1)]
    made = total + high.log() - 0.5 / high + polynomial(z, terms[::-1]) * z
    fraction = x - x.round()
    made = mirrored.where(made - math.pi / angles.tan(fraction * math.pi), made)
    made = (x == math.inf).where(math.inf, made)
    pole = (x < 0) & (x == x.floor())
    return pole.where(math.nan, (x == 0).where(-1.0 / x, made))


def _hurwitz(s: int, q: Tensor) -> Tensor:
    """The sum of (q + k)^-s over k >= 0, for a whole s > 1 (Euler and Maclaurin)."""

    def slope(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
        return g * (_hurwitz(s + 1, x) * -float(s))

    @wide
    @derivative(slope)
    def hurwitz(x: Tensor) -> Tensor:
        total, at = x * 0, x
        for k in range(24):
            low = at <= 9.0 if k >= 9 else at == at
            total = total + low.where((1.0 / low.where(at, 1.0)) ** s, 0.0)
            at = low.where(at + 1.0, at)
        over = 1.0 / at
        total = total + over ** (s - 1) * (1.0 / (s - 1)) + over**s * 0.5
        factor = float(s)
        for k, b in enumerate(_BERNOULLI[:5], 1):
            total = total + over ** (s + 2 * k - 1) * (b * factor / math.factorial(2 * k))
            factor *= (s + 2 * k - 1) * (s + 2 * k)
        return ((x <= 0) & (x == x.floor())).where(math.inf, total)

    return hurwitz(q)


lgamma = of_reals(_lgamma, "lgamma")
digamma = of_reals(_digamma, "digamma")
gammaln, psi = lgamma, digamma


@public
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    x = real(input)
    if n < 0:
        raise UsageError(f"polygamma: n is {n}; expected 0 or more")
    if n == 0:
        return _digamma(x)
    return _hurwitz(n + 1, x) * float((-1) ** (n + 1) * math.factorial(n))


@public
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of p dimensions."""
    if p < 1:
        raise UsageError(f"mvlgamma: p {p}; expected 1 or more")
    x = real(input)
    made = x * 0 + p * (p - 1) / 4 * math.log(math.pi)
    for j in range(p):
        made = made + _lgamma(x - j / 2)
    return made


multigammaln = mvlgamma


@public
def zeta(input: Any, other: Any) -> Tensor:
    """The sum of (other + k)^-input over k >= 0 (Hurwitz), by Euler's and Maclaurin's series."""
    s, q = floats(input, other)
    shape = np.broadcast_shapes(s.shape, q.shape)
    wide = dt.compute_dtype(s.dtype)
    s, q = s.cast(wide).expand(shape), q.cast(wide).expand(shape)
    total, at = q * 0, q
    for k in range(24):
        low = at <= 9.0 if k >= 9 else at == at
        total = total + low.where(low.where(at, 1.0) ** (-s), 0.0)
        at = low.where(at + 1.0, at)
    power = at ** (-s)
    total = total + power * at / (s - 1.0) + power * 0.5
    factor = s * power / at
    for k, b in enumerate(_BERNOULLI[:5], 1):
        total = total + factor * (b / math.factorial(2 * k))
        factor = factor * ((s + (2.0 * k - 1.0)) * (s + 2.0 * k)) / (at * at)
    pole = (q <= 0) & (q == q.floor())
    total = (pole | (s == 1)).where(math.inf, total)
    undefined = (s < 1) | ((q <= 0) & ~pole & (s != s.floor()))
    made: Tensor = undefined.where(math.nan, total)
    return made.cast(floats(input, other)[0].dtype)
