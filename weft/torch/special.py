"""torch.special, and the functions of torch that belong to it: formulas over weft's primitives.

Sources: Abramowitz and Stegun for the gamma function's and the Bessel functions' series; M. Giles,
"Approximating the erfinv function" (2010), for its polynomials; erfcx is a sum of midpoints of its
integral (Chiarella and Reichel 1968).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.tensor import elementwise as ew
from weft.tensor.core import Tensor
from weft.tensor.elementwise import derivative, wide
from weft.torch import elementwise, reductions, statistics
from weft.torch.bessel import (
    bessel_j0 as bessel_j0,
    bessel_j1 as bessel_j1,
    bessel_y0 as bessel_y0,
    bessel_y1 as bessel_y1,
    modified_bessel_k0 as modified_bessel_k0,
    modified_bessel_k1 as modified_bessel_k1,
    scaled_modified_bessel_k0 as scaled_modified_bessel_k0,
    scaled_modified_bessel_k1 as scaled_modified_bessel_k1,
    spherical_bessel_j0 as spherical_bessel_j0,
)
from weft.torch.elementwise import of_reals, of_two_reals
from weft.torch.gamma import (
    digamma as digamma,
    gammaln as gammaln,
    lgamma as lgamma,
    multigammaln as multigammaln,
    mvlgamma as mvlgamma,
    polygamma as polygamma,
    polynomial,
    psi as psi,
    zeta as zeta,
)
from weft.torch.polynomials import (
    chebyshev_polynomial_t as chebyshev_polynomial_t,
    chebyshev_polynomial_u as chebyshev_polynomial_u,
    chebyshev_polynomial_v as chebyshev_polynomial_v,
    chebyshev_polynomial_w as chebyshev_polynomial_w,
    hermite_polynomial_h as hermite_polynomial_h,
    hermite_polynomial_he as hermite_polynomial_he,
    laguerre_polynomial_l as laguerre_polynomial_l,
    legendre_polynomial_p as legendre_polynomial_p,
    shifted_chebyshev_polynomial_t as shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u as shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v as shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w as shifted_chebyshev_polynomial_w,
)
from weft.torch.tensor import floats, functions, public, real

# -- the error function


@wide
def _erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x)."""
    h, size = 0.5, x.abs()
    t = (np.arange(14) + 0.5) * h
    total = size * 0
    for each in t:
        total = total + float(math.exp(-each * each)) / (size * size + float(each * each))
    near = size.minimum(9.0)  # beyond, the second term is 0
    made = total * size * (2 * h / math.pi)
    made = made + (near * near - near * (2 * math.pi / h)).exp() * 2.0 / (
        (near * (-2 * math.pi / h)).exp() + 1.0
    )
    return (x < 0).where((x * x).exp() * 2.0 - made, made)


erfcx = of_reals(
    derivative(lambda g, out, x: g * (x * out * 2.0 - 2.0 / math.sqrt(math.pi)))(_erfcx), "erfcx"
)


@wide
def _tail(w: Tensor) -> Tensor:
    """erfinv(x) / x by w = -log(1 - x^2)."""
    near = polynomial(w - 2.5, (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06,
                           0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
                           1.50140941))  # fmt: skip
    far = polynomial(w.maximum(5.0).sqrt() - 3.0, (
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
        -0.0076224613, 0.00943887047, 1.00167406, 2.83297682))  # fmt: skip
    made: Tensor = (w < 5.0).where(near, far)
    return made


@wide
@derivative(lambda g, out, x: g * ((out * out).exp() * (math.sqrt(math.pi) / 2)))
def _erfinv(x: Tensor) -> Tensor:
    """The inverse of erf."""
    edge = x.abs() == 1.0
    held = edge.where(0.0, x)
    out = held * _tail(-((1.0 - held) * (1.0 + held)).log())
    if x.dtype == dt.float64:
        for _ in range(3):
            out = out - (out.erf() - held) * (out * out).exp() * (math.sqrt(math.pi) / 2)
    return edge.where(x * math.inf, out)


erfinv = of_reals(_erfinv, "erfinv")


@wide
def _ndtr(x: Tensor) -> Tensor:
    half = x * math.sqrt(0.5)
    tail = (-(half * half)).exp() * _erfcx(half.abs()) * 0.5
    return (x < 0).where(tail, 1.0 - tail)


def _bell(x: Tensor) -> Tensor:
    """The normal density."""
    return (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))


ndtr = of_reals(derivative(lambda g, out, x: g * _bell(x))(_ndtr), "ndtr")


@wide
@derivative(lambda g, out, x: g / _bell(out))
def _ndtri(p: Tensor) -> Tensor:
    inside = (p > 0) & (p < 1)
    upper = p > 0.5
    tail = inside.where(upper.where(1.0 - p, p), 0.5)
    x = (tail * 2.0 - 1.0) * _tail(-(tail * (1.0 - tail) * 4.0).log().maximum(-16.0)) * math.sqrt(2)
    log = tail.log()
    far = tail < 1e-7  # too far out for the polynomials
    size = (log * -2.0).sqrt()
    out = far.where(-(size - (size.log() * 2.0 + math.log(2 * math.pi)) / (size * 2.0)), x)
    for _ in range(4):
        have = _log_ndtr(out)
        step = (have - log) * (out * out * 0.5 + have).exp() * math.sqrt(2 * math.pi)
        out = out - (step if p.dtype == dt.float64 else far.where(step, 0.0))
    out = upper.where(-out, out)
    edge = (p == 0).where(-math.inf, (p == 1).where(math.inf, math.nan))
    return inside.where(out, edge.cast(out.dtype))


ndtri = of_reals(_ndtri, "ndtri")


@wide
@derivative(lambda g, out, x: g * (x * x * -0.5 - out).exp() * (1 / math.sqrt(2 * math.pi)))
def _log_ndtr(x: Tensor) -> Tensor:
    half = x.minimum(0.0) * math.sqrt(0.5)
    low = (_erfcx(-half) * 0.5).log() - half * half
    return (x < 0).where(low, ew.log1p(-_ndtr(-x)))


log_ndtr = of_reals(_log_ndtr, "log_ndtr")


# -- logarithms


@public
def xlogy(input: Any, other: Any) -> Tensor:
    """input * log(other); 0 where input is 0, NaN where other is."""
    x, y = floats(input, other)
    none = (x == 0) & (
        (y <= 0) | (y == math.inf)
    )  # elsewhere its derivative by input is log(other)
    return none.where(0.0, x * none.where(1.0, y).log()).cast(x.dtype)


@public
def xlog1py(input: Any, other: Any) -> Tensor:
    """input * log(1 + other); 0 where input is 0, NaN where other is."""
    x, y = floats(input, other)
    none = (x == 0) & ((y <= -1) | (y == math.inf))
    return none.where(0.0, x * ew.log1p(none.where(0.0, y))).cast(x.dtype)


@public
def entr(input: Tensor) -> Tensor:
    """-input * log(input); 0 at 0, -inf below."""
    x = real(input)
    inside = x > 0
    made = -x * inside.where(x, 1.0).log()
    return inside.where(made, (x == 0).where(0.0, (x < 0).where(-math.inf, x)))


@wide
def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    scale = math.log(2)
    return ew.logaddexp(x * scale, y * scale) * (1 / scale)


logaddexp2 = of_two_reals(_logaddexp2, "logaddexp2")


@wide
def _sinc(x: Tensor) -> Tensor:
    none = x == 0
    t = none.where(1.0, x) * math.pi
    return none.where(1.0, t.sin() / t)


def _sinc_slope(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    none = x == 0
    t = none.where(1.0, x)
    return g * none.where(0.0, ((t * math.pi).cos() - out) / t)


sinc = of_reals(derivative(_sinc_slope)(_sinc), "sinc")


# -- Bessel functions


def _scaled_bessel(order: int) -> Callable[..., Tensor]:
    """exp(-|x|) I(x) of order 0 or 1: midpoints of its integral, far out its series in 1 / x."""
    nodes = (np.arange(32) + 0.5) * (math.pi / 32)

    @wide
    def function(x: Tensor) -> Tensor:
        size = x.abs()
        near, far = size.minimum(100.0), size.maximum(100.0)
        total = size * 0
        for angle in nodes[:16]:  # the other half of them by symmetry
            c = math.cos(angle)
            wave, back = (near * (c - 1.0)).exp(), near * (-2.0 * c)
            pair = -ew.expm1(back) * c if order else back.exp() + 1.0
            total = total + wave * pair * (1 / len(nodes))
        term, series = far * 0 + 1.0, far * 0 + 1.0
        for k in range(1, 5):
            term = term * ((2 * k - 1) ** 2 - 4 * order * order) / (far * (8.0 * k))
            series = series + term
        made = (size > 100.0).where(series / (far * (2 * math.pi)).sqrt(), total)
        return ew.sign(x) * made if order else made

    return function


_I0E, _I1E = _scaled_bessel(0), _scaled_bessel(1)
i0e = of_reals(derivative(lambda g, out, x: g * (_I1E(x) - ew.sign(x) * out))(_I0E), "i0e")


def _i1e_slope(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    none = x == 0
    return g * none.where(0.5, _I0E(x) - out * (ew.sign(x) + 1.0 / none.where(1.0, x)))


i1e = of_reals(derivative(_i1e_slope)(_I1E), "i1e")


def _unscaled(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return wide(lambda x: of(x) * x.abs().exp())


def _i1_slope(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    none = x == 0
    return g * none.where(0.5, _unscaled(_I0E)(x) - out / none.where(1.0, x))


modified_bessel_i0 = of_reals(_unscaled(_I0E), "modified_bessel_i0")
modified_bessel_i1 = of_reals(_unscaled(_I1E), "modified_bessel_i1")
i0 = of_reals(derivative(lambda g, out, x: g * _unscaled(_I1E)(x))(_unscaled(_I0E)), "i0")
i1 = of_reals(derivative(_i1_slope)(_unscaled(_I1E)), "i1")


# -- torch.special's names of functions of torch

expm1, exp2, erf, erfc = elementwise.expm1, elementwise.exp2, elementwise.erf, elementwise.erfc
expit, log1p, round = elementwise.sigmoid, elementwise.log1p, elementwise.round
logit, logsumexp = elementwise.logit, reductions.logsumexp
softmax, log_softmax = reductions.softmax, reductions.log_softmax
deg2rad = statistics.deg2rad


def __dir__() -> list[str]:
    return functions(globals(), "deg2rad lgamma logaddexp2 mvlgamma")
