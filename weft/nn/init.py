"""Initial values of parameters, in place. Each takes its random numbers from `key` (an int or a
uint32[2] tensor), or from the global stream that `weft.manual_seed` restarts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import ShapeError, UsageError
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.random import rand, randn

_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}


def _set(t: Tensor, value: Any) -> Tensor:
    with no_grad():
        return t.assign(value.cast(t.dtype).to(t.device) if isinstance(value, Tensor) else value)


def constant_(t: Tensor, value: float) -> Tensor:
    """`value` everywhere.

    >>> nn.init.constant_(weft.zeros((2,)), 3.0).tolist()
    [3.0, 3.0]
    """
    return _set(t, value)


def zeros_(t: Tensor) -> Tensor:
    """Zeros.

    >>> nn.init.zeros_(weft.ones((2,))).tolist()
    [0.0, 0.0]
    """
    return _set(t, 0)


def ones_(t: Tensor) -> Tensor:
    """Ones.

    >>> nn.init.ones_(weft.zeros((2,))).tolist()
    [1.0, 1.0]
    """
    return _set(t, 1)


def uniform_(t: Tensor, low: float = 0.0, high: float = 1.0, key: Any = None) -> Tensor:
    """Uniform in [low, high): what rounds to an end or beyond is the next number inside.

    >>> nn.init.uniform_(weft.zeros((9,)), 1.0, 2.0, key=7).min().item() >= 1.0
    True
    """
    drawn = (rand(*t.shape, key=key) * (high - low) + low).cast(t.dtype)
    least, most = _beside(t.dtype, low, math.inf), _beside(t.dtype, high, -math.inf)
    least = low if float(np.asarray(low, t.dtype.numpy)) == low else least
    return _set(t, drawn.clip(least, most) if least <= most else drawn)


def _beside(dtype: DType, edge: float, way: float) -> float:
    """The number of a dtype nearest to an edge on one side of it."""
    found = np.asarray(edge, dtype.numpy)
    past = float(found) < edge if way < 0 else float(found) > edge
    return float(found if past else np.nextafter(found, np.asarray(way, dtype.numpy)))


def normal_(t: Tensor, mean: float = 0.0, std: float = 1.0, key: Any = None) -> Tensor:
    """Normal.

    >>> nn.init.normal_(weft.zeros((2, 3)), key=7).shape
    (2, 3)
    """
    return _set(t, randn(*t.shape, key=key) * std + mean)


def trunc_normal_(
    t: Tensor, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0,
    key: Any = None,
) -> Tensor:  # fmt: skip
    """Normal, given that it falls within [low, high]: the inverse of the distribution function (by
    bisection on erf) at uniform points.

    >>> nn.init.trunc_normal_(weft.zeros((99,)), key=7).abs().max().item() <= 2.0
    True
    """
    if not low < high or std <= 0:
        raise UsageError(f"trunc_normal_: std {std}, range {low}..{high}; std > 0 and low < high")
    a, b = ((edge - mean) / (std * math.sqrt(2.0)) for edge in (low, high))
    wanted = rand(*t.shape, key=key) * (math.erf(b) - math.erf(a)) + math.erf(a)
    left, right = wanted * 0.0 + a, wanted * 0.0 + b
    for _ in range(24):
        middle = (left + right) * 0.5
        below = middle.erf() < wanted
        left, right = below.where(middle, left), below.where(right, middle)
    return _set(t, ((left + right) * (0.5 * math.sqrt(2.0) * std) + mean).clip(low, high))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """PyTorch's recommended gain for a nonlinearity; `param` is the slope of leaky_relu. Raises
    UsageError for an unknown one.

    >>> nn.init.calculate_gain("linear")
    1.0
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise UsageError(f"calculate_gain: {nonlinearity!r}; known: {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def fans(t: Tensor) -> tuple[int, int]:
    """(inputs, outputs) of a weight [N, K] or [O, C, *kernel]. Raises ShapeError for fewer axes.

    >>> nn.init.fans(weft.zeros((2, 3)))
    (3, 2)
    """
    if t.ndim < 2:
        raise ShapeError(
            f"init: expected a tensor with at least two axes (outputs, inputs), got {list(t.shape)}"
        )
    inner = math.prod(t.shape[2:])
    return t.shape[1] * inner, t.shape[0] * inner


def xavier_uniform_(t: Tensor, gain: float = 1.0, key: Any = None) -> Tensor:
    """Uniform in +- gain sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010).

    >>> nn.init.xavier_uniform_(weft.zeros((3, 3)), key=7).abs().max().item() <= 1.0
    True
    """
    bound = gain * math.sqrt(6.0 / sum(fans(t)))
    return uniform_(t, -bound, bound, key)


def xavier_normal_(t: Tensor, gain: float = 1.0, key: Any = None) -> Tensor:
    """Normal of deviation gain sqrt(2 / (inputs + outputs)) (Glorot and Bengio 2010).

    >>> nn.init.xavier_normal_(weft.zeros((2, 3)), key=7).shape
    (2, 3)
    """
    return normal_(t, 0.0, gain * math.sqrt(2.0 / sum(fans(t))), key)


def _deviation(t: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise UsageError(f'init: mode is "fan_in" or "fan_out", not {mode!r}')
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(t)[mode == "fan_out"])


def kaiming_uniform_(
    t: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    key: Any = None,
) -> Tensor:  # fmt: skip
    """Uniform in +- gain sqrt(3 / fan) (He et al. 2015).

    >>> nn.init.kaiming_uniform_(weft.zeros((2, 6)), key=7).abs().max().item() <= 1.0
    True
    """
    bound = math.sqrt(3.0) * _deviation(t, a, mode, nonlinearity)
    return uniform_(t, -bound, bound, key)


def kaiming_normal_(
    t: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    key: Any = None,
) -> Tensor:  # fmt: skip
    """Normal of deviation gain / sqrt(fan) (He et al. 2015).

    >>> nn.init.kaiming_normal_(weft.zeros((2, 3)), key=7).shape
    (2, 3)
    """
    return normal_(t, 0.0, _deviation(t, a, mode, nonlinearity), key)


def orthogonal_(t: Tensor, gain: float = 1.0, key: Any = None) -> Tensor:
    """A matrix [N, K * ...] with orthonormal rows, or columns if there are fewer of them, times
    gain (Saxe et al. 2013): Q of the QR factors of a normal matrix, made unique by R's signs.

    >>> weft.allclose((w := nn.init.orthogonal_(weft.zeros((2, 3)), key=7)) @ w.T, weft.eye(2))
    True
    """
    fans(t)
    rows, columns = t.shape[0], math.prod(t.shape[1:])
    drawn = randn(max(rows, columns), min(rows, columns), key=key).numpy().astype(np.float64)
    q, r = np.linalg.qr(drawn)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    made = (q if rows >= columns else q.T) * gain
    return _set(t, Tensor(made.astype(np.float32)).reshape(t.shape))


def eye_(t: Tensor) -> Tensor:
    """The identity matrix.

    >>> nn.init.eye_(weft.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if t.ndim != 2:
        raise ShapeError(f"eye_: expected a matrix, got {list(t.shape)}")
    return _set(t, Tensor(np.eye(*t.shape, dtype=np.float32)))


def dirac_(t: Tensor, groups: int = 1) -> Tensor:
    """The weight [O, C, *kernel] of a convolution that gives each channel as it is, in each of the
    groups.

    >>> nn.init.dirac_(weft.zeros((1, 1, 3))).tolist()
    [[[0.0, 1.0, 0.0]]]
    """
    if t.ndim not in (3, 4, 5) or t.shape[0] % groups:
        raise ShapeError(
            f"dirac_: {list(t.shape)} in {groups} groups; give [O, C, *kernel] whose O the groups "
            "divide"
        )
    made, size = np.zeros(t.shape, np.float32), t.shape[0] // groups
    for channel in range(t.shape[0]):
        if channel % size < t.shape[1]:
            made[(channel, channel % size, *(n // 2 for n in t.shape[2:]))] = 1
    return _set(t, Tensor(made))


def sparse_(t: Tensor, sparsity: float, std: float = 0.01, key: Any = None) -> Tensor:
    """A normal matrix in which a share `sparsity` of each column is zero (Martens 2010).

    >>> (nn.init.sparse_(weft.zeros((4, 3)), 0.5, key=7) == 0).sum(0).tolist()
    [2, 2, 2]
    """
    if t.ndim != 2 or not 0 <= sparsity <= 1:
        raise UsageError(f"sparse_: {list(t.shape)}, sparsity {sparsity}; a matrix and 0..1")
    zeros = math.ceil(sparsity * t.shape[0])
    order = rand(*t.shape, key=key).numpy().argsort(0).argsort(0)
    return _set(t, randn(*t.shape, key=key) * std * Tensor((order >= zeros).astype(np.float32)))
