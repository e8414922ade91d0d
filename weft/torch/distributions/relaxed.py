"""Outcomes as vectors with one 1, and continuous relaxations of outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.tensor.autograd import no_grad
from weft.torch.arithmetic import where
from weft.torch.creation import eye, tensor
from weft.torch.distributions import constraints
from weft.torch.distributions.base import Distribution, ExponentialFamily, parameters
from weft.torch.distributions.continuous import _uniform
from weft.torch.distributions.discrete import Categorical, OverCategories, _Chance
from weft.torch.distributions.mappings import ExpTransform, SigmoidTransform
from weft.torch.distributions.transformed import TransformedDistribution
from weft.torch.nn import functional as F
from weft.torch.reductions import logsumexp
from weft.torch.tensor import adopt


class OneHotCategorical(OverCategories):
    """Vectors with a 1 at an index that is drawn by `probs`, or softmax of `logits`."""

    has_enumerate_support = True
    support = constraints.one_hot

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: Any = None) -> None:
        super().__init__(probs, logits)

    @property
    def mean(self) -> Any:
        """probs."""
        return self.probs

    @property
    def mode(self) -> Any:
        """The most probable vector."""
        return F.one_hot(self._categorical.mode, self.event_shape[0]).cast(self.probs.dtype)

    @property
    def variance(self) -> Any:
        """probs (1 - probs)."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Vectors with one 1."""
        at = self._categorical.sample(sample_shape)
        return F.one_hot(at, self.event_shape[0]).cast(self.probs.dtype)

    def _log_prob(self, value: Any) -> Any:
        return self._categorical._log_prob(value.argmax(-1))

    def entropy(self) -> Any:
        """-sum of p log p."""
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Any:
        """All vectors along a new first axis."""
        return self._enumerated(eye(self.event_shape[0], dtype=self.probs.dtype), expand)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical whose rsample has the gradient of its probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample, with the gradient of probs."""
        probs = self.probs
        return self.sample(sample_shape) + (probs - probs.detach())


def _temperature(given: Any) -> Any:
    return tensor(given) if isinstance(given, int | float) else adopt(given)


class _LogitRelaxed(_Chance):
    """The logits of a RelaxedBernoulli."""

    has_rsample = True
    support = constraints.real
    _shared = ("temperature",)

    def __init__(self, temperature: Any, probs: Any, logits: Any, validate_args: Any) -> None:
        self.temperature = _temperature(temperature)
        super().__init__(probs, logits)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """(logit u + logits) / temperature."""
        u = _uniform(self._sizes(sample_shape), self._given)
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def _log_prob(self, value: Any) -> Any:
        away = self.logits - value * self.temperature
        return self.temperature.log() + away - 2 * F.softplus(away)


class RelaxedBernoulli(TransformedDistribution):
    """Values in 0..1, the nearer to 0 and 1 the lower the temperature (Maddison et al., 2017)."""

    support = constraints.unit_interval
    _shared = ("temperature",)

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: Any = None
    ) -> None:
        base = _LogitRelaxed(temperature, probs, logits, validate_args=self._checked)
        self.temperature = base.temperature
        super().__init__(base, SigmoidTransform())

    @property
    def probs(self) -> Any:
        """The probability of the end at 1."""
        return self.base_dist.probs

    @property
    def logits(self) -> Any:
        """log(probs / (1 - probs))."""
        return self.base_dist.logits


class _LogRelaxed(Distribution):
    """The logarithms of a RelaxedOneHotCategorical."""

    has_rsample = True
    support = constraints.real_vector
    _shared = ("temperature",)

    def __init__(self, temperature: Any, probs: Any, logits: Any, validate_args: Any) -> None:
        self.temperature = _temperature(temperature)
        self._categorical = Categorical(probs, logits, validate_args=self._checked)
        super().__init__(self._categorical.batch_shape, self._categorical.probs.shape[-1:])

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """log softmax((logits + Gumbel noise) / temperature)."""
        logits = self._categorical.logits
        noise = -(-_uniform(self._sizes(sample_shape), logits).log()).log()
        return F.log_softmax((logits + noise) / self.temperature, -1)

    def _log_prob(self, value: Any) -> Any:
        n = self.event_shape[0]
        score = self._categorical.logits - value * self.temperature
        score = (score - logsumexp(score, -1, True)).sum(-1)
        return score + math.lgamma(n) + (n - 1) * self.temperature.log()


class RelaxedOneHotCategorical(TransformedDistribution):
    """Shares, the nearer to one 1 and zeros the lower the temperature (Jang et al., 2017)."""

    support = constraints.simplex
    _shared = ("temperature",)

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: Any = None
    ) -> None:
        base = _LogRelaxed(temperature, probs, logits, validate_args=self._checked)
        self.temperature = base.temperature
        super().__init__(base, ExpTransform())

    @property
    def probs(self) -> Any:
        """The probabilities of the outcomes."""
        return self.base_dist._categorical.probs

    @property
    def logits(self) -> Any:
        """Their logarithms."""
        return self.base_dist._categorical.logits


class ContinuousBernoulli(_Chance, ExponentialFamily):
    """The density C p^x (1 - p)^(1 - x) on 0..1 (Loaiza-Ganem and Cunningham, 2019). Where p is
    inside `lims`, near 1/2, the formulas are series around 1/2."""

    has_rsample = True
    support = constraints.unit_interval

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
        validate_args: Any = None,
    ) -> None:  # fmt: skip
        self._lims = lims
        super().__init__(probs, logits)

    @property
    def probs(self) -> Any:
        """The parameter p, a rounding step or more away from 0 and 1."""
        return super().probs.clamp(min=2.0**-23, max=1 - 2.0**-23)

    def _split(self) -> tuple[Any, Any, Any]:
        """True where p is away from 1/2; p there, and p - 1/2 elsewhere."""
        p, (low, high) = self.probs, self._lims
        away = (p <= low) | (p > high)
        return away, where(away, p, low), p - 0.5

    def _log_constant(self) -> Any:
        away, p, x = self._split()
        turn = ((-p).log1p() - p.log()) / (1 - 2 * p)
        series = math.log(2.0) + (4 / 3 + 104 / 45 * x * x) * x * x
        return where(away, turn.log(), series)

    @property
    def mean(self) -> Any:
        """The expected value."""
        away, p, x = self._split()
        made = p / (2 * p - 1) + 1 / ((-p).log1p() - p.log())
        return where(away, made, 0.5 + (1 / 3 + 16 / 45 * x * x) * x)

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        away, p, x = self._split()
        turn, off = (-p).log1p() - p.log(), 1 - 2 * p
        made = p * (p - 1) / (off * off) + 1 / (turn * turn)
        return where(away, made, 1 / 12 - (1 / 15 - 128 / 945 * x * x) * x * x)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample by the inverse of the distribution function."""
        return self.icdf(_uniform(self._sizes(sample_shape), self._given))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample without history."""
        with no_grad():
            return self.rsample(sample_shape)

    def _log_prob(self, value: Any) -> Any:
        logits, value = parameters(self.logits, value)
        cross = F.binary_cross_entropy_with_logits(logits, value, reduction="none")
        return self._log_constant() - cross

    def _cdf(self, value: Any) -> Any:
        away, p, _ = self._split()
        made = (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1)
        return where(away, made, value)

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        away, p, _ = self._split()
        value, none = adopt(value), (-p).log1p()
        made = ((value * (2 * p - 1) - p).log1p() - none) / (p.log() - none)
        return where(away, made, value)

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        none, one = (-self.probs).log1p(), self.probs.log()
        return self.mean * (none - one) - self._log_constant() - none
