"""More activations as modules (layers.py has the commonest). `inplace` changes nothing: tensors are
values."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from weft.core.errors import ShapeError
from weft.nn.dropout import fresh_key, keep_key
from weft.nn.module import Module, Parameter
from weft.tensor import functional as F
from weft.tensor.core import Tensor


class Plain(Module):
    """The base of activations without options."""

    _apply: ClassVar[Callable[..., Tensor]]

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._apply(x)


class InPlace(Plain):
    """The base of activations whose only option changes nothing."""

    def __init__(self, inplace: bool = False):
        pass


class Along(Module):
    """The base of activations along an axis."""

    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._apply(x, self.dim)


class ReLU6(InPlace):
    """min(max(x, 0), 6). x is floats of any shape; the result is like x. See weft.functional.relu6.

    >>> nn.ReLU6()(weft.tensor([-1.0, 7.0])).tolist()
    [0.0, 6.0]
    """

    _apply = staticmethod(F.relu6)


class Hardtanh(Module):
    """x between two bounds. x is floats of any shape; the result is like x. See
    weft.functional.hardtanh.

    >>> nn.Hardtanh()(weft.tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)


class LeakyReLU(Module):
    """x above 0, elsewhere negative_slope x. x is floats of any shape; the result is like x. See
    weft.functional.leaky_relu.

    >>> nn.LeakyReLU(0.25)(weft.tensor([-4.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """x from 0 on, below alpha (exp(x) - 1). x is floats of any shape; the result is like x. See
    weft.functional.elu.

    >>> nn.ELU(0.5)(weft.tensor([-1000.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)


class CELU(Module):
    """x from 0 on, below alpha (exp(x / alpha) - 1). x is floats of any shape; the result is like
    x. See weft.functional.celu.

    >>> nn.CELU(0.5)(weft.tensor([-1000.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)


class SELU(InPlace):
    """ELU with the scales of self-normalising nets. x is floats of any shape; the result is like x.
    See weft.functional.selu.

    >>> nn.SELU()(weft.tensor([0.0, -0.0])).tolist()
    [0.0, -0.0]
    """

    _apply = staticmethod(F.selu)


class Mish(InPlace):
    """x tanh(softplus(x)). x is floats of any shape; the result is like x. See
    weft.functional.mish.

    >>> nn.Mish()(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """

    _apply = staticmethod(F.mish)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, and x itself above the threshold. x is floats of any shape; the
    result is like x. See weft.functional.softplus.

    >>> nn.Softplus()(weft.tensor([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class LogSigmoid(Plain):
    """log(sigmoid(x)). x is floats of any shape; the result is like x. See
    weft.functional.logsigmoid.

    >>> nn.LogSigmoid()(weft.tensor([-1000.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """

    _apply = staticmethod(F.logsigmoid)


class Softsign(Plain):
    """x / (1 + |x|). x is floats of any shape; the result is like x. See weft.functional.softsign.

    >>> nn.Softsign()(weft.tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """

    _apply = staticmethod(F.softsign)


class Softshrink(Module):
    """x moved towards 0 by lambd. x is floats of any shape; the result is like x. See
    weft.functional.softshrink.

    >>> nn.Softshrink()(weft.tensor([-3.0, 0.25])).tolist()
    [-2.5, 0.0]
    """

    def __init__(self, lambd: float = 0.5):
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)


class Hardshrink(Module):
    """x, but 0 within -lambd..lambd. x is floats of any shape; the result is like x. See
    weft.functional.hardshrink.

    >>> nn.Hardshrink()(weft.tensor([-3.0, 0.25])).tolist()
    [-3.0, 0.0]
    """

    def __init__(self, lambd: float = 0.5):
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return F.hardshrink(x, self.lambd)


class Tanhshrink(Plain):
    """x - tanh(x). x is floats of any shape; the result is like x. See weft.functional.tanhshrink.

    >>> nn.Tanhshrink()(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 999.0]
    """

    _apply = staticmethod(F.tanhshrink)


class RReLU(Module):
    """x from 0 on, and a x below. In training each element has its own slope a, uniform in
    lower..upper and drawn as Dropout draws. Otherwise a is the mean of both. x is floats of any
    shape; the result is like x. See weft.functional.rrelu.

    >>> nn.RReLU(0.25, 0.75).eval()(weft.tensor([-4.0, 2.0])).tolist()
    [-2.0, 2.0]
    """

    key: Tensor

    def __init__(self, lower: float = 0.125, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper = lower, upper
        keep_key(self)

    def forward(self, x: Tensor) -> Tensor:
        key = fresh_key(self) if self.training else None
        return F.rrelu(x, self.lower, self.upper, self.training, key)


class Softmin(Along):
    """softmax(-x) along an axis. x is floats of any shape; the result is like x. See
    weft.functional.softmin.

    >>> nn.Softmin()(weft.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """

    _apply = staticmethod(F.softmin)


class Softmax2d(Module):
    """softmax over the channels of x[N, C, H, W] or [C, H, W]. Raises ShapeError for other shapes.

    >>> nn.Softmax2d()(weft.zeros((2, 1, 1))).tolist()
    [[[0.5]], [[0.5]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: x {list(x.shape)}; expected [N, C, H, W] or [C, H, W]")
        return F.softmax(x, -3)


class Threshold(Module):
    """x above the threshold, elsewhere `value`. x is floats of any shape; the result is like x. See
    weft.functional.threshold.

    >>> nn.Threshold(2.0, -7.0)(weft.tensor([1.0, 3.0])).tolist()
    [-7.0, 3.0]
    """

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        self.threshold = threshold
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)


class GLU(Along):
    """The first half of an axis times the sigmoid of the second. Raises UsageError for an axis of
    odd size. See weft.functional.glu.

    >>> nn.GLU()(weft.tensor([4.0, 0.0])).tolist()
    [2.0]
    """

    _apply = staticmethod(F.glu)


class PReLU(Module):
    """x above 0, elsewhere weight x: one learnt weight, or one per channel of axis 1. x is floats
    of any shape; the result is like x. See weft.functional.prelu.

    >>> nn.PReLU(init=0.25)(weft.tensor([-4.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.num_parameters = num_parameters
        self.weight = Parameter(np.full(num_parameters, init, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)
