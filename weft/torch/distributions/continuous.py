"""Distributions with a density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.tensor.base import place
from weft.torch import randomness
from weft.torch.arithmetic import where
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Centred, Distribution, ExponentialFamily, parameters
from weft.torch.tensor import adopt

_TINY = 2.0**-24  # the distance of 1 from the float32 below it


def _uniform(shape: Sequence[int], like: Any) -> Any:
    """Numbers in (0, 1)."""
    drawn = randomness.rand(*shape, dtype=like.dtype, device=place(like))
    return (drawn + _TINY / 2).clamp(max=1 - _TINY)


class _Located(Centred):
    """A distribution of loc and scale."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: Any = None) -> None:
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(self.loc.shape)


class Normal(_Located, ExponentialFamily):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        return self.scale * self.scale

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """loc + scale * z."""
        z = randomness.randn(*self._sizes(sample_shape), dtype=self.loc.dtype,
                             device=place(self.loc))  # fmt: skip
        return self.loc + self.scale * z

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the density at a value."""
        z = (value - self.loc) / self.scale
        return -0.5 * z * z - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def entropy(self) -> Any:
        """1/2 log(2 pi e scale^2)."""
        return self.scale.log() + 0.5 * (1 + math.log(2 * math.pi))

    def _cdf(self, value: Any) -> Any:
        """The probability of at most a value."""
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        return self.loc + self.scale * (2 * adopt(value) - 1).erfinv() * math.sqrt(2)


class Laplace(_Located):
    """The density exp(-|x - loc| / scale) / (2 scale)."""

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        return 2 * self.scale * self.scale

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample by the inverse of the distribution function."""
        u = _uniform(self._sizes(sample_shape), self.loc) - 0.5
        return self.loc - self.scale * u.sign() * (-2 * u.abs()).log1p()

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the density at a value."""
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def _cdf(self, value: Any) -> Any:
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        off = adopt(value) - 0.5
        return self.loc - self.scale * off.sign() * (-2 * off.abs()).log1p()

    def entropy(self) -> Any:
        """1 + log(2 scale)."""
        return 1 + (2 * self.scale).log()


class Uniform(Distribution):
    """Equal density between low and high."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: Any = None) -> None:
        self.low, self.high = parameters(low, high)
        super().__init__(self.low.shape)
        self._want("high - low", self.high - self.low, constraints.positive)

    @property
    def support(self) -> Any:
        """From low to high."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Any:
        """The middle."""
        return (self.low + self.high) / 2

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        span = self.high - self.low
        return span * span / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample in [low, high)."""
        u = randomness.rand(*self._sizes(sample_shape), dtype=self.low.dtype,
                            device=place(self.low))  # fmt: skip
        return self.low + u * (self.high - self.low)

    def _log_prob(self, value: Any) -> Any:
        """-log(high - low) inside, minus infinity outside."""
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -(self.high - self.low).log(), -math.inf)

    def _cdf(self, value: Any) -> Any:
        return ((value - self.low) / (self.high - self.low)).clamp(min=0, max=1)

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        return adopt(value) * (self.high - self.low) + self.low

    def entropy(self) -> Any:
        """log(high - low)."""
        return (self.high - self.low).log()


class Exponential(ExponentialFamily):
    """The density rate * exp(-rate x) of x >= 0."""

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, rate: Any, validate_args: Any = None) -> None:
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape)

    @property
    def mode(self) -> Any:
        """0."""
        return self.rate * 0

    @property
    def mean(self) -> Any:
        """1 / rate."""
        return 1 / self.rate

    @property
    def variance(self) -> Any:
        """1 / rate^2."""
        return 1 / (self.rate * self.rate)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """-log(u) / rate."""
        return -_uniform(self._sizes(sample_shape), self.rate).log() / self.rate

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the density at a value."""
        return self.rate.log() - self.rate * value

    def _cdf(self, value: Any) -> Any:
        return -(-self.rate * value).expm1()

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        return -(-adopt(value)).log1p() / self.rate

    def entropy(self) -> Any:
        """1 - log(rate)."""
        return 1 - self.rate.log()
