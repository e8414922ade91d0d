"""Formulas over elementwise functions that the array API lacks, under PyTorch's names.

Operands are Tensors, NumPy arrays or Python numbers; narrow floats are computed in float32 and
rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.tensor.core import Tensor
from weft.tensor.elementwise import Operand, as_tensor, reals, wide
from weft.tensor.namespace import finfo


@wide
def erfc(x: Operand, /) -> Tensor:
    """1 - erf(x).

    >>> weft.erfc(weft.tensor([0.0])).tolist()
    [1.0]
    """
    return 1.0 - reals(x).erf()


@wide
def exp2(x: Operand, /) -> Tensor:
    """2 to the power of x.

    >>> weft.exp2(weft.tensor([0.0])).tolist()
    [1.0]
    """
    return (reals(x) * math.log(2)).exp()


def logit(x: Operand, /, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of sigmoid; x is first held within eps..1 - eps, if given.

    >>> weft.logit(weft.tensor([0.5])).tolist()
    [0.0]
    """
    p = reals(x) if eps is None else reals(x).clip(eps, 1 - eps)
    return wide(lambda p: (p / (1.0 - p)).log())(p)


def lerp(x: Operand, end: Operand, weight: Operand) -> Tensor:
    """x + weight (end - x), computed from whichever end is nearer: a weight of 1 gives `end`.

    >>> weft.lerp(weft.tensor([1.0]), weft.tensor([3.0]), 0.25).tolist()
    [1.5]
    """
    x, near = as_tensor(x), weight < 0.5
    low, high = x + (end - x) * weight, end - (end - x) * (1.0 - weight)
    if isinstance(near, Tensor):
        return near.where(low, high)
    made: Tensor = low if near else high
    return made


def nan_to_num(
    x: Operand, /, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:  # fmt: skip
    """x with NaN replaced by `nan` (0 by default) and infinities by `posinf` and `neginf` (by
    default the dtype's largest and smallest numbers).

    >>> weft.nan_to_num(weft.tensor([math.nan, -math.inf]), neginf=-1.0).tolist()
    [0.0, -1.0]
    """
    t = as_tensor(x)
    if not t.dtype.is_float:
        return t
    most = float(finfo(t.dtype).max)
    out = t.isnan().where(0.0 if nan is None else nan, t)
    out = (out == math.inf).where(most if posinf is None else posinf, out)
    return (out == -math.inf).where(-most if neginf is None else neginf, out)


def fmax(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of two; of a NaN and a number the number.

    >>> weft.fmax(weft.tensor([1.0, math.nan]), weft.tensor([2.0, 3.0])).tolist()
    [2.0, 3.0]
    """
    a, b = as_tensor(x1), as_tensor(x2)
    return a.isnan().where(b, b.isnan().where(a, a.maximum(b)))


def fmin(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of two; of a NaN and a number the number.

    >>> weft.fmin(weft.tensor([1.0, math.nan]), weft.tensor([2.0, 3.0])).tolist()
    [1.0, 3.0]
    """
    a, b = as_tensor(x1), as_tensor(x2)
    return a.isnan().where(b, b.isnan().where(a, a.minimum(b)))


def logsumexp(
    x: Operand, /, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Tensor:
    """log(sum(exp(x))) over axes (all by default) without overflow; -inf over no elements.

    >>> weft.logsumexp(weft.tensor([1000.0, 1000.0])).item() - 1000.0 - math.log(2) < 1e-4
    True
    """
    t = reals(x)
    axis = t._axes("logsumexp", axis)
    real = t.cast(dt.compute_dtype(t.dtype))  # the sum may be beyond float16's range
    if not t.size:
        return real.exp().sum(axis, keepdims).log().cast(t.dtype)
    top = real.max(axis, keepdims=True).detach()
    top = (top.abs() == math.inf).where(0.0, top)
    total = (real - top).exp().sum(axis, keepdims=True).log() + top
    return (total if keepdims else total.sum(axis)).cast(t.dtype)
