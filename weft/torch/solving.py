"""Linear equations with PyTorch's rules for vectors and batches."""

from __future__ import annotations

import numpy as np

from weft.tensor import inverses
from weft.tensor.core import Tensor
from weft.torch.tensor import function_only


@function_only
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A X = B (or X A = B); B holds vectors if its shape is A's but for the last axis."""
    if not left:
        return solve(A.mT, B.mT).mT
    if B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1]):
        return inverses.solve(A, B.unsqueeze(-1)).squeeze(-1)
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    a, b = (x.expand((*batch, *x.shape[-2:])) for x in (A, B))
    return inverses.solve(a, b)
