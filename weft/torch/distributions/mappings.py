"""The base of transforms, and those of elements: functions and the logarithms of their slopes.

`transform(x)` goes forward, `transform.inv(y)` back. `log_abs_det_jacobian(x, y)` is the logarithm
of |dy/dx| for each event: an element, or the last `domain.event_dim` axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.torch.distributions import constraints
from weft.torch.distributions.base import summed
from weft.torch.nn import functional as F
from weft.torch.tensor import Tensor

_TINY, _EPS = 2.0**-126, 2.0**-23


class Transform:
    """The base. A subclass has `domain`, `codomain`, `bijective`, `sign` (of a monotone one),
    `_call(x)`, `_inverse(y)` and `log_abs_det_jacobian(x, y)`. With `cache_size` 1 the last pair is
    kept, so that inverting a sample gives its source exactly."""

    bijective = False
    domain: Any = constraints.real
    codomain: Any = constraints.real
    sign: Any = 0

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise UsageError(f"{type(self).__name__}: cache_size {cache_size}; expected 0 or 1")
        self._cache_size = cache_size
        self._kept: Any = (None, None)

    @property
    def event_dim(self) -> int:
        """The axes of an event, where both sides have as many."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise UsageError(f"{type(self).__name__}: use domain.event_dim or codomain.event_dim")
        return int(self.domain.event_dim)

    @property
    def inv(self) -> Transform:
        """The inverse."""
        return _Inverse(self)

    def with_cache(self, cache_size: int = 1) -> Any:
        """The transform with another cache."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__, _cache_size=cache_size, _kept=(None, None))
        return made

    def __call__(self, x: Any) -> Any:
        cache = getattr(self, "_cache_size", 0)
        if cache and self._kept[0] is x:
            return self._kept[1]
        y = self._call(x)
        if cache:
            self._kept = x, y
        return y

    def _inv_call(self, y: Any) -> Any:
        cache = getattr(self, "_cache_size", 0)
        if cache and self._kept[1] is y:
            return self._kept[0]
        x = self._inverse(y)
        if cache:
            self._kept = x, y
        return x

    def _call(self, x: Any) -> Any:
        raise self._lacks("a forward call")

    def _inverse(self, y: Any) -> Any:
        raise self._lacks("an inverse")

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |dy/dx| for each event."""
        raise self._lacks("log_abs_det_jacobian")

    def _lacks(self, what: str) -> UsageError:
        return UsageError(f"{type(self).__name__}: it has no {what.removeprefix('a ')}")

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the output for an input's."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the input for an output's."""
        return tuple(shape)

    def _key(self) -> Any:
        """The values that make two transforms of a class equal."""
        return ()

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and bool(_same(self._key(), other._key()))

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other))
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return bool((one == other).all().item())
    return bool(one == other)


class _Inverse(Transform):
    """A transform read backwards."""

    def __init__(self, base: Transform) -> None:
        super().__init__()
        self._base = base
        self.domain, self.codomain = base.codomain, base.domain
        self.bijective, self.sign = base.bijective, base.sign

    @property
    def inv(self) -> Transform:
        """The transform itself."""
        return self._base

    def __call__(self, x: Any) -> Any:
        return self._base._inv_call(x)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The negative of that of the transform."""
        return -self._base.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the transform's input."""
        return self._base.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the transform's output."""
        return self._base.forward_shape(shape)

    def _key(self) -> Any:
        return (self._base,)


class AffineTransform(Transform):
    """y = loc + scale * x, over events of `event_dim` axes."""

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale = loc, scale
        side = constraints.independent(constraints.real, event_dim)
        self.domain = self.codomain = side if event_dim else constraints.real

    @property
    def sign(self) -> Any:
        """The scale's."""
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |scale|, summed over the event."""
        scale = self.scale
        log = scale.abs().log() if isinstance(scale, Tensor) else math.log(abs(scale))
        return summed(x * 0 + log, self.event_dim)

    def _key(self) -> Any:
        return self.loc, self.scale, self.event_dim


class ExpTransform(Transform):
    """y = e^x."""

    bijective, sign = True, 1
    codomain = constraints.positive

    def _call(self, x: Any) -> Any:
        return x.exp()

    def _inverse(self, y: Any) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """x."""
        return x


class PowerTransform(Transform):
    """y = x^exponent of positive values."""

    bijective = True
    domain = codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    @property
    def sign(self) -> Any:
        """The exponent's."""
        if isinstance(self.exponent, Tensor):
            return self.exponent.sign()
        return (self.exponent > 0) - (self.exponent < 0)

    def _call(self, x: Any) -> Any:
        return x**self.exponent

    def _inverse(self, y: Any) -> Any:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |exponent y / x|."""
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The input's shape broadcast with the exponent's."""
        return _broadcast(shape, self.exponent)

    inverse_shape = forward_shape

    def _key(self) -> Any:
        return (self.exponent,)


class SigmoidTransform(Transform):
    """y = 1 / (1 + e^-x)."""

    bijective, sign = True, 1
    codomain = constraints.unit_interval

    def _call(self, x: Any) -> Any:
        return x.sigmoid().clamp(min=_TINY, max=1 - _EPS)

    def _inverse(self, y: Any) -> Any:
        y = y.clamp(min=_TINY, max=1 - _EPS)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log y (1 - y)."""
        return -F.softplus(-x) - F.softplus(x)


class TanhTransform(Transform):
    """y = tanh x."""

    bijective, sign = True, 1
    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Any) -> Any:
        return x.tanh()

    def _inverse(self, y: Any) -> Any:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log(1 - tanh^2 x), without cancellation."""
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class SoftplusTransform(Transform):
    """y = log(1 + e^x)."""

    bijective, sign = True, 1
    codomain = constraints.positive

    def _call(self, x: Any) -> Any:
        return F.softplus(x)

    def _inverse(self, y: Any) -> Any:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log sigmoid x."""
        return -F.softplus(-x)


class AbsTransform(Transform):
    """y = |x|; back to the positive one."""

    codomain = constraints.nonnegative

    def _call(self, x: Any) -> Any:
        return x.abs()

    def _inverse(self, y: Any) -> Any:
        return y


def _broadcast(shape: Sequence[int], other: Any) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(tuple(shape), getattr(other, "shape", ())))
