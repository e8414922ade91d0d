"""The base of distributions, and distributions with events of more axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.tensor.autograd import no_grad
from weft.torch.creation import tensor
from weft.torch.distributions import constraints
from weft.torch.picking import known
from weft.torch.tensor import Tensor, adopt, floats


class Distribution:
    """The base of all distributions: batch_shape and event_shape are tuples of sizes. Parameters
    and values out of range raise UsageError, except with validate_args=False and where they are
    not known yet (in compiled functions and on devices). A subclass of your own defines log_prob
    and rsample or sample."""

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: dict[str, Any] = {}  # by the parameters' names
    support: Any = constraints.dependent  # of the values
    _checked = True
    _by_default = True
    _shared: tuple[str, ...] = ()  # parameters that expand leaves as they are

    def __new__(cls, *args: Any, validate_args: Any = None, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._checked = cls._by_default if validate_args is None else bool(validate_args)
        return made

    def __init__(
        self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (),
        validate_args: Any = None,
    ) -> None:  # fmt: skip
        self.batch_shape, self.event_shape = tuple(batch_shape), tuple(event_shape)
        for name, constraint in self.arg_constraints.items() if self._checked else ():
            if not constraints.is_dependent(constraint) and name in self.__dict__:
                self._want(name, getattr(self, name), constraint)

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Makes distributions check parameters and values from now on, or not."""
        Distribution._by_default = bool(value)

    def _want(self, name: str, x: Any, constraint: Any) -> None:
        """Raises UsageError if known values do not fit a constraint; not with
        validate_args=False."""
        held = known(x) if self._checked else None
        if held is None:
            return
        with no_grad():
            fits = known(constraint.check(x))
        if fits is not None and not fits.all():
            at = _text(held, fits, constraint.event_dim)
            raise UsageError(f"{type(self).__name__}: {name} {at}; expected {constraint.expected}")

    def _value(self, value: Any) -> Any:
        """A value as a tensor. Raises UsageError if it is not of the support, ShapeError if its
        shape does not fit."""
        value = tensor(value) if isinstance(value, int | float) else adopt(value)
        if self._checked:
            self._want_shape(value)
            support = self.support
            if not constraints.is_dependent(support):
                self._want("value", value, support)
        return value

    def _want_shape(self, value: Any) -> None:
        shape, given = self._sizes(()), tuple(value.shape)
        cut, events = len(given) - len(self.event_shape), self.event_shape
        pairs = zip(reversed(given), reversed(shape))
        if cut < 0 or given[cut:] != events or any(a != b and 1 not in (a, b) for a, b in pairs):
            raise ShapeError(
                f"{type(self).__name__}: a value {list(given)}; expected the batch "
                f"{list(self.batch_shape)} and the event {list(events)}"
            )

    def expand(self, batch_shape: Sequence[int]) -> Any:
        """The distribution with its parameters broadcast to another batch_shape."""
        batch, old = tuple(batch_shape), len(self.batch_shape)
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__, batch_shape=batch)
        for name, held in self.__dict__.items():
            if name in self._shared:
                continue
            if isinstance(held, Tensor):
                made.__dict__[name] = held.broadcast_to((*batch, *held.shape[old:]))
            elif isinstance(held, Distribution):
                made.__dict__[name] = held.expand((*batch, *held.batch_shape[old:]))
        return made

    @property
    def mean(self) -> Any:
        """The expected value."""
        raise self._lacks("mean")

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Any:
        """The square root of the variance."""
        return self.variance.sqrt()

    @property
    def mode(self) -> Any:
        """The value of the highest density or probability."""
        raise self._lacks("mode")

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density (or probability) at a value."""
        return self._log_prob(self._value(value))

    def _log_prob(self, value: Any) -> Any:
        raise self._lacks("log_prob")

    def entropy(self) -> Any:
        """The expected value of -log_prob."""
        raise self._lacks("entropy")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample through which gradients flow to the parameters."""
        raise self._lacks("rsample")

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample without history."""
        with no_grad():
            return self.rsample(sample_shape)

    def cdf(self, value: Any) -> Any:
        """The probability of at most a value."""
        return self._cdf(self._value(value))

    def _cdf(self, value: Any) -> Any:
        raise self._lacks("cdf")

    def icdf(self, value: Any) -> Any:
        """The value below which a sample is with a probability."""
        raise self._lacks("icdf")

    def perplexity(self) -> Any:
        """e to the entropy."""
        return self.entropy().exp()

    def enumerate_support(self, expand: bool = True) -> Any:
        """All values along a new first axis, [n, *batch_shape] ([n, 1, ..., 1] without `expand`),
        of distributions with finitely many."""
        raise self._lacks("enumerate_support")

    def _enumerated(self, values: Any, expand: bool) -> Any:
        """[n, *event_shape] as a value for each of the batch."""
        axes, event = len(self.batch_shape), values.shape[1:]
        made = values.reshape(-1, *(1,) * axes, *event)
        return made.broadcast_to((made.shape[0], *self.batch_shape, *event)) if expand else made

    def _lacks(self, name: str) -> UsageError:
        return UsageError(f"{type(self).__name__}: {name} is not defined for this distribution")

    def _sizes(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch {self.batch_shape}, event {self.event_shape})"


class Centred(Distribution):
    """A distribution whose mean and mode are `loc`."""

    loc: Any

    @property
    def mean(self) -> Any:
        """The expected value."""
        return self.loc

    @property
    def mode(self) -> Any:
        """The value of the highest density."""
        return self.loc


class ExponentialFamily(Distribution):
    """A base: the density is exp(natural parameters * statistics - log normalizer)."""


def _text(held: np.ndarray, fits: np.ndarray, axes: int) -> str:
    """The first event that does not fit, in words."""
    shape = fits.shape + held.shape[held.ndim - axes :]
    wrong = np.broadcast_to(held, shape)[~fits][0]
    if not axes:
        return f"{float(wrong):g}"
    return " ".join(np.array2string(wrong, precision=4, threshold=8).split())


def parameters(*given: Any) -> list[Any]:
    """Parameters as tensors of one shape and float dtype."""
    made = floats(*(tensor(x) if isinstance(x, int | float) else adopt(x) for x in given))
    shape = np.broadcast_shapes(*(x.shape for x in made))
    return [x.broadcast_to(shape) for x in made]


def summed(x: Any, axes: int) -> Any:
    """The sum over the last axes."""
    return x.sum(tuple(range(-axes, 0))) if axes > 0 else x


class Independent(Distribution):
    """A distribution whose last batch axes are part of the event."""

    def __init__(
        self, base_distribution: Any, reinterpreted_batch_ndims: int, validate_args: Any = None
    ) -> None:
        shape, n = base_distribution.batch_shape, reinterpreted_batch_ndims
        if not 0 <= n <= len(shape):
            raise UsageError(f"Independent: {n} of the {len(shape)} axes of the batch")
        cut = len(shape) - n
        super().__init__(shape[:cut], (*shape[cut:], *base_distribution.event_shape))
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        self.has_rsample = base_distribution.has_rsample

    @property
    def mean(self) -> Any:
        """The expected value."""
        return self.base_dist.mean

    @property
    def variance(self) -> Any:
        """The expected squared distance from the mean, element by element."""
        return self.base_dist.variance

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample through which gradients flow."""
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """A sample without history."""
        return self.base_dist.sample(sample_shape)

    def summed(self, x: Any) -> Any:
        """Sums over the axes of the event."""
        return summed(x, self.reinterpreted_batch_ndims)

    @property
    def support(self) -> Any:
        """The base's, over the event."""
        base = self.base_dist.support
        n = self.reinterpreted_batch_ndims
        return constraints.independent(base, n) if n else base

    @property
    def mode(self) -> Any:
        """The value of the highest density."""
        return self.base_dist.mode

    def log_prob(self, value: Any) -> Any:
        """The sum over the event."""
        return self.summed(self.base_dist.log_prob(value))

    def entropy(self) -> Any:
        """The sum over the event."""
        return self.summed(self.base_dist.entropy())
