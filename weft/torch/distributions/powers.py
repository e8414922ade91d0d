"""Distributions of powers and logarithms of simple variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.torch.arithmetic import where
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution, parameters
from weft.torch.distributions.composed import StickBreakingTransform
from weft.torch.distributions.continuous import Exponential, Normal, _Located, _uniform
from weft.torch.distributions.gammas import Gamma
from weft.torch.distributions.mappings import AffineTransform, ExpTransform, PowerTransform
from weft.torch.distributions.transformed import TransformedDistribution
from weft.torch.gamma import digamma, lgamma
from weft.torch.tensor import adopt

EULER = float(np.euler_gamma)


class Gumbel(_Located):
    """The distribution function exp(-exp(-z)) for z = (x - loc) / scale."""

    @property
    def mean(self) -> Any:
        """loc + scale times Euler's constant."""
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Any:
        """pi^2 / 6 scale^2."""
        return self.scale * self.scale * (math.pi**2 / 6)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """loc - scale log(-log u)."""
        return self.icdf(_uniform(self._sizes(sample_shape), self.loc))

    def _log_prob(self, value: Any) -> Any:
        z = (self.loc - value) / self.scale
        return z - z.exp() - self.scale.log()

    def entropy(self) -> Any:
        """log(scale) + 1 + Euler's constant."""
        return self.scale.log() + (1 + EULER)

    def _cdf(self, value: Any) -> Any:
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        return self.loc - self.scale * (-adopt(value).log()).log()


class GeneralizedPareto(Distribution):
    """The distribution function 1 - (1 + c z)^(-1 / c) for z = (x - loc) / scale of 0 or more and
    c = concentration: that of what exceeds a high level. It ends at loc - scale / c for c < 0."""

    arg_constraints = {
        "loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real,
    }  # fmt: skip
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: Any = None) -> None:
        self.loc, self.scale, self.concentration = parameters(loc, scale, concentration)
        super().__init__(self.loc.shape)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """From loc on."""
        short = self.concentration < 0
        most = self.loc - self.scale / where(short, self.concentration, -1.0)
        return constraints.interval(self.loc, where(short, most, math.inf))

    @property
    def mode(self) -> Any:
        """loc."""
        return self.loc

    @property
    def mean(self) -> Any:
        """loc + scale / (1 - c); from c = 1 on, where it is infinite, PyTorch's NaN."""
        c = self.concentration
        return where(c < 1, self.loc + self.scale / (1 - c), math.nan)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean; NaN from c = 1 / 2 on."""
        c, scale = self.concentration, self.scale
        return where(c < 0.5, scale * scale / ((1 - c) * (1 - c) * (1 - 2 * c)), math.nan)

    def _curve(self) -> tuple[Any, Any]:
        """Returns where c is 0 (the exponential distribution serves there), and c with 1 there."""
        straight = self.concentration.abs() < 1e-8
        return straight, where(straight, 1.0, self.concentration)

    def _decay(self, value: Any) -> Any:
        """-log(1 - the distribution function)."""
        z, (straight, c) = (value - self.loc) / self.scale, self._curve()
        near = z - self.concentration * z * z / 2  # has the derivative at 0 too
        return where(straight, near, (where(straight, 0.0, c * z)).log1p() / c)

    def _log_prob(self, value: Any) -> Any:
        return -self.scale.log() - (1 + self.concentration) * self._decay(value)

    def _cdf(self, value: Any) -> Any:
        return -(-self._decay(value)).expm1()

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        rest, (straight, c) = -(-adopt(value)).log1p(), self._curve()
        near = rest + self.concentration * rest * rest / 2
        return self.loc + self.scale * where(straight, near, (c * rest).expm1() / c)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """The quantile of a probability drawn between 0 and 1."""
        return self.icdf(_uniform(self._sizes(sample_shape), self.loc))

    def entropy(self) -> Any:
        """log(scale) + c + 1."""
        return self.scale.log() + self.concentration + 1


class Weibull(TransformedDistribution):
    """The distribution function 1 - exp(-(x / scale)^concentration)."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: Any = None) -> None:
        self.scale, self.concentration = parameters(scale, concentration)
        base = Exponential(self.scale * 0 + 1, validate_args=False)
        power = PowerTransform(1 / self.concentration)
        super().__init__(base, [power, AffineTransform(0, self.scale)])

    def _moment(self, n: int) -> Any:
        return lgamma(1 + n / self.concentration).exp()

    @property
    def mean(self) -> Any:
        """scale gamma(1 + 1 / concentration)."""
        return self.scale * self._moment(1)

    @property
    def mode(self) -> Any:
        """scale ((k - 1) / k)^(1 / k) for k = concentration."""
        k = self.concentration
        return self.scale * ((k - 1) / k) ** (1 / k)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        first = self._moment(1)
        return self.scale * self.scale * (self._moment(2) - first * first)

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        k = self.concentration
        return EULER * (1 - 1 / k) + (self.scale / k).log() + 1


class Pareto(TransformedDistribution):
    """The density alpha scale^alpha / x^(alpha + 1) from `scale` on."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: Any = None) -> None:
        self.scale, self.alpha = parameters(scale, alpha)
        base = Exponential(self.alpha, validate_args=False)
        super().__init__(base, [ExpTransform(), AffineTransform(0, self.scale)])

    @property
    def support(self) -> Any:
        """`scale` or more."""
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Any:
        """alpha scale / (alpha - 1); infinity for alpha of 1 or less."""
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Any:
        """scale."""
        return self.scale

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean; infinity for alpha of 2 or less."""
        a = self.alpha.clamp(min=2)
        return self.scale * self.scale * a / ((a - 1) * (a - 1) * (a - 2))

    def entropy(self) -> Any:
        """log(scale / alpha) + 1 + 1 / alpha."""
        return (self.scale / self.alpha).log() + (1 + 1 / self.alpha)


class InverseGamma(TransformedDistribution):
    """The distribution of 1 / x for a gamma variable x."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: Any = None) -> None:
        self.concentration, self.rate = parameters(concentration, rate)
        base = Gamma(self.concentration, self.rate, validate_args=False)
        super().__init__(base, PowerTransform(-1.0))

    @property
    def mean(self) -> Any:
        """rate / (concentration - 1); infinity for a concentration of 1 or less."""
        a = self.concentration
        return where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def mode(self) -> Any:
        """rate / (concentration + 1)."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean; infinity for a concentration of 2 or
        less."""
        a = self.concentration
        return where(a > 2, self.rate * self.rate / ((a - 1) * (a - 1) * (a - 2)), math.inf)

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        a = self.concentration
        return a + self.rate.log() + lgamma(a) - (1 + a) * digamma(a)


class Kumaraswamy(Distribution):
    """The distribution function 1 - (1 - x^a)^b on 0..1, for a = concentration1 and
    b = concentration0."""

    arg_constraints = {
        "concentration1": constraints.positive, "concentration0": constraints.positive,
    }  # fmt: skip
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: Any = None) -> None:
        self.concentration1, self.concentration0 = parameters(concentration1, concentration0)
        super().__init__(self.concentration1.shape)

    def _moment(self, n: int) -> Any:
        """The expected value of x^n."""
        at, b = 1 + n / self.concentration1, self.concentration0
        return b * (lgamma(at) + lgamma(b) - lgamma(at + b)).exp()

    @property
    def mean(self) -> Any:
        """The expected value."""
        return self._moment(1)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        mean = self._moment(1)
        return self._moment(2) - mean * mean

    @property
    def mode(self) -> Any:
        """((a - 1) / (a b - 1))^(1 / a); NaN for an a or b below 1."""
        a, b = self.concentration1, self.concentration0
        made = ((a - 1) / (a * b - 1)) ** (1 / a)
        return where((a < 1) | (b < 1), math.nan, made)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample by the inverse of the distribution function."""
        return self.icdf(_uniform(self._sizes(sample_shape), self.concentration1))

    def _log_prob(self, value: Any) -> Any:
        a, b = self.concentration1, self.concentration0
        inside = (a - 1) * value.log() + (b - 1) * (-(value**a)).log1p()
        return a.log() + b.log() + inside

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        a, b = self.concentration1, self.concentration0
        return 1 - 1 / b + (1 - 1 / a) * (digamma(b + 1) + EULER) - a.log() - b.log()

    def _cdf(self, value: Any) -> Any:
        return 1 - (1 - value**self.concentration1) ** self.concentration0

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        left = (1 - adopt(value)) ** (1 / self.concentration0)
        return (1 - left) ** (1 / self.concentration1)


class LogisticNormal(TransformedDistribution):
    """Shares that a stick-breaking transform makes of normal variables: [..., n] to n + 1."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Any, scale: Any, validate_args: Any = None) -> None:
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(
            Normal(self.loc, self.scale, validate_args=False), StickBreakingTransform()
        )
