"""From unconstrained numbers to values of a constraint: `biject_to`, one to one, and
`transform_to`, which may give a value for several numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.errors import UsageError
from weft.torch.distributions import constraints
from weft.torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    SigmoidTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
    Transform,
    identity_transform,
)

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """The transforms of constraints. A call gives that of a constraint; UsageError if it has none.

    >>> biject_to(constraints.positive)(torch.zeros(1)).tolist()
    [1.0]
    """

    def __init__(self, name: str) -> None:
        self._name, self._known = name, dict[Any, Factory]()

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Sets the transform of a constraint or of a class of them; without `factory` it decorates
        the function that makes the transform."""
        if factory is None:
            return lambda made: self.register(constraint, made)
        self._known[_key(constraint)] = factory
        return factory

    def __call__(self, constraint: Any) -> Transform:
        factory = self._known.get(_key(constraint))
        if factory is None:
            raise UsageError(f"{self._name}: no transform to {constraint!r}; register one")
        return factory(constraint)


def _key(constraint: Any) -> Any:
    """A class, or a constraint that is the only one of its kind."""
    alone = isinstance(constraint, type | constraints._Plain)
    return constraint if alone else type(constraint)


def _above(constraint: Any) -> Transform:
    least = constraint.lower_bound
    if isinstance(least, int | float) and not least:
        return ExpTransform()
    return ComposeTransform([ExpTransform(), AffineTransform(least, 1)])


def _below(constraint: Any) -> Transform:
    return ComposeTransform([ExpTransform(), AffineTransform(constraint.upper_bound, -1)])


def _between(constraint: Any) -> Transform:
    least, most = constraint.lower_bound, constraint.upper_bound
    numbers = isinstance(least, int | float) and isinstance(most, int | float)
    if numbers and (least, most) == (0, 1):
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(least, most - least)])


biject_to, transform_to = ConstraintRegistry("biject_to"), ConstraintRegistry("transform_to")
_BOTH: tuple[tuple[Any, Factory], ...] = (
    (constraints.real, lambda constraint: identity_transform),
    (constraints.greater_than, _above), (constraints.greater_than_eq, _above),
    (constraints.less_than, _below), (constraints.interval, _between),
    (constraints.half_open_interval, _between),
)  # fmt: skip


def _fill(registry: ConstraintRegistry) -> None:
    """The transforms that both registries share."""

    def independent(constraint: Any) -> Transform:
        base = registry(constraint.base_constraint)
        return IndependentTransform(base, constraint.reinterpreted_batch_ndims)

    def stacked(constraint: Any) -> Transform:
        return StackTransform([registry(c) for c in constraint.cseq], constraint.dim)

    more = ((constraints.independent, independent), (constraints.stack, stacked))
    for constraint, factory in (*_BOTH, *more):
        registry.register(constraint, factory)


_fill(biject_to)
_fill(transform_to)
biject_to.register(constraints.simplex, lambda constraint: StickBreakingTransform())
transform_to.register(constraints.simplex, lambda constraint: SoftmaxTransform())
