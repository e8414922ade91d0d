"""The base of distributions, and distributions with events of more axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from weft.core.errors import UsageError
from weft.tensor.autograd import no_grad
from weft.torch.creation import tensor
from weft.torch.picking import known
from weft.torch.tensor import Tensor, adopt, floats


class Distribution:
    """The base of all distributions: batch_shape and event_shape are tuples of sizes."""

    has_rsample = False
    POSITIVE: tuple[str, ...] = ()  # the parameters whose values are above 0
    _checked = True

    def __new__(cls, *args: Any, validate_args: Any = None, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._checked = validate_args is not False
        return made

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = ()) -> None:
        self.batch_shape, self.event_shape = tuple(batch_shape), tuple(event_shape)
        for name in self.POSITIVE:
            self._want(name, getattr(self, name), lambda x: x > 0, "values above 0")

    def _want(self, name: str, x: Any, fits: Callable[[Any], Any], expected: str) -> None:
        """Raises UsageError if known values of a parameter do not fit; not with
        validate_args=False."""
        held = known(x) if self._checked else None
        if held is not None and not bool(np.all(fits(held))):
            wrong = held[~np.broadcast_to(fits(held), held.shape)].flat[0]
            raise UsageError(f"{type(self).__name__}: {name} {wrong:g}; expected {expected}")

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

    def log_prob(self, value: Tensor) -> Any:
        """The logarithm of the density (or probability) at a value."""
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

    def cdf(self, value: Tensor) -> Any:
        """The probability of at most a value."""
        raise self._lacks("cdf")

    def _lacks(self, name: str) -> UsageError:
        return UsageError(f"{type(self).__name__}: {name} is not defined for this distribution")

    def _sizes(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch {self.batch_shape}, event {self.event_shape})"


def parameters(*given: Any) -> list[Any]:
    """Parameters as tensors of one shape and float dtype."""
    made = floats(*(tensor(x) if isinstance(x, int | float) else adopt(x) for x in given))
    shape = np.broadcast_shapes(*(x.shape for x in made))
    return [x.broadcast_to(shape) for x in made]


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
        n = self.reinterpreted_batch_ndims
        return x.sum(tuple(range(-n, 0))) if n else x

    def log_prob(self, value: Tensor) -> Any:
        """The sum over the event."""
        return self.summed(self.base_dist.log_prob(value))

    def entropy(self) -> Any:
        """The sum over the event."""
        return self.summed(self.base_dist.entropy())
