"""Distributions of a transform of a variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.tensor.autograd import no_grad
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution, Independent, parameters, summed
from weft.torch.distributions.composed import ComposeTransform
from weft.torch.distributions.continuous import Normal
from weft.torch.distributions.mappings import ExpTransform, Transform


class TransformedDistribution(Distribution):
    """The distribution of transforms, one after the other, of a variable of `base_distribution`."""

    def __init__(self, base_distribution: Any, transforms: Any, validate_args: Any = None) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in self.transforms):
            raise UsageError("TransformedDistribution: expected a Transform or a list of them")
        whole, base = ComposeTransform(self.transforms), base_distribution
        shape, events = (*base.batch_shape, *base.event_shape), len(base.event_shape)
        inner, outer = whole.domain.event_dim, whole.codomain.event_dim
        if len(shape) < inner:
            raise ShapeError(
                f"TransformedDistribution: a base of shape {list(shape)}; expected {inner} axes or "
                "more"
            )
        made = whole.forward_shape(shape)
        wider = whole.inverse_shape(made)
        if wider != shape:
            base = base.expand(wider[: len(wider) - events])
        self.base_dist: Any = Independent(base, inner - events) if inner > events else base
        self.has_rsample = bool(base.has_rsample)
        cut = len(made) - max(outer, events + outer - inner)
        super().__init__(made[:cut], made[cut:])

    @property
    def support(self) -> Any:
        """The last transform's side, over the event."""
        if not self.transforms:
            return self.base_dist.support
        side = self.transforms[-1].codomain
        more = len(self.event_shape) - side.event_dim
        return constraints.independent(side, more) if more > 0 else side

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """The transforms of a sample of the base."""
        return self._forward(self.base_dist.rsample(sample_shape))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """The transforms of a sample of the base, without history."""
        with no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def _forward(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x

    def _log_prob(self, value: Any) -> Any:
        """That of the base at the inverse, less the logarithm of the transforms' slopes."""
        axes, total = len(self.event_shape), 0
        for t in reversed(self.transforms):
            x = t.inv(value)
            axes += t.domain.event_dim - t.codomain.event_dim
            slope = t.log_abs_det_jacobian(x, value)
            total, value = total - summed(slope, axes - t.domain.event_dim), x
        base = self.base_dist
        return total + summed(base.log_prob(value), axes - len(base.event_shape))

    def _turned(self, share: Any) -> Any:
        """1 - share where the transforms fall."""
        sign: Any = 1
        for t in self.transforms:
            sign = sign * t.sign
        return share if isinstance(sign, int) and sign == 1 else sign * (share - 0.5) + 0.5

    def _cdf(self, value: Any) -> Any:
        for t in reversed(self.transforms):
            value = t.inv(value)
        return self._turned(self.base_dist.cdf(value))

    def icdf(self, value: Any) -> Any:
        """The transforms of the base's value."""
        return self._forward(self.base_dist.icdf(self._turned(value)))


class LogNormal(TransformedDistribution):
    """The distribution of e^x for a normal x."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive

    def __init__(self, loc: Any, scale: Any, validate_args: Any = None) -> None:
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(Normal(self.loc, self.scale, validate_args=False), ExpTransform())

    @property
    def mean(self) -> Any:
        """The expected value."""
        return (self.loc + self.scale * self.scale / 2).exp()

    @property
    def mode(self) -> Any:
        """The value of the highest density."""
        return (self.loc - self.scale * self.scale).exp()

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        square = self.scale * self.scale
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Any:
        """That of the normal distribution, plus loc."""
        return self.base_dist.entropy() + self.loc
