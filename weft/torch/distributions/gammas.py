"""Distributions made of gamma variables, and counts. Samples are NumPy's, on the host, from the
stream of weft.manual_seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ShapeError
from weft.tensor.autograd import is_grad_enabled
from weft.tensor.base import place
from weft.tensor.keys import place_like
from weft.tensor.random import draw_seed
from weft.torch.distributions import constraints
from weft.torch.distributions.base import ExponentialFamily, parameters
from weft.torch.gamma import _digamma, digamma, lgamma
from weft.torch.special import xlogy
from weft.torch.tensor import Tensor


def _drawn(of: Callable[[Any, Any], Any], like: Any, shape: Sequence[int]) -> Any:
    """of(generator, the content of `like` broadcast to a shape), where `like` is."""
    content = np.broadcast_to(like.detach().numpy().astype(np.float64), tuple(shape))
    made = of(np.random.Generator(np.random.Philox(draw_seed())), content)
    made = np.asarray(made).astype(like.dtype.numpy)
    return Tensor(place_like(like, made)) if place(like) is not None else Tensor(made)


def _gammas(concentration: Any, shape: Sequence[int]) -> Any:
    """Standard gamma variables; with gradients if their concentration has them."""
    slopes: list[np.ndarray] = []
    wanted = concentration.requires_grad and is_grad_enabled()

    def draw(source: Any, a: Any) -> Any:
        least = float(np.finfo(np.float32).tiny)  # float32 has nothing smaller
        x = np.maximum(source.standard_gamma(a), least)
        if wanted:
            slopes.append(_slope(a, x))
        return x

    made = _drawn(draw, concentration, shape)
    if not wanted:
        return made
    slope = _drawn(lambda _, __: slopes[0], concentration, shape)
    return made + (concentration - concentration.detach()) * slope


def _slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The derivative of a gamma variable x with respect to its concentration a, at a fixed value of
    its distribution function P: -(dP/da) / (dP/dx) (Figurnov et al., arXiv:1805.08498). P is the
    series sum of x^(a + k) e^-x / gamma(a + k + 1), differentiated term by term."""
    psi, log = _digamma(Tensor(a + 1)).numpy(), np.log(x)
    term = x / a
    total: np.ndarray = term * (psi - log)
    k = 0
    while True:
        k += 1
        term, psi = term * (x / (a + k)), psi + 1 / (a + k)
        total = total + term * (psi - log)
        if not np.any((term > 1e-9 * total) | (a + k < x)):
            return total


class Gamma(ExponentialFamily):
    """The density rate^concentration x^(concentration - 1) exp(-rate x) / gamma(concentration)."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, concentration: Any, rate: Any, validate_args: Any = None) -> None:
        self.concentration, self.rate = parameters(concentration, rate)
        super().__init__(self.rate.shape)

    @property
    def mode(self) -> Any:
        """(concentration - 1) / rate, 0 or more."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def mean(self) -> Any:
        """concentration / rate."""
        return self.concentration / self.rate

    @property
    def variance(self) -> Any:
        """concentration / rate^2."""
        return self.concentration / (self.rate * self.rate)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample through which gradients flow."""
        return _gammas(self.concentration, self._sizes(sample_shape)) / self.rate

    def _log_prob(self, value: Any) -> Any:
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


class Dirichlet(ExponentialFamily):
    """Shares that sum to 1 over the last axis, with density prod x^(concentration - 1) / B."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex

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

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample through which gradients flow."""
        parts = _gammas(self.concentration, self._sizes(sample_shape))
        return parts / parts.sum(-1, True)

    def _log_prob(self, value: Any) -> Any:
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


class Beta(ExponentialFamily):
    """The density x^(a - 1) (1 - x)^(b - 1) / B(a, b) on 0..1, for a = concentration1 and
    b = concentration0."""

    has_rsample = True
    arg_constraints = {
        "concentration1": constraints.positive, "concentration0": constraints.positive,
    }  # fmt: skip
    support = constraints.unit_interval

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

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample through which gradients flow."""
        shape = self._sizes(sample_shape)
        one, other = _gammas(self.concentration1, shape), _gammas(self.concentration0, shape)
        return one / (one + other)

    def _log_prob(self, value: Any) -> Any:
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


class Poisson(ExponentialFamily):
    """Counts with expected value `rate`."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: Any = None) -> None:
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape)

    @property
    def mode(self) -> Any:
        """rate, rounded down."""
        return self.rate.floor()

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

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the probability of a count."""
        return xlogy(value, self.rate) - self.rate - lgamma(value + 1)
