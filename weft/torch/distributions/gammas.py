"""Distributions made of gamma variables, and counts. Samples are NumPy's, on the host, from the
stream of weft.manual_seed; they have no gradient with respect to the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ShapeError
from weft.tensor.base import place
from weft.tensor.keys import place_like
from weft.tensor.random import draw_seed
from weft.torch.distributions.base import Distribution, parameters
from weft.torch.gamma import digamma, lgamma
from weft.torch.special import xlogy
from weft.torch.tensor import Tensor


def _drawn(of: Callable[[Any, Any], Any], like: Any, shape: Sequence[int]) -> Any:
    """of(generator, the content of `like` broadcast to a shape), where `like` is."""
    content = np.broadcast_to(like.detach().numpy().astype(np.float64), tuple(shape))
    made = of(np.random.Generator(np.random.Philox(draw_seed())), content)
    made = np.asarray(made).astype(like.dtype.numpy)
    return Tensor(place_like(like, made)) if place(like) is not None else Tensor(made)


def _gammas(draw: Any, shape: Any) -> Any:
    least = float(np.finfo(np.float32).tiny)  # a small concentration gives less than float32 has
    return np.maximum(draw.standard_gamma(shape), least)


class Gamma(Distribution):
    """The density rate^concentration x^(concentration - 1) exp(-rate x) / gamma(concentration)."""

    def __init__(self, concentration: Any, rate: Any, validate_args: Any = None) -> None:
        self.concentration, self.rate = parameters(concentration, rate)
        super().__init__(self.rate.shape)

    @property
    def mean(self) -> Any:
        """concentration / rate."""
        return self.concentration / self.rate

    @property
    def variance(self) -> Any:
        """concentration / rate^2."""
        return self.concentration / (self.rate * self.rate)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample without history."""
        shape = self._sizes(sample_shape)
        return _drawn(_gammas, self.concentration, shape) / self.rate.detach()

    def log_prob(self, value: Tensor) -> Any:
        """The logarithm of the density at a value above 0."""
        a, b = self.concentration, self.rate
        return xlogy(a, b) + xlogy(a - 1, value) - b * value - lgamma(a)

    def entropy(self) -> Any:
        """a - log(rate) + log gamma(a) + (1 - a) digamma(a), for a = concentration."""
        a = self.concentration
        return a - self.rate.log() + lgamma(a) + (1.0 - a) * digamma(a)


class Chi2(Gamma):
    """The sum of `df` squared standard normal variables."""

    def __init__(self, df: Any, validate_args: Any = None) -> None:
        (self.df,) = parameters(df)
        super().__init__(self.df * 0.5, 0.5)


class Dirichlet(Distribution):
    """Shares that sum to 1 over the last axis, with density prod x^(concentration - 1) / B."""

    def __init__(self, concentration: Any, validate_args: Any = None) -> None:
        (self.concentration,) = parameters(concentration)
        if not self.concentration.ndim:
            raise ShapeError("Dirichlet: concentration is 0-d; expected one or more axes")
        shape = self.concentration.shape
        super().__init__(shape[:-1], shape[-1:])

    @property
    def mean(self) -> Any:
        """concentration / its sum."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def variance(self) -> Any:
        """mean (1 - mean) / (the concentration's sum + 1)."""
        mean = self.mean
        return mean * (1 - mean) / (self.concentration.sum(-1, True) + 1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample without history."""

        def shares(draw: Any, a: Any) -> Any:
            parts = _gammas(draw, a)
            return parts / parts.sum(-1, keepdims=True)

        return _drawn(shares, self.concentration, self._sizes(sample_shape))

    def log_prob(self, value: Tensor) -> Any:
        """The logarithm of the density at shares."""
        a = self.concentration
        return xlogy(a - 1.0, value).sum(-1) + lgamma(a.sum(-1)) - lgamma(a).sum(-1)

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        return (
            lgamma(a).sum(-1) - lgamma(total) - (k - total) * digamma(total)
            - ((a - 1.0) * digamma(a)).sum(-1)
        )  # fmt: skip


class Beta(Distribution):
    """The density x^(a - 1) (1 - x)^(b - 1) / B(a, b) on 0..1, for a = concentration1 and
    b = concentration0."""

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: Any = None) -> None:
        self.concentration1, self.concentration0 = parameters(concentration1, concentration0)
        super().__init__(self.concentration1.shape)

    @property
    def mean(self) -> Any:
        """a / (a + b)."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Any:
        """a b / ((a + b)^2 (a + b + 1))."""
        a, b = self.concentration1, self.concentration0
        return a * b / ((a + b) * (a + b) * (a + b + 1))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample without history."""
        other = self.concentration0.detach().numpy().astype(np.float64)

        def share(draw: Any, a: Any) -> Any:
            one = _gammas(draw, a)
            return one / (one + _gammas(draw, np.broadcast_to(other, a.shape)))

        return _drawn(share, self.concentration1, self._sizes(sample_shape))

    def log_prob(self, value: Tensor) -> Any:
        """The logarithm of the density at a value in 0..1."""
        a, b = self.concentration1, self.concentration0
        inside = xlogy(a - 1.0, value) + xlogy(b - 1.0, 1.0 - value)
        return inside + lgamma(a + b) - lgamma(a) - lgamma(b)

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        a, b = self.concentration1, self.concentration0
        whole = lgamma(a) + lgamma(b) - lgamma(a + b)
        slopes = (a - 1.0) * digamma(a) + (b - 1.0) * digamma(b)
        return whole - slopes + (a + b - 2.0) * digamma(a + b)


class Poisson(Distribution):
    """Counts with expected value `rate`."""

    def __init__(self, rate: Any, validate_args: Any = None) -> None:
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape)

    @property
    def mean(self) -> Any:
        """rate."""
        return self.rate

    @property
    def variance(self) -> Any:
        """rate."""
        return self.rate

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Counts, as floats."""
        return _drawn(lambda draw, a: draw.poisson(a), self.rate, self._sizes(sample_shape))

    def log_prob(self, value: Tensor) -> Any:
        """The logarithm of the probability of a count."""
        return xlogy(value, self.rate) - self.rate - lgamma(value + 1)
