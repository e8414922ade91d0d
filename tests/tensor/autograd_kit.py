"""Values and comparisons that the tests of gradients share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
from weft.tensor import Tensor

rng = np.random.default_rng(3)
X = rng.standard_normal((4, 5)).astype(np.float32)
W = rng.standard_normal((5, 3)).astype(np.float32)
B = rng.standard_normal(3).astype(np.float32)


def leaf(array: Any, device: str = "cpu") -> Tensor:
    return weft.tensor(np.asarray(array, np.float32), device=device, requires_grad=True)


def close(got: Any, want: Any, tol: float = 1e-5) -> None:
    got = got.numpy() if isinstance(got, Tensor) else got
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    assert np.shape(got) == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def mlp(x: Any, w: Any, b: Any) -> Any:
    return ((x @ w + b).tanh() * (x @ w)).sum()
