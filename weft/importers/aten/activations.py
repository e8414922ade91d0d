"""Activation functions by their ATen names; weft/tensor/activations.py has the formulas."""

from __future__ import annotations

from weft.importers.aten.table import aten
from weft.tensor import activations as act
from weft.tensor.core import Tensor
from weft.tensor.random import dropout as random_dropout


@aten("relu")
def relu(self: Tensor) -> Tensor:
    return self.relu()


@aten("relu6")
def relu6(self: Tensor) -> Tensor:
    return act.relu6(self)


@aten("gelu")
def gelu(self: Tensor, approximate: str = "none") -> Tensor:
    return self.gelu(approximate)


@aten("silu")
def silu(self: Tensor) -> Tensor:
    return self.silu()


@aten("mish")
def mish(self: Tensor) -> Tensor:
    return act.mish(self)


@aten("hardtanh")
def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return act.hardtanh(self, min_val, max_val)


@aten("hardsigmoid")
def hardsigmoid(self: Tensor) -> Tensor:
    return act.hardsigmoid(self)


@aten("hardswish")
def hardswish(self: Tensor) -> Tensor:
    return act.hardswish(self)


@aten("leaky_relu")
def leaky_relu(self: Tensor, negative_slope: float = 0.01) -> Tensor:
    return act.leaky_relu(self, negative_slope)


@aten("prelu", "_prelu_kernel")
def prelu(self: Tensor, weight: Tensor) -> Tensor:
    return act.prelu(self, weight)


@aten("elu")
def elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return act.elu(self, alpha, scale, input_scale)


@aten("celu")
def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    return act.celu(self, alpha)


@aten("selu")
def selu(self: Tensor) -> Tensor:
    return act.selu(self)


@aten("softplus")
def softplus(self: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return act.softplus(self, beta, threshold)


@aten("log_sigmoid")
def log_sigmoid(self: Tensor) -> Tensor:
    return act.logsigmoid(self)


@aten("glu")
def glu(self: Tensor, dim: int = -1) -> Tensor:
    return act.glu(self, dim)


@aten("threshold")
def threshold_(self: Tensor, threshold: float, value: float) -> Tensor:
    return act.threshold(self, threshold, value)


@aten("softshrink")
def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    return act.softshrink(self, lambd)


@aten("hardshrink")
def hardshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    return act.hardshrink(self, lambd)


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
    return act.leaky_relu(self, (lower + upper) / 2), None
