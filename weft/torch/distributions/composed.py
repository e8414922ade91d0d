"""Transforms made of other transforms, and those of whole events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError
from weft.torch.distributions import constraints
from weft.torch.distributions.base import summed
from weft.torch.distributions.mappings import _EPS, _TINY, Transform
from weft.torch.joining import stack
from weft.torch.nn import functional as F
from weft.torch.tensor import Tensor


class ComposeTransform(Transform):
    """Transforms one after the other, the first of the list first."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [p.with_cache(cache_size) for p in parts] if cache_size else list(parts)
        self.bijective = all(p.bijective for p in self.parts)

    @property
    def sign(self) -> Any:
        """The product of the parts' signs."""
        made = 1
        for part in self.parts:
            made = made * part.sign
        return made

    @property
    def domain(self) -> Any:
        """The first part's, with as many axes of an event as the widest part needs."""
        if not self.parts:
            return constraints.real
        axes = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            axes += part.domain.event_dim - part.codomain.event_dim
            axes = max(axes, part.domain.event_dim)
        return _widened(self.parts[0].domain, axes)

    @property
    def codomain(self) -> Any:
        """The last part's, with as many axes of an event as the widest part needs."""
        if not self.parts:
            return constraints.real
        axes = self.parts[0].domain.event_dim
        for part in self.parts:
            axes += part.codomain.event_dim - part.domain.event_dim
            axes = max(axes, part.codomain.event_dim)
        return _widened(self.parts[-1].codomain, axes)

    @property
    def inv(self) -> Transform:
        """The parts' inverses, the last first."""
        return ComposeTransform([p.inv for p in reversed(self.parts)])

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The sum of the parts', over the event."""
        if not self.parts:
            return x * 0
        axes, total, last = self.domain.event_dim, 0, len(self.parts) - 1
        for k, part in enumerate(self.parts):
            to = y if k == last else part(x)
            total = total + summed(part.log_abs_det_jacobian(x, to), axes - part.domain.event_dim)
            axes += part.codomain.event_dim - part.domain.event_dim
            x = to
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the last part's output."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the first part's input."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def _key(self) -> Any:
        return self.parts


identity_transform = ComposeTransform([])


def _widened(side: Any, axes: int) -> Any:
    more = axes - side.event_dim
    return constraints.independent(side, more) if more else side


class IndependentTransform(Transform):
    """A transform whose last `reinterpreted_batch_ndims` more axes are one event."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = n = reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, n)
        self.codomain = constraints.independent(base_transform.codomain, n)
        self.bijective, self.sign = base_transform.bijective, base_transform.sign

    def _call(self, x: Any) -> Any:
        _want_axes(self, x, self.domain)
        return self.base_transform(x)

    def _inverse(self, y: Any) -> Any:
        _want_axes(self, y, self.codomain)
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """That of the transform, summed over the event."""
        found = self.base_transform.log_abs_det_jacobian(x, y)
        return summed(found, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """That of the transform."""
        return tuple(self.base_transform.forward_shape(shape))

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """That of the transform."""
        return tuple(self.base_transform.inverse_shape(shape))

    def _key(self) -> Any:
        return self.base_transform, self.reinterpreted_batch_ndims


def _want_axes(of: Transform, x: Any, side: Any) -> None:
    if x.ndim < side.event_dim:
        raise ShapeError(
            f"{type(of).__name__}: a value of {x.ndim} axes; expected {side.event_dim} or more"
        )


class ReshapeTransform(Transform):
    """Events of shape `in_shape` to the shape `out_shape`, with as many elements."""

    bijective = True

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ShapeError(
                f"ReshapeTransform: {list(in_shape)} to {list(out_shape)}; expected two shapes "
                "of as many elements"
            )
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Any) -> Any:
        return x.reshape(*self.forward_shape(x.shape))

    def _inverse(self, y: Any) -> Any:
        return y.reshape(*self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """0 for each event."""
        return summed(x * 0, len(self.in_shape))

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape with `out_shape` at its end. Raises ShapeError if `in_shape` is not there."""
        return _exchanged(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape with `in_shape` at its end. Raises ShapeError if `out_shape` is not there."""
        return _exchanged(shape, self.out_shape, self.in_shape)

    def _key(self) -> Any:
        return self.in_shape, self.out_shape


def _exchanged(shape: Sequence[int], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    cut = len(shape) - len(old)
    if cut < 0 or tuple(shape[cut:]) != old:
        raise ShapeError(f"ReshapeTransform: {list(shape)}; expected {list(old)} at its end")
    return (*shape[:cut], *new)


class StackTransform(Transform):
    """A transform for each index of axis `dim`."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) for t in tseq], dim
        self.bijective = all(t.bijective for t in self.transforms)
        self.domain = constraints.stack([t.domain for t in self.transforms], dim)
        self.codomain = constraints.stack([t.codomain for t in self.transforms], dim)

    def _slices(self, x: Any) -> list[Any]:
        if not -x.ndim <= self.dim < x.ndim or x.shape[self.dim] != len(self.transforms):
            raise ShapeError(
                f"StackTransform: a value {list(x.shape)}; expected {len(self.transforms)} on "
                f"axis {self.dim}"
            )
        return [x.select(self.dim, k) for k in range(len(self.transforms))]

    def _call(self, x: Any) -> Any:
        return stack([t(v) for t, v in zip(self.transforms, self._slices(x))], self.dim)

    def _inverse(self, y: Any) -> Any:
        return stack([t.inv(v) for t, v in zip(self.transforms, self._slices(y))], self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """That of each transform, stacked."""
        each = zip(self.transforms, self._slices(x), self._slices(y))
        return stack([t.log_abs_det_jacobian(a, b) for t, a, b in each], self.dim)

    def _key(self) -> Any:
        return self.transforms, self.dim


class SoftmaxTransform(Transform):
    """y = softmax x over the last axis; back to log y."""

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Any) -> Any:
        return F.softmax(x, -1)

    def _inverse(self, y: Any) -> Any:
        return y.log()


class StickBreakingTransform(Transform):
    """n numbers to n + 1 shares: each takes a part of what the ones before left."""

    bijective = True
    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Any) -> Any:
        z = (x - _offsets(x)).sigmoid().clamp(min=_TINY, max=1 - _EPS)
        left = (1 - z).cumprod(-1)
        return F.pad(z, (0, 1), value=1.0) * F.pad(left, (1, 0), value=1.0)

    def _inverse(self, y: Any) -> Any:
        kept = y[..., :-1]
        left = (1 - kept.cumsum(-1)).clamp(min=_TINY)
        return kept.log() - left.log() + _offsets(kept)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The sum of log z and what was left, for the parts z."""
        x = x - _offsets(x)
        return (-x + F.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """One more on the last axis."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """One less on the last axis."""
        return (*shape[:-1], shape[-1] - 1)


def _offsets(x: Any) -> Any:
    """The logarithm of how many shares come after each number."""
    n = x.shape[-1]
    return Tensor([math.log(n - k) for k in range(n)]).cast(x.dtype)
