"""Distributions of counts of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.tensor.autograd import no_grad
from weft.torch.arithmetic import where
from weft.torch.creation import arange
from weft.torch.distributions import constraints
from weft.torch.distributions.base import parameters
from weft.torch.distributions.continuous import _uniform
from weft.torch.distributions.discrete import OverCategories, _Chance
from weft.torch.distributions.gammas import _drawn
from weft.torch.gamma import lgamma
from weft.torch.nn import functional as F


class Geometric(_Chance):
    """The failures before the first success of trials with probability `probs`."""

    support = constraints.nonnegative_integer

    def _shaped(self, given: Any) -> None:
        super()._shaped(given)
        if not self._by_logits:
            self._want("probs", given, constraints.positive)

    @property
    def mean(self) -> Any:
        """1 / probs - 1."""
        return 1 / self.probs - 1

    @property
    def mode(self) -> Any:
        """0."""
        return self.probs * 0

    @property
    def variance(self) -> Any:
        """(1 / probs - 1) / probs."""
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Counts, as floats."""
        with no_grad():
            probs = self.probs
            return (_uniform(self._sizes(sample_shape), probs).log() / (-probs).log1p()).floor()

    def _log_prob(self, value: Any) -> Any:
        probs = self.probs
        failure = where((probs == 1) & (value == 0), 0.0, probs)
        return value * (-failure).log1p() + probs.log()

    def entropy(self) -> Any:
        """The entropy of a trial / probs."""
        probs = self.probs
        return F.binary_cross_entropy_with_logits(self.logits, probs, reduction="none") / probs


class _Trials(_Chance):
    """A distribution of `total_count` and the probability of an outcome."""

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: Any = None
    ) -> None:
        if (probs is None) == (logits is None):
            raise UsageError(f"{type(self).__name__}: give either probs or logits")
        self.total_count, given = parameters(total_count, logits if probs is None else probs)
        self._want("total_count", self.total_count, self._counts)
        super().__init__(*((given, None) if logits is None else (None, given)))

    _counts: Any = constraints.nonnegative_integer


class Binomial(_Trials):
    """The successes of `total_count` trials with probability `probs`."""

    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None,
        validate_args: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(total_count, probs, logits)

    @property
    def support(self) -> Any:
        """0 to total_count."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Any:
        """total_count probs."""
        return self.total_count * self.probs

    @property
    def mode(self) -> Any:
        """(total_count + 1) probs, rounded down, total_count or less."""
        return ((self.total_count + 1) * self.probs).floor().minimum(self.total_count)

    @property
    def variance(self) -> Any:
        """total_count probs (1 - probs)."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Counts, as floats."""
        trials = self.total_count.detach().numpy().astype(np.int64)
        of = lambda draw, p: draw.binomial(trials, p)  # noqa: E731
        return _drawn(of, self.probs, self._sizes(sample_shape))

    def _log_prob(self, value: Any) -> Any:
        n, logits = self.total_count, self.logits
        ways = lgamma(n + 1) - lgamma(value + 1) - lgamma(n - value + 1)
        return ways + value * logits - n * F.softplus(logits)

    def enumerate_support(self, expand: bool = True) -> Any:
        """0 to total_count along a new first axis. Raises UsageError if the batch has several."""
        counts = np.unique(self.total_count.detach().numpy())
        if len(counts) != 1:
            raise UsageError("Binomial: total_count differs in the batch; expected one number")
        return self._enumerated(arange(int(counts[0]) + 1, dtype=self._given.dtype), expand)

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        scores = self._log_prob(self.enumerate_support(False))
        return -(scores.exp() * scores).sum(0)


class NegativeBinomial(_Trials):
    """The successes, of probability `probs`, before `total_count` failures (0 or more, whole or
    not)."""

    support = constraints.nonnegative_integer
    _counts = constraints.nonnegative

    def _shaped(self, given: Any) -> None:
        super()._shaped(given)
        if not self._by_logits:
            self._want("probs", given, constraints.half_open_interval(0.0, 1.0))

    @property
    def mean(self) -> Any:
        """total_count e^logits."""
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Any:
        """(total_count - 1) e^logits, rounded down, 0 or more."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0)

    @property
    def variance(self) -> Any:
        """mean / (1 - probs)."""
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Counts, as floats: Poisson's, with a gamma variable as their rate."""
        odds = self.logits.exp().detach().numpy()
        of = lambda draw, n: draw.poisson(draw.standard_gamma(n) * odds)  # noqa: E731
        return _drawn(of, self.total_count, self._sizes(sample_shape))

    def _log_prob(self, value: Any) -> Any:
        n, logits = self.total_count, self.logits
        ways = lgamma(n + value) - lgamma(value + 1) - lgamma(n)
        ways = where(n + value == 0, 0.0, ways)
        return ways + n * F.logsigmoid(-logits) + value * F.logsigmoid(logits)


class Multinomial(OverCategories):
    """The counts of n outcomes in `total_count` trials, along the last axis."""

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None,
        validate_args: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(total_count, int):
            raise UsageError("Multinomial: expected one whole number as total_count")
        self.total_count = total_count
        super().__init__(probs, logits)

    @property
    def support(self) -> Any:
        """Counts whose sum is total_count."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Any:
        """total_count probs."""
        return self.total_count * self.probs

    @property
    def variance(self) -> Any:
        """total_count probs (1 - probs)."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Counts, as floats."""
        n = self.total_count
        of = lambda draw, p: draw.multinomial(n, p / p.sum(-1, keepdims=True))  # noqa: E731
        return _drawn(of, self.probs, self._sizes(sample_shape))

    def _log_prob(self, value: Any) -> Any:
        powers = where(value == 0, 0.0, self.logits * value).sum(-1)
        return lgamma(value.sum(-1) + 1) - lgamma(value + 1).sum(-1) + powers

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        n = self.total_count
        each = Binomial(n, self.probs, validate_args=False)
        counts = each.enumerate_support(False)
        spread = (each._log_prob(counts).exp() * lgamma(counts + 1)).sum((0, -1))
        whole = lgamma(self.probs.sum(-1) * 0 + (n + 1))
        return n * self._categorical.entropy() - whole + spread
