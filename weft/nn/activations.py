"""More activations as modules (layers.py has the commonest). `inplace` changes nothing: tensors are
values."""

from __future__ import annotations

import numpy as np

from weft.core.errors import ShapeError
from weft.nn.dropout import fresh_key, keep_key
from weft.nn.module import Module, Parameter
from weft.tensor import functional as F
from weft.tensor.core import Tensor


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def __init__(self, inplace: bool = False):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x)


class Hardtanh(Module):
    """x between two bounds."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)


class LeakyReLU(Module):
    """x above 0, elsewhere negative_slope x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """x from 0 on, below alpha (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)


class CELU(Module):
    """x from 0 on, below alpha (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)


class SELU(Module):
    """ELU with the scales of self-normalising nets."""

    def __init__(self, inplace: bool = False):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.selu(x)


class Mish(Module):
    """x tanh(softplus(x))."""

    def __init__(self, inplace: bool = False):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, and x itself above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softsign(x)


class Softshrink(Module):
    """x moved towards 0 by lambd."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)


class Hardshrink(Module):
    """x, but 0 within -lambd..lambd."""

    def __init__(self, lambd: float = 0.5):
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.hardshrink(x, self.lambd)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanhshrink(x)


class RReLU(Module):
    """x from 0 on, below a x: in training with a slope a for each element, uniform in
    lower..upper and drawn as Dropout draws, otherwise with their mean."""

    key: Tensor

    def __init__(self, lower: float = 0.125, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper = lower, upper
        keep_key(self)

    def forward(self, x: Tensor) -> Tensor:
        key = fresh_key(self) if self.training else None
        return F.rrelu(x, self.lower, self.upper, self.training, key)


class Softmin(Module):
    """softmax(-x) along an axis."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.softmin(x, self.dim)


class Softmax2d(Module):
    """softmax over the channels of x[N, C, H, W] or [C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: x {list(x.shape)}; expected [N, C, H, W] or [C, H, W]")
        return F.softmax(x, -3)


class Threshold(Module):
    """x above the threshold, elsewhere `value`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)


class GLU(Module):
    """The first half of an axis times the sigmoid of the second."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)


class PReLU(Module):
    """x above 0, elsewhere weight x: one learnt weight, or one per channel of axis 1."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.num_parameters = num_parameters
        self.weight = Parameter(np.full(num_parameters, init, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)
