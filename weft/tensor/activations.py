"""Activation functions: each formula once, with PyTorch's values and derivatives.

Every function has a derivative of its own, because that of its formula belongs to no side at a kink
and is NaN where a branch that is not taken overflows. Where PyTorch's derivative of a number is NaN
(an infinity times 0), these give the limit. float16 and bfloat16 are computed in float32 and
rounded once. Unless said otherwise a function takes floats of any shape and returns their shape and
dtype; integers count as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft import ops
from weft.core.errors import UsageError
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.tensor.elementwise import derivative, expm1, log1p, shared, wide
from weft.tensor.random import rand

_FAR = 120.0  # beyond, a smooth step in float32 is 0 or 1, and no 0 * inf may arise


def curve(
    x: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """value(x), computed in float32 for narrow floats, whose gradient for a gradient g of the
    result is slope(g, x)."""

    def activation(x: Tensor) -> Tensor:
        return value(x)

    return wide(derivative(lambda g, out, x: slope(g, x))(activation))(x)


def _open(x: Tensor, low: float, high: float) -> Tensor:
    """True where x is between two bounds, exclusive."""
    return (x > low) & (x < high)


# -- straight pieces


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between two bounds, of floats or integers; on a bound the gradient is 0, of NaN it is 1.
    Raises UsageError for a lower bound above the other.

    >>> F.hardtanh(weft.tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    if min_val > max_val:
        raise UsageError(f"hardtanh: the bounds {min_val} and {max_val}; give the lower one first")
    if not x.dtype.is_float:
        return x.clip(min_val, max_val)
    return curve(
        x,
        lambda x: x.clip(min_val, max_val),
        lambda g, x: ((x <= min_val) | (x >= max_val)).where(0.0, g),
    )


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6), of floats or integers.

    >>> F.relu6(weft.tensor([-1.0, 7.0])).tolist()
    [0.0, 6.0]
    """
    return hardtanh(x, 0, 6)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x above 0, elsewhere negative_slope x (Maas et al. 2013).

    >>> F.leaky_relu(weft.tensor([-4.0, 2.0]), 0.25).tolist()
    [-1.0, 2.0]
    """
    return curve(
        x,
        lambda x: (x > 0).where(x, x * negative_slope),
        lambda g, x: (x > 0).where(g, g * negative_slope),
    )


def rrelu(
    x: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, key: Any = None
) -> Tensor:
    """x from 0 on, below a x. In training each a is uniform in lower..upper, drawn with `key` as
    dropout draws; otherwise a is their mean (Xu et al., arXiv:1505.00853).

    >>> F.rrelu(weft.tensor([-4.0, 2.0]), 0.25, 0.75).tolist()
    [-2.0, 2.0]
    """
    if lower > upper:
        raise UsageError(f"rrelu: the bounds {lower} and {upper}; give the lower one first")
    if not training:
        return leaky_relu(x, (lower + upper) / 2)
    slopes = rand(x.shape, key=key, device=place(x)) * (upper - lower) + lower
    return _sloped(x, slopes.cast(x.dtype))


@wide
@derivative(
    lambda g, out, x, weight: (x > 0).where(g, g * weight),
    lambda g, out, x, weight: (x > 0).where(0.0, g * x),
)
def _sloped(x: Tensor, weight: Tensor) -> Tensor:
    return (x > 0).where(x, x * weight)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, elsewhere weight x: one weight, one per channel of axis 1, or any that broadcasts
    to x (He et al., arXiv:1502.01852).

    >>> F.prelu(weft.tensor([[-4.0, -4.0]]), weft.tensor([0.25, 0.5])).tolist()
    [[-1.0, -2.0]]
    """
    if weight.ndim == 1 and weight.size > 1 and x.ndim > 1:
        weight = weight.reshape(1, -1, *([1] * (x.ndim - 2)))
    elif weight.size == 1 and weight.ndim > x.ndim:
        weight = weight.reshape(())  # one weight for a scalar, which stays one
    return _sloped(x, weight)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x above the threshold (and NaN), elsewhere `value`, of floats or integers.

    >>> F.threshold(weft.tensor([1.0, 3.0]), 2.0, -7.0).tolist()
    [-7.0, 3.0]
    """
    if not x.dtype.is_float:
        return (x <= threshold).where(value, x)
    return curve(
        x,
        lambda x: (x <= threshold).where(value, x),
        lambda g, x: (x <= threshold).where(0.0, g),
    )


def _outside(g: Tensor, x: Tensor, lambd: float) -> Tensor:
    return ((x >= -lambd) & (x <= lambd)).where(0.0, g)


def shrink(x: Tensor, lambd: float, bias: float) -> Tensor:
    """x moved towards 0 by `bias`, and 0 within -lambd..lambd: ONNX's Shrink.

    >>> F.shrink(weft.tensor([-3.0, 0.5]), 1.0, 0.5).tolist()
    [-2.5, 0.0]
    """
    return curve(
        x,
        lambda x: (x > lambd).where(
            x - bias, (x < -lambd).where(x + bias, x.isnan().where(x, 0.0))
        ),
        lambda g, x: _outside(g, x, lambd),
    )


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 within -lambd..lambd.

    >>> F.softshrink(weft.tensor([-3.0, 0.25])).tolist()
    [-2.5, 0.0]
    """
    return shrink(x, lambd, lambd)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but 0 within -lambd..lambd.

    >>> F.hardshrink(weft.tensor([-3.0, 0.25])).tolist()
    [-3.0, 0.0]
    """
    return curve(x, lambda x: _outside(x, x, lambd), lambda g, x: _outside(g, x, lambd))


def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6 (Howard et al., arXiv:1905.02244).

    >>> F.hardsigmoid(weft.tensor([-4.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return curve(
        x,
        lambda x: (x + 3.0).clip(0.0, 6.0) * (1.0 / 6.0),
        lambda g, x: _open(x, -3.0, 3.0).where(g * (1.0 / 6.0), 0.0),
    )


def ramp(x: Tensor, alpha: float, beta: float) -> Tensor:
    """min(max(alpha x + beta, 0), 1): ONNX's HardSigmoid.

    >>> F.ramp(weft.tensor([-4.0, 1.0]), 0.25, 0.5).tolist()
    [0.0, 0.75]
    """
    ends = sorted((-beta / alpha, (1.0 - beta) / alpha)) if alpha else (0.0, 0.0)
    return curve(
        x,
        lambda x: (x * alpha + beta).clip(0.0, 1.0),
        lambda g, x: _open(x, *ends).where(g * alpha, 0.0),
    )


def hardswish(x: Tensor) -> Tensor:
    """x hardsigmoid(x) (Howard et al., arXiv:1905.02244).

    >>> F.hardswish(weft.tensor([-4.0, 4.0])).tolist()
    [-0.0, 4.0]
    """
    return curve(
        x,
        lambda x: x * hardsigmoid(x),
        lambda g, x: (x <= -3.0).where(0.0, (x < 3.0).where(g * (x * (1.0 / 3.0) + 0.5), g)),
    )


# -- exponential pieces


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """scale x from 0 on, below scale alpha (exp(input_scale x) - 1) (Clevert et al.,
    arXiv:1511.07289). At 0 the gradient is that from below.

    >>> F.elu(weft.tensor([-1000.0, 2.0]), alpha=0.5).tolist()
    [-0.5, 2.0]
    """
    steep = alpha * scale * input_scale
    return curve(
        x,
        lambda x: (x < 0).where(expm1(x.minimum(0.0) * input_scale) * (alpha * scale), x * scale),
        lambda g, x: (x <= 0).where(g * ((x.minimum(0.0) * input_scale).exp() * steep), g * scale),
    )


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x from 0 on, below alpha (exp(x / alpha) - 1) (Barron, arXiv:1704.07483). Raises UsageError
    for an alpha of 0.

    >>> F.celu(weft.tensor([-1000.0, 2.0]), alpha=0.5).tolist()
    [-0.5, 2.0]
    """
    if not alpha:
        raise UsageError("celu: alpha is 0; give another number")
    return elu(x, alpha, 1.0, 1.0 / alpha)


def selu(x: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    """gamma elu(x, alpha) (Klambauer et al., arXiv:1706.02515).

    >>> F.selu(weft.tensor([0.0, 2.0])).tolist()
    [0.0, 2.1014020442962646]
    """
    return elu(x, alpha, gamma)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta without overflow; x itself where beta x is above the threshold.

    >>> F.softplus(weft.tensor([0.0, 1000.0])).tolist()
    [0.6931471824645996, 1000.0]
    """

    def value(x: Tensor) -> Tensor:
        y = x * beta
        return (y > threshold).where(x, shared(ops.softplus, y) * (1.0 / beta))

    return curve(x, value, lambda g, x: (x * beta > threshold).where(g, g * (x * beta).sigmoid()))


def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow.

    >>> F.logsigmoid(weft.tensor([-1000.0, 0.0])).tolist()
    [-1000.0, -0.6931471824645996]
    """
    return curve(
        x,
        lambda x: x.minimum(0.0) - log1p((-x.abs()).exp()),
        lambda g, x: g * (-x).sigmoid(),
    )


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|).

    >>> F.softsign(weft.tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    return curve(
        x, lambda x: x / (x.abs() + 1.0), lambda g, x: g * (x.abs() + 1.0).reciprocal().square()
    )


def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    """x sigmoid(beta x) (Ramachandran et al., arXiv:1710.05941); silu for a beta of 1, and with
    1.702 an approximation of gelu.

    >>> F.swish(weft.tensor([0.0, 1000.0]), 1.702).tolist()
    [0.0, 1000.0]
    """
    if beta == 1.0:
        return x.silu()

    def slope(g: Tensor, x: Tensor) -> Tensor:
        c = _held(x * beta)
        s = c.sigmoid()
        return g * (s * (c * (1.0 - s) + 1.0))

    return curve(x, lambda x: shared(ops.swish, x, beta), slope)


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)) (Misra, arXiv:1908.08681).

    >>> F.mish(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """

    def slope(g: Tensor, x: Tensor) -> Tensor:
        c = _held(x)
        t = softplus(c).tanh()
        return g * (t + c * c.sigmoid() * (1.0 - t * t))

    return curve(x, lambda x: x * softplus(x).tanh(), slope)


def _held(x: Tensor) -> Tensor:
    return x.maximum(-_FAR).minimum(_FAR)


def scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha tanh(beta x): ONNX's ScaledTanh.

    >>> F.scaled_tanh(weft.tensor([0.0, 1000.0]), 2.0, 1.0).tolist()
    [0.0, 2.0]
    """
    return wide(lambda x: (x * beta).tanh() * alpha)(x)


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x).

    >>> F.tanhshrink(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 999.0]
    """
    return wide(lambda x: x - x.tanh())(x)
