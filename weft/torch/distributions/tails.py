"""Distributions of real values with a scale: heavy tails, halves, circles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.tensor.base import place
from weft.torch import randomness
from weft.torch.arithmetic import where
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Centred, Distribution, parameters
from weft.torch.distributions.continuous import Normal, _Located, _uniform
from weft.torch.distributions.gammas import Chi2, Gamma, _drawn
from weft.torch.gamma import digamma, lgamma
from weft.torch.special import i0e, i1e
from weft.torch.tensor import adopt

_TINY = 2.0**-126


class Cauchy(_Located):
    """The density 1 / (pi scale (1 + z^2)) for z = (x - loc) / scale, without a mean."""

    @property
    def mean(self) -> Any:
        """NaN."""
        return self.loc * math.nan

    @property
    def variance(self) -> Any:
        """Infinity."""
        return self.loc * 0 + math.inf

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample by the inverse of the distribution function."""
        return self.icdf(_uniform(self._sizes(sample_shape), self.loc))

    def _log_prob(self, value: Any) -> Any:
        z = (value - self.loc) / self.scale
        return -math.log(math.pi) - self.scale.log() - (z * z).log1p()

    def entropy(self) -> Any:
        """log(4 pi scale)."""
        return math.log(4 * math.pi) + self.scale.log()

    def _cdf(self, value: Any) -> Any:
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        return (math.pi * (adopt(value) - 0.5)).tan() * self.scale + self.loc


class _Half(Distribution):
    """The size of a variable whose density is symmetric around 0."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _whole: Any

    def __init__(self, scale: Any, validate_args: Any = None) -> None:
        (self.scale,) = parameters(scale)
        super().__init__(self.scale.shape)
        self.base_dist = self._whole(self.scale * 0, self.scale, validate_args=False)

    @property
    def mode(self) -> Any:
        """0."""
        return self.scale * 0

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample's absolute value."""
        return self.base_dist.rsample(sample_shape).abs()

    def _log_prob(self, value: Any) -> Any:
        return where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def entropy(self) -> Any:
        """That of the whole, less log 2."""
        return self.base_dist.entropy() - math.log(2)

    def _cdf(self, value: Any) -> Any:
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        return self.base_dist.icdf((adopt(value) + 1) / 2)


class HalfNormal(_Half):
    """The absolute value of a normal variable of mean 0 and standard deviation `scale`."""

    _whole = Normal

    @property
    def mean(self) -> Any:
        """scale sqrt(2 / pi)."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Any:
        """scale^2 (1 - 2 / pi)."""
        return self.scale * self.scale * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """The absolute value of a Cauchy variable around 0."""

    _whole = Cauchy

    @property
    def mean(self) -> Any:
        """Infinity."""
        return self.scale * 0 + math.inf

    @property
    def variance(self) -> Any:
        """Infinity."""
        return self.scale * 0 + math.inf


class StudentT(Distribution):
    """loc + scale times Student's t of `df` degrees of freedom."""

    arg_constraints = {
        "df": constraints.positive, "loc": constraints.real, "scale": constraints.positive,
    }  # fmt: skip
    support = constraints.real
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: Any = None
    ) -> None:
        self.df, self.loc, self.scale = parameters(df, loc, scale)
        super().__init__(self.df.shape)

    @property
    def mean(self) -> Any:
        """loc; NaN for df of 1 or less."""
        return where(self.df > 1, self.loc, math.nan)

    @property
    def mode(self) -> Any:
        """loc."""
        return self.loc

    @property
    def variance(self) -> Any:
        """scale^2 df / (df - 2); infinity for df of 2 or less, NaN for 1 or less."""
        finite = self.df > 2
        df = where(finite, self.df, 3.0)
        made = where(finite, self.scale * self.scale * df / (df - 2), math.inf)
        return where(self.df > 1, made, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """loc + scale z / sqrt(chi2 / df)."""
        shape = self._sizes(sample_shape)
        z = randomness.randn(*shape, dtype=self.loc.dtype, device=place(self.loc))
        squares = Chi2(self.df, validate_args=False).rsample(sample_shape)
        return self.loc + self.scale * z * (squares / self.df).rsqrt()

    def _log_prob(self, value: Any) -> Any:
        z, df = (value - self.loc) / self.scale, self.df
        whole = lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * (df * math.pi).log()
        return whole - self.scale.log() - (df + 1) / 2 * (z * z / df).log1p()

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        df = self.df
        half, more = df / 2, (df + 1) / 2
        log_beta = lgamma(half) + math.lgamma(0.5) - lgamma(more)
        slope = more * (digamma(more) - digamma(half))
        return self.scale.log() + slope + 0.5 * df.log() + log_beta


class FisherSnedecor(Distribution):
    """The ratio of two chi-square variables, each divided by its degrees of freedom."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: Any = None) -> None:
        self.df1, self.df2 = parameters(df1, df2)
        super().__init__(self.df1.shape)

    @property
    def mean(self) -> Any:
        """df2 / (df2 - 2); NaN for df2 of 2 or less."""
        return where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Any:
        """(df1 - 2) / df1 df2 / (df2 + 2); NaN for df1 of 2 or less."""
        made = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return where(self.df1 > 2, made, math.nan)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean; NaN for df2 of 4 or less."""
        a, b = self.df1, self.df2
        made = 2 * b * b * (a + b - 2) / (a * (b - 2) * (b - 2) * (b - 4))
        return where(b > 4, made, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample through which gradients flow."""
        upper, lower = (
            Gamma(df / 2, df / 2, validate_args=False).rsample(sample_shape).clamp(min=_TINY)
            for df in (self.df1, self.df2)
        )
        return (upper / lower).clamp(min=_TINY)

    def _log_prob(self, value: Any) -> Any:
        a, b, ratio = self.df1 / 2, self.df2 / 2, self.df1 / self.df2
        whole = lgamma(a + b) - lgamma(a) - lgamma(b) + a * ratio.log()
        return whole + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()


class VonMises(Centred):
    """The density exp(concentration cos(x - loc)) / (2 pi I0(concentration)) of angles in radians;
    samples are in [-pi, pi)."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, concentration: Any, validate_args: Any = None) -> None:
        self.loc, self.concentration = parameters(loc, concentration)
        super().__init__(self.loc.shape)

    @property
    def variance(self) -> Any:
        """The circular variance, 1 - I1 / I0."""
        return 1 - i1e(self.concentration) / i0e(self.concentration)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Angles."""
        shape = self._sizes(sample_shape)
        turn = _drawn(lambda draw, k: draw.vonmises(0.0, k), self.concentration, shape)
        return (turn + self.loc.detach() + math.pi) % (2 * math.pi) - math.pi

    def _log_prob(self, value: Any) -> Any:
        k = self.concentration  # log I0(k) is k + log i0e(k)
        return k * ((value - self.loc).cos() - 1) - math.log(2 * math.pi) - i0e(k).log()
