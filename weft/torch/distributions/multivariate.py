"""Normal distributions of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.tensor.base import place
from weft.torch import linalg, randomness
from weft.torch.creation import eye
from weft.torch.diagonals import diag_embed, diagonal
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Centred
from weft.torch.tensor import adopt, floats


class _NormalVectors(Centred):
    """A normal distribution of vectors."""

    has_rsample = True
    support = constraints.real_vector
    covariance_matrix: Any

    @property
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    def entropy(self) -> Any:
        """n/2 (1 + log 2 pi) + 1/2 log det(covariance)."""
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._half_log_det()

    def _density(self, square: Any) -> Any:
        """The logarithm of the density at this squared distance, in units of the covariance."""
        return -0.5 * (square + self.event_shape[0] * math.log(2 * math.pi)) - self._half_log_det()

    def _half_log_det(self) -> Any:
        raise NotImplementedError


class MultivariateNormal(_NormalVectors):
    """The normal distribution of vectors with mean `loc` [..., n] and one of covariance_matrix,
    precision_matrix (its inverse) and scale_tril (its Cholesky factor), each [..., n, n]."""

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
        return self._density((z * z).sum(-1))


class LowRankMultivariateNormal(_NormalVectors):
    """The normal distribution of vectors with mean `loc` [..., n] and the covariance
    cov_factor cov_factor^T + diag(cov_diag), of [..., n, k] and [..., n]."""

    arg_constraints = {
        "loc": constraints.real_vector, "cov_diag": constraints.independent(constraints.positive, 1)
    }  # fmt: skip

    def __init__(self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: Any = None) -> None:
        loc, factor, diag = floats(adopt(loc), adopt(cov_factor), adopt(cov_diag))
        n = loc.shape[-1] if loc.ndim else 0
        if not n or factor.ndim < 2 or factor.shape[-2] != n or diag.shape[-1:] != (n,):
            raise ShapeError(
                f"LowRankMultivariateNormal: loc {list(loc.shape)}, cov_factor "
                f"{list(factor.shape)}, cov_diag {list(diag.shape)}; expected [..., n], "
                "[..., n, k] and [..., n]"
            )
        batch = np.broadcast_shapes(loc.shape[:-1], factor.shape[:-2], diag.shape[:-1])
        self.loc: Any = loc.broadcast_to((*batch, n))
        self.cov_factor: Any = factor.broadcast_to((*batch, *factor.shape[-2:]))
        self.cov_diag: Any = diag.broadcast_to((*batch, n))
        super().__init__(batch, (n,))

    @property
    def _capacitance(self) -> Any:
        """The Cholesky factor of 1 + W^T D^-1 W, [..., k, k]."""
        w = self.cov_factor
        inner = w.mT @ (w / self.cov_diag.unsqueeze(-1))
        return linalg.cholesky(inner + eye(w.shape[-1], dtype=w.dtype))

    @property
    def covariance_matrix(self) -> Any:
        """The expected products of the elements' distances from the mean."""
        return self.cov_factor @ self.cov_factor.mT + diag_embed(self.cov_diag)

    @property
    def scale_tril(self) -> Any:
        """The covariance's Cholesky factor."""
        return linalg.cholesky(self.covariance_matrix)

    @property
    def variance(self) -> Any:
        """The expected squared distance of each element from its mean."""
        return (self.cov_factor * self.cov_factor).sum(-1) + self.cov_diag

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """loc + cov_factor z + sqrt(cov_diag) z'."""
        shape = self._sizes(sample_shape)
        kind: Any = {"dtype": self.loc.dtype, "device": place(self.loc)}
        inner = randomness.randn(*shape[:-1], self.cov_factor.shape[-1], 1, **kind)
        outer = randomness.randn(*shape, **kind)
        return self.loc + (self.cov_factor @ inner).squeeze(-1) + self.cov_diag.sqrt() * outer

    def _half_log_det(self) -> Any:
        roots = diagonal(self._capacitance, 0, -2, -1).log().sum(-1)
        return roots + 0.5 * self.cov_diag.log().sum(-1)

    def _log_prob(self, value: Any) -> Any:
        away, factor = value - self.loc, self._capacitance
        scaled = away / self.cov_diag
        inner = self.cov_factor.mT @ scaled.unsqueeze(-1)
        factor = factor.expand(*inner.shape[:-2], *factor.shape[-2:])
        z = linalg.solve_triangular(factor, inner, upper=False).squeeze(-1)
        square = (away * scaled).sum(-1) - (z * z).sum(-1)
        return self._density(square)
