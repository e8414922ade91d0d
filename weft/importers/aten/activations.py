"""Activation functions."""

from __future__ import annotations

from weft.importers.aten.table import aten
from weft.tensor import elementwise as ew
from weft.tensor.core import Tensor
from weft.tensor.random import dropout as random_dropout


@aten("relu")
def relu(self: Tensor) -> Tensor:
    return self.relu()


@aten("relu6")
def relu6(self: Tensor) -> Tensor:
    return self.clip(0, 6)


@aten("gelu")
def gelu(self: Tensor, approximate: str = "none") -> Tensor:
    return self.gelu(approximate)


@aten("silu")
def silu(self: Tensor) -> Tensor:
    return self.silu()


@aten("mish")
def mish(self: Tensor) -> Tensor:
    return self * softplus(self).tanh()


@aten("hardtanh")
def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return self.clip(min_val, max_val)


@aten("hardsigmoid")
def hardsigmoid(self: Tensor) -> Tensor:
    return (self + 3.0).clip(0, 6) * (1 / 6)


@aten("hardswish")
def hardswish(self: Tensor) -> Tensor:
    return self * hardsigmoid(self)


@aten("leaky_relu")
def leaky_relu(self: Tensor, negative_slope: float = 0.01) -> Tensor:
    return (self > 0).where(self, self * negative_slope)


@aten("prelu", "_prelu_kernel")
def prelu(self: Tensor, weight: Tensor) -> Tensor:
    """One slope, or one for each channel of axis 1."""
    if weight.ndim == 1 and self.ndim > 1:
        weight = weight.reshape(1, -1, *([1] * (self.ndim - 2)))
    return (self > 0).where(self, self * weight)


@aten("elu")
def elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = ew.expm1((self * input_scale).minimum(0.0)) * alpha
    return (self > 0).where(self, below) * scale


@aten("celu")
def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(self, alpha, 1, 1 / alpha)


@aten("selu")
def selu(self: Tensor) -> Tensor:
    """Klambauer et al., arXiv:1706.02515."""
    return elu(self, 1.6732632423543772, 1.0507009873554805)


@aten("softplus")
def softplus(self: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    x = self * beta
    return (x > threshold).where(self, ew.logaddexp(x, x * 0.0) * (1 / beta))


@aten("log_sigmoid")
def log_sigmoid(self: Tensor) -> Tensor:
    return -ew.logaddexp(-self, self * 0.0)


@aten("glu")
def glu(self: Tensor, dim: int = -1) -> Tensor:
    value, gate = self.chunk(2, dim)
    return value * gate.sigmoid()


@aten("threshold")
def threshold_(self: Tensor, threshold: float, value: float) -> Tensor:
    return (self > threshold).where(self, value)


@aten("softshrink")
def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    return (self > lambd).where(self - lambd, (self < -lambd).where(self + lambd, self * 0.0))


@aten("hardshrink")
def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    return (self.abs() > lambd).where(self, self * 0.0)


@aten("dropout")
def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return random_dropout(input, p) if train and p > 0 else input


@aten("native_dropout", results=1)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, None]:
    return dropout(input, p, bool(train)), None


@aten("rrelu_with_noise_functional", results=1, refuses=lambda x, noise, lower=0.125, upper=1 / 3,
      training=False, generator=None: "in training" if training else "")  # fmt: skip
def rrelu(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3,
    training: bool = False, generator: None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    return (self >= 0).where(self, self * ((lower + upper) / 2)), None
