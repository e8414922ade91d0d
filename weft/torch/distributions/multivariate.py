"""The normal distribution of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.tensor.base import place
from weft.torch import linalg, randomness
from weft.torch.creation import eye
from weft.torch.diagonals import diagonal
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution
from weft.torch.tensor import adopt, floats


class MultivariateNormal(Distribution):
    """The normal distribution of vectors with mean `loc` [..., n] and one of covariance_matrix,
    precision_matrix (its inverse) and scale_tril (its Cholesky factor), each [..., n, n]."""

    has_rsample = True
    support = constraints.real_vector

    def __init__(
        self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None,
        scale_tril: Any = None, validate_args: Any = None,
    ) -> None:  # fmt: skip
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise UsageError(
                "MultivariateNormal: give one of covariance_matrix, precision_matrix, scale_tril"
            )
        loc, matrix = floats(adopt(loc), adopt(given[0]))
        n = loc.shape[-1] if loc.ndim else 0
        if not loc.ndim or matrix.shape[-2:] != (n, n):
            raise ShapeError(
                f"MultivariateNormal: loc {list(loc.shape)}, matrix {list(matrix.shape)}; expected "
                "[..., n] and [..., n, n]"
            )
        batch = np.broadcast_shapes(loc.shape[:-1], matrix.shape[:-2])
        self.loc: Any = loc.broadcast_to((*batch, n))
        matrix = matrix.broadcast_to((*batch, n, n))
        if scale_tril is not None:
            self.scale_tril: Any = matrix
        elif covariance_matrix is not None:
            self.scale_tril = linalg.cholesky(matrix)
        else:  # the inverse's factor is that of the matrix read backwards, inverted
            back = linalg.cholesky(matrix.flip(-2, -1)).flip(-2, -1).mT
            one = eye(n, dtype=matrix.dtype).expand(*matrix.shape)
            self.scale_tril = linalg.solve_triangular(back, one, upper=False)
        super().__init__(batch, (n,))

    @property
    def covariance_matrix(self) -> Any:
        """The expected products of the elements' distances from the mean."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    @property
    def mean(self) -> Any:
        """The expected value."""
        return self.loc

    @property
    def mode(self) -> Any:
        """The vector of the highest density."""
        return self.loc

    @property
    def variance(self) -> Any:
        """The expected squared distance of each element from its mean."""
        return (self.scale_tril * self.scale_tril).sum(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """loc + scale_tril z."""
        z = randomness.randn(*self._sizes(sample_shape), dtype=self.loc.dtype,
                             device=place(self.loc))  # fmt: skip
        return self.loc + (self.scale_tril @ z.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self) -> Any:
        return diagonal(self.scale_tril, 0, -2, -1).log().sum(-1)

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the density at a vector."""
        away = (adopt(value) - self.loc).unsqueeze(-1)
        factor = self.scale_tril.expand(*away.shape[:-2], *self.scale_tril.shape[-2:])
        z = linalg.solve_triangular(factor, away, upper=False).squeeze(-1)
        n = self.event_shape[0]
        return -0.5 * ((z * z).sum(-1) + n * math.log(2 * math.pi)) - self._half_log_det()

    def entropy(self) -> Any:
        """n/2 (1 + log 2 pi) + 1/2 log det(covariance)."""
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._half_log_det()
