"""Mixtures, and normal vectors whose covariance has a low rank and a diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.tensor.autograd import no_grad
from weft.tensor.base import place
from weft.torch import linalg, randomness
from weft.torch.creation import eye
from weft.torch.diagonals import diag_embed, diagonal
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution
from weft.torch.distributions.discrete import Categorical
from weft.torch.nn import functional as F
from weft.torch.picking import gather
from weft.torch.reductions import logsumexp
from weft.torch.tensor import adopt, floats


class _Mixed(constraints.Constraint):
    """The support of all components."""

    def __init__(self, component: Any, axes: int) -> None:
        self._component, self._axis = component, -1 - axes
        self.event_dim, self.is_discrete = component.event_dim, component.is_discrete
        self.expected = component.expected

    def check(self, value: Any) -> Any:
        return self._component.check(value.unsqueeze(self._axis)).all(-1)


class MixtureSameFamily(Distribution):
    """A mixture: `mixture_distribution` (a Categorical of n) draws one of the n entries on the last
    axis of `component_distribution`'s batch."""

    def __init__(
        self, mixture_distribution: Any, component_distribution: Any, validate_args: Any = None
    ) -> None:
        mixture, component = mixture_distribution, component_distribution
        if not isinstance(mixture, Categorical) or not isinstance(component, Distribution):
            raise UsageError("MixtureSameFamily: expected a Categorical and a distribution")
        n, batch = mixture.probs.shape[-1], component.batch_shape
        if not batch or batch[-1] != n:
            raise ShapeError(
                f"MixtureSameFamily: components of batch {list(batch)}; expected {n} at its end"
            )
        self.mixture_distribution = mixture.expand(batch[:-1])
        self.component_distribution = component
        super().__init__(batch[:-1], component.event_shape)

    @property
    def support(self) -> Any:
        """The components'."""
        return _Mixed(self.component_distribution.support, len(self.event_shape))

    def _weighed(self, x: Any) -> Any:
        """The weighted sum over the components, [..., n, *event_shape]."""
        axes = len(self.event_shape)
        weights = self.mixture_distribution.probs
        return (weights.reshape(*weights.shape, *(1,) * axes) * x).sum(-1 - axes)

    @property
    def mean(self) -> Any:
        """The expected value."""
        return self._weighed(self.component_distribution.mean)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        parts = self.component_distribution
        away = parts.mean - self.mean.unsqueeze(-1 - len(self.event_shape))
        return self._weighed(parts.variance + away * away)

    def _each(self, of: Any, value: Any) -> Any:
        return of(value.unsqueeze(-1 - len(self.event_shape)))

    def _log_prob(self, value: Any) -> Any:
        scores = self._each(self.component_distribution.log_prob, value)
        return logsumexp(scores + F.log_softmax(self.mixture_distribution.logits, -1), -1)

    def _cdf(self, value: Any) -> Any:
        shares = self._each(self.component_distribution.cdf, value)
        return (shares * self.mixture_distribution.probs).sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample of the drawn component."""
        event = self.event_shape
        with no_grad():
            drawn = self.component_distribution.sample(sample_shape)
            at = self.mixture_distribution.sample(sample_shape)
            at = at.reshape(*at.shape, 1, *(1,) * len(event))
            at = at.broadcast_to((*at.shape[: at.ndim - len(event)], *event))
            return gather(drawn, -1 - len(event), at).squeeze(-1 - len(event))


class LowRankMultivariateNormal(Distribution):
    """The normal distribution of vectors with mean `loc` [..., n] and the covariance
    cov_factor cov_factor^T + diag(cov_diag), of [..., n, k] and [..., n]."""

    arg_constraints = {
        "loc": constraints.real_vector, "cov_diag": constraints.independent(constraints.positive, 1)
    }  # fmt: skip
    support = constraints.real_vector
    has_rsample = True

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
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    @property
    def mean(self) -> Any:
        """The expected value."""
        return self.loc

    @property
    def mode(self) -> Any:
        """loc."""
        return self.loc

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
        return -0.5 * (square + self.event_shape[0] * math.log(2 * math.pi)) - self._half_log_det()

    def entropy(self) -> Any:
        """n/2 (1 + log 2 pi) + 1/2 log det(covariance)."""
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._half_log_det()
