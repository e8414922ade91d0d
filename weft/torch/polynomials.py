"""torch.special's orthogonal polynomials, by their recurrences; degrees are known on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.tensor import signs
from weft.tensor.core import Tensor
from weft.torch.tensor import as_tensor, floats, function_only

Next = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (n, x, p(n), p(n - 1)) -> p(n + 1)


def _family(name: str, first: Callable[[Tensor], Tensor], following: Next) -> Any:
    def function(input: Any, n: Any) -> Tensor:
        degrees = as_tensor(n)
        degrees = signs.trunc(degrees)
        x, _ = floats(input, n)
        most = int(np.asarray(degrees.numpy(), np.float64).max(initial=0))
        wide = x.cast("float64") if most > 1 else x
        shape = np.broadcast_shapes(x.shape, degrees.shape)
        wide, at = wide.expand(shape), degrees.expand(shape)
        before, now = wide * 0 + 1.0, first(wide)
        made = (at < 0).where(0.0, before)
        for k in range(1, most + 1):
            made = (at >= k).where(now, made)
            before, now = now, following(k, wide, now, before)
        return made.cast(x.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {name.replace('_', ' ')} of degree n."
    return function_only(function)


def _twice(k: int, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return x * now * 2.0 - before


def _shifted(k: int, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return (x * 4.0 - 2.0) * now - before


chebyshev_polynomial_t = _family("chebyshev_polynomial_t", lambda x: x, _twice)
chebyshev_polynomial_u = _family("chebyshev_polynomial_u", lambda x: x * 2.0, _twice)
chebyshev_polynomial_v = _family("chebyshev_polynomial_v", lambda x: x * 2.0 - 1.0, _twice)
chebyshev_polynomial_w = _family("chebyshev_polynomial_w", lambda x: x * 2.0 + 1.0, _twice)
shifted_chebyshev_polynomial_t = _family(
    "shifted_chebyshev_polynomial_t", lambda x: x * 2.0 - 1.0, _shifted
)
shifted_chebyshev_polynomial_u = _family(
    "shifted_chebyshev_polynomial_u", lambda x: x * 4.0 - 2.0, _shifted
)
shifted_chebyshev_polynomial_v = _family(
    "shifted_chebyshev_polynomial_v", lambda x: x * 4.0 - 3.0, _shifted
)
shifted_chebyshev_polynomial_w = _family(
    "shifted_chebyshev_polynomial_w", lambda x: x * 4.0 - 1.0, _shifted
)
hermite_polynomial_h = _family(
    "hermite_polynomial_h", lambda x: x * 2.0, lambda k, x, p, q: x * p * 2.0 - q * (2.0 * k)
)
hermite_polynomial_he = _family(
    "hermite_polynomial_he", lambda x: x, lambda k, x, p, q: x * p - q * float(k)
)
laguerre_polynomial_l = _family(
    "laguerre_polynomial_l", lambda x: 1.0 - x,
    lambda k, x, p, q: ((2.0 * k + 1.0 - x) * p - q * float(k)) * (1.0 / (k + 1)),
)  # fmt: skip
legendre_polynomial_p = _family(
    "legendre_polynomial_p", lambda x: x,
    lambda k, x, p, q: (x * p * (2.0 * k + 1.0) - q * float(k)) * (1.0 / (k + 1)),
)  # fmt: skip
