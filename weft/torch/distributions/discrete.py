"""Distributions over finitely many values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.tensor.autograd import no_grad
from weft.torch import randomness
from weft.torch.arithmetic import where
from weft.torch.creation import arange
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution, ExponentialFamily, parameters
from weft.torch.nn import functional as F
from weft.torch.picking import gather
from weft.torch.reductions import logsumexp

_EPS = float(np.finfo(np.float32).eps)


_weights = constraints._Plain(
    "weights of 0 or more, not all 0", lambda x: (x >= 0).all(-1) & (x.sum(-1) > 0), 1)  # fmt: skip


class _Chosen(Distribution):
    """A distribution that is given by `probs` or by `logits`."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Any = None) -> None:
        if (probs is None) == (logits is None):
            raise UsageError(f"{type(self).__name__}: give either probs or logits")
        (given,) = parameters(logits if probs is None else probs)
        self._given, self._by_logits = given, probs is None
        self._shaped(given)

    def _shaped(self, given: Any) -> None:
        Distribution.__init__(self, given.shape)
        if not self._by_logits:
            self._want("probs", given, constraints.unit_interval)


class _Chance(_Chosen):
    """A distribution of the probability of one outcome."""

    @property
    def probs(self) -> Any:
        """The probability of 1."""
        return self._given.sigmoid() if self._by_logits else self._given

    @property
    def logits(self) -> Any:
        """log(probs / (1 - probs)), with probs at least one rounding step away from 0 and 1."""
        if self._by_logits:
            return self._given
        inside = self._given.clamp(min=_EPS, max=1 - _EPS)
        return inside.log() - (-inside).log1p()


class Bernoulli(_Chance, ExponentialFamily):
    """1 with probability `probs` (or sigmoid of `logits`), else 0."""

    support = constraints.boolean
    has_enumerate_support = True

    @property
    def mode(self) -> Any:
        """1 where it is the likelier; NaN where both are as likely."""
        return where(self.probs == 0.5, math.nan, (self.probs >= 0.5).cast(self.probs.dtype))

    def enumerate_support(self, expand: bool = True) -> Any:
        """0 and 1 along a new first axis."""
        return self._enumerated(arange(2, dtype=self._given.dtype), expand)

    @property
    def mean(self) -> Any:
        """The probability of 1."""
        return self.probs

    @property
    def variance(self) -> Any:
        """probs * (1 - probs)."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Zeros and ones."""
        with no_grad():
            return randomness.bernoulli(self.probs.broadcast_to(self._sizes(sample_shape)))

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the probability of a value."""
        logits, value = parameters(self.logits, value)
        return -F.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Any:
        """-p log p - (1 - p) log(1 - p)."""
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Categorical(_Chosen):
    """0..n-1 with probabilities proportional to `probs`, or softmax of `logits`, on the last
    axis."""

    has_enumerate_support = True

    def _shaped(self, given: Any) -> None:
        if not given.ndim:
            raise UsageError("Categorical: probs and logits need at least one axis")
        Distribution.__init__(self, given.shape[:-1])
        if not self._by_logits:
            self._want("probs", given, _weights)

    @property
    def support(self) -> Any:
        """0 to n - 1."""
        return constraints.integer_interval(0, self._given.shape[-1] - 1)

    @property
    def mode(self) -> Any:
        """The most probable index."""
        return self.probs.argmax(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        """All indices along a new first axis."""
        return self._enumerated(arange(self._given.shape[-1]), expand)

    @property
    def logits(self) -> Any:
        """Logarithms of the probabilities."""
        if self._by_logits:
            return self._given - logsumexp(self._given, -1, True)
        return self.probs.clamp(min=_EPS, max=1 - _EPS).log()

    @property
    def probs(self) -> Any:
        """The probabilities, whose sum is 1."""
        if self._by_logits:
            return F.softmax(self._given, -1)
        return self._given / self._given.sum(-1, keepdims=True)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Indices."""
        n, shape = self._given.shape[-1], (*sample_shape, *self.batch_shape)
        with no_grad():
            rows = self.probs.reshape(-1, n)
            drawn = randomness.multinomial(rows, math.prod(sample_shape), True)
            return drawn.T.reshape(*shape)

    def _log_prob(self, value: Any) -> Any:
        """The logarithm of the probability of indices."""
        shape = np.broadcast_shapes(value.shape, self.batch_shape)
        logits = self.logits.broadcast_to((*shape, self._given.shape[-1]))
        at = value.broadcast_to(shape).unsqueeze(-1).long()
        return gather(logits, -1, at).squeeze(-1)

    def entropy(self) -> Any:
        """-sum of p log p."""
        logits = self.logits.clamp(min=float(np.finfo(np.float32).min))
        return -(logits * self.probs).sum(-1)


class OverCategories(Distribution):
    """A distribution whose outcomes are those of a Categorical."""

    def __init__(self, probs: Any, logits: Any) -> None:
        self._categorical = Categorical(probs, logits, validate_args=self._checked)
        super().__init__(self._categorical.batch_shape, self._categorical.probs.shape[-1:])

    @property
    def probs(self) -> Any:
        """The probabilities of the outcomes, whose sum is 1."""
        return self._categorical.probs

    @property
    def logits(self) -> Any:
        """Their logarithms."""
        return self._categorical.logits
