"""Limits on gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import GradientError
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor


def clip_grad_norm(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scales all gradients so that their common Euclidean length is at most `max_norm`; returns
    the length before (float32 []). PyTorch's formula: min(1, max_norm / (length + 1e-6))."""
    held = [p for p in params if p.grad is not None]
    if not held:
        raise GradientError("clip_grad_norm: no parameter has a gradient; call backward() first")
    with no_grad():
        total: Any = None
        for p in held:
            g: Any = p.grad
            wide = g.cast(dt.compute_dtype(g.dtype))
            part = (wide * wide).sum()
            total = part if total is None else total + part
        norm: Tensor = total.sqrt()
        factor = (max_norm / (norm + 1e-6)).minimum(1.0)
        for p in held:
            grad: Any = p.grad
            p.grad = grad * factor.cast(grad.dtype)
    return norm
