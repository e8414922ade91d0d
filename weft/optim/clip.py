"""Limits on gradients."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import GradientError, UsageError
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor


def clip_grad_norm(params: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scales all gradients so that their common length (Euclidean, or the norm of order
    `norm_type`, which may be inf) is at most `max_norm`; returns the length before (float32 []).
    PyTorch's formula: min(1, max_norm / (length + 1e-6)). Raises GradientError if no parameter has
    a gradient, UsageError for an order that is not positive.

    >>> w = weft.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> optim.clip_grad_norm([w], 1.0).item()
    10.0
    """
    held = [p for p in params if p.grad is not None]
    if not held:
        raise GradientError("clip_grad_norm: no parameter has a gradient; call backward() first")
    if not norm_type > 0:
        raise UsageError(f"clip_grad_norm: norm_type is {norm_type}; give a positive number")
    if norm_type == 2.0:
        norm = length([square_sum(p.grad) for p in held])
    else:
        norm = _of_order(held, float(norm_type))
    shorten(held, norm, max_norm)
    return norm


def _of_order(held: Sequence[Tensor], order: float) -> Tensor:
    with no_grad():
        grads: list[Any] = [p.grad for p in held]
        sizes = [g.cast(dt.compute_dtype(g.dtype)).abs() for g in grads]
        if order == math.inf:
            largest: Tensor = functools.reduce(lambda x, y: x.maximum(y), [s.max() for s in sizes])
            return largest
        whole: Tensor = functools.reduce(operator.add, [(s**order).sum() for s in sizes])
        return whole ** (1.0 / order)


def clip_grad_value(params: Iterable[Tensor], clip_value: float) -> None:
    """Holds each element of all gradients within -clip_value .. clip_value.

    >>> w = weft.tensor([3.0, 0.25], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> optim.clip_grad_value([w], 1.0)
    >>> w.grad.tolist()
    [1.0, 0.5]
    """
    with no_grad():
        for p in params:
            if p.grad is not None:
                grad: Any = p.grad
                p.grad = grad.clip(-clip_value, clip_value)


def square_sum(gradient: Any) -> Tensor:
    """The sum of the squares of a tensor, in float32 at least ([])."""
    with no_grad():
        wide = gradient.cast(dt.compute_dtype(gradient.dtype))
        found: Tensor = (wide * wide).sum()
        return found


def length(squares: Sequence[Tensor]) -> Tensor:
    """The Euclidean length of what has these sums of squares, added in their order ([])."""
    with no_grad():
        return functools.reduce(operator.add, squares).sqrt()


def shorten(params: Iterable[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scales the gradients of `params`, which belong to a gradient of length `norm`, as
    `clip_grad_norm` does."""
    with no_grad():
        factor = (max_norm / (norm + 1e-6)).minimum(1.0)
        for p in params:
            grad: Any = p.grad
            if grad is not None:
                p.grad = grad * factor.cast(grad.dtype)
