"""Mixtures of distributions of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.tensor.autograd import no_grad
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution
from weft.torch.distributions.discrete import Categorical
from weft.torch.nn import functional as F
from weft.torch.picking import gather
from weft.torch.reductions import logsumexp


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
