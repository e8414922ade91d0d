"""Activation functions: each formula once, with PyTorch's values and derivatives.

Every function has a derivative of its own, because that of its formula belongs to no side at a kink
and is NaN where a branch that is not taken overflows. Where PyTorch's derivative of a number is NaN
(an infinity times 0), these give the limit. float16 and bfloat16 are computed in float32 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import UsageError
from weft.tensor.core import Tensor
from weft.tensor.elementwise import derivative, expm1, log1p, wide

_FAR = 120.0  # beyond, a smooth step in float32 is 0 or 1, and no 0 * inf may arise


def _curve(
    x: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """value(x), whose gradient for a gradient g of the result is slope(g, x)."""

    def activation(x: Tensor) -> Tensor:
        return value(x)

    return wide(derivative(lambda g, out, x: slope(g, x))(activation))(x)


def _open(x: Tensor, low: float, high: float) -> Tensor:
    """True where x is between two bounds, exclusive."""
    return (x > low) & (x < high)


# -- straight pieces


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between two bounds; on a bound the gradient is 0, of NaN it is 1."""
    if min_val > max_val:
        raise UsageError(f"hardtanh: the bounds {min_val} and {max_val}; give the lower one first")
    if not x.dtype.is_float:
        return x.clip(min_val, max_val)
    return _curve(
        x,
        lambda x: x.clip(min_val, max_val),
        lambda g, x: ((x <= min_val) | (x >= max_val)).where(0.0, g),
    )


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(x, 0, 6)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x above 0, elsewhere negative_slope x."""
    return _curve(
        x,
        lambda x: (x > 0).where(x, x * negative_slope),
        lambda g, x: (x > 0).where(g, g * negative_slope),
    )


@wide
@derivative(
    lambda g, out, x, weight: (x > 0).where(g, g * weight),
    lambda g, out, x, weight: (x > 0).where(0.0, g * x),
)
def _sloped(x: Tensor, weight: Tensor) -> Tensor:
    return (x > 0).where(x, x * weight)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, elsewhere weight x: one weight, one per channel of axis 1, or any that broadcasts
    to x (He et al., arXiv:1502.01852)."""
    if weight.ndim == 1 and weight.size > 1 and x.ndim > 1:
        weight = weight.reshape(1, -1, *([1] * (x.ndim - 2)))
    elif weight.size == 1 and weight.ndim > x.ndim:
        weight = weight.reshape(())  # one weight for a scalar, which stays one
    return _sloped(x, weight)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x above the threshold (and NaN), elsewhere `value`."""
    if not x.dtype.is_float:
        return (x <= threshold).where(value, x)
    return _curve(
        x,
        lambda x: (x <= threshold).where(value, x),
        lambda g, x: (x <= threshold).where(0.0, g),
    )


def _outside(g: Tensor, x: Tensor, lambd: float) -> Tensor:
    return ((x >= -lambd) & (x <= lambd)).where(0.0, g)


def shrink(x: Tensor, lambd: float, bias: float) -> Tensor:
    """x moved towards 0 by `bias`, and 0 within -lambd..lambd."""
    return _curve(
        x,
        lambda x: (x > lambd).where(
            x - bias, (x < -lambd).where(x + bias, x.isnan().where(x, 0.0))
        ),
        lambda g, x: _outside(g, x, lambd),
    )


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 within -lambd..lambd."""
    return shrink(x, lambd, lambd)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x, but 0 within -lambd..lambd."""
    return _curve(x, lambda x: _outside(x, x, lambd), lambda g, x: _outside(g, x, lambd))


def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)."""
    return _curve(
        x,
        lambda x: (x + 3.0).clip(0.0, 6.0) * (1.0 / 6.0),
        lambda g, x: _open(x, -3.0, 3.0).where(g * (1.0 / 6.0), 0.0),
    )


def ramp(x: Tensor, alpha: float, beta: float) -> Tensor:
    """min(max(alpha x + beta, 0), 1): ONNX's HardSigmoid."""
    ends = sorted((-beta / alpha, (1.0 - beta) / alpha)) if alpha else (0.0, 0.0)
    return _curve(
        x,
        lambda x: (x * alpha + beta).clip(0.0, 1.0),
        lambda g, x: _open(x, *ends).where(g * alpha, 0.0),
    )


def hardswish(x: Tensor) -> Tensor:
    """x hardsigmoid(x) (Howard et al. 2019)."""
    return _curve(
        x,
        lambda x: x * hardsigmoid(x),
        lambda g, x: (x <= -3.0).where(0.0, (x < 3.0).where(g * (x * (1.0 / 3.0) + 0.5), g)),
    )


# -- exponential pieces


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """scale x from 0 on, below scale alpha (exp(input_scale x) - 1) (Clevert et al.,
    arXiv:1511.07289). At 0 the gradient is that from below."""
    steep = alpha * scale * input_scale
    return _curve(
        x,
        lambda x: (x < 0).where(expm1(x.minimum(0.0) * input_scale) * (alpha * scale), x * scale),
        lambda g, x: (x <= 0).where(g * ((x.minimum(0.0) * input_scale).exp() * steep), g * scale),
    )


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x from 0 on, below alpha (exp(x / alpha) - 1) (Barron, arXiv:1704.07483)."""
    if not alpha:
        raise UsageError("celu: alpha is 0; give another number")
    return elu(x, alpha, 1.0, 1.0 / alpha)


def selu(x: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    """gamma elu(x, alpha) (Klambauer et al., arXiv:1706.02515)."""
    return elu(x, alpha, gamma)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta without overflow; x itself where beta x is above the
    threshold."""

    def value(x: Tensor) -> Tensor:
        y = x * beta
        soft = y.maximum(0.0) + log1p((-y.abs()).exp())
        return (y > threshold).where(x, soft * (1.0 / beta))

    return _curve(x, value, lambda g, x: (x * beta > threshold).where(g, g * (x * beta).sigmoid()))


def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow."""
    return _curve(
        x,
        lambda x: x.minimum(0.0) - log1p((-x.abs()).exp()),
        lambda g, x: g * (-x).sigmoid(),
    )


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return _curve(
        x, lambda x: x / (x.abs() + 1.0), lambda g, x: g * (x.abs() + 1.0).reciprocal().square()
    )


def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    """x sigmoid(beta x) (Ramachandran et al., arXiv:1710.05941)."""
    if beta == 1.0:
        return x.silu()

    def slope(g: Tensor, x: Tensor) -> Tensor:
        c = _held(x * beta)
        s = c.sigmoid()
        return g * (s * (c * (1.0 - s) + 1.0))

    return _curve(x, lambda x: x * (x * beta).sigmoid(), slope)


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)) (Misra, arXiv:1908.08681)."""

    def slope(g: Tensor, x: Tensor) -> Tensor:
        c = _held(x)
        t = softplus(c).tanh()
        return g * (t + c * c.sigmoid() * (1.0 - t * t))

    return _curve(x, lambda x: x * softplus(x).tanh(), slope)


def _held(x: Tensor) -> Tensor:
    return x.maximum(-_FAR).minimum(_FAR)


def scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha tanh(beta x): ONNX's ScaledTanh."""
    return (x * beta).tanh() * alpha


def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x)."""
    return x - x.tanh()


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second (Dauphin et al.,
    arXiv:1612.08083)."""
    if not x.ndim or x.shape[axis] % 2:
        raise UsageError(f"glu: axis {axis} of {list(x.shape)} does not have two equal halves")
    value, gate = x.chunk(2, axis)
    return value * gate.sigmoid()
