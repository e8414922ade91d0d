"""torch.distributions.constraints: which values a parameter, a sample or a transform's side may
have.

`check(value)` gives booleans, one for each event: the last `event_dim` axes of a value are one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.torch import linalg
from weft.torch.diagonals import diagonal
from weft.torch.joining import cat as _cat, stack as _stack


class Constraint:
    """The base: `expected` says in words which values fit."""

    is_discrete = False
    event_dim = 0
    expected = "a value of the constraint"

    def check(self, value: Any) -> Any:
        """True for each event of a value that fits."""
        raise UsageError(f"{type(self).__name__}: check is not defined")

    def __repr__(self) -> str:
        return f"{type(self).__name__.strip('_')}()"


class _Plain(Constraint):
    """A constraint without parameters."""

    def __init__(
        self, expected: str, fits: Callable[[Any], Any], event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:  # fmt: skip
        self.expected, self._fits = expected, fits
        self.event_dim, self.is_discrete = event_dim, is_discrete

    def check(self, value: Any) -> Any:
        return self._fits(value)

    def __repr__(self) -> str:
        return f"Constraint({self.expected})"


class _Dependent(Constraint):
    """A constraint that depends on parameters or on other constraints."""

    expected = "a value that depends on the parameters"

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: Any) -> Any:
        raise UsageError("dependent: read the constraint from a distribution to check values")


class dependent_property(property, _Dependent):
    """A property of a distribution that is a constraint: alone or with is_discrete, event_dim."""

    def __init__(self, fn: Any = None, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        property.__init__(self, fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: Any) -> Any:  # type: ignore[override]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: Any) -> bool:
    """True if a constraint depends on parameters, so that it cannot check."""
    return isinstance(constraint, _Dependent)


def _text(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, int | float) else "the bound"


class greater_than(Constraint):
    """Values above a bound."""

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound
        self.expected = f"values above {_text(lower_bound)}"

    def check(self, value: Any) -> Any:
        return value > self.lower_bound


class greater_than_eq(Constraint):
    """Values of a bound or more."""

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound
        self.expected = f"{_text(lower_bound)} or more"

    def check(self, value: Any) -> Any:
        return value >= self.lower_bound


class less_than(Constraint):
    """Values below a bound."""

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound
        self.expected = f"values below {_text(upper_bound)}"

    def check(self, value: Any) -> Any:
        return value < self.upper_bound


class interval(Constraint):
    """Values between two bounds or at one."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        self.expected = f"{self._noun} from {_text(lower_bound)} to {_text(upper_bound)}"

    _noun = "values"

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class half_open_interval(interval):
    """Values from a bound on, below the other."""

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class integer_interval(interval):
    """Whole numbers between two bounds or at one."""

    is_discrete = True
    _noun = "whole numbers"

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & super().check(value)


class multinomial(Constraint):
    """Counts along the last axis that sum to at most `upper_bound`."""

    is_discrete, event_dim = True, 1
    expected = "counts whose sum is the number of trials"

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class independent(Constraint):
    """A constraint whose last `reinterpreted_batch_ndims` axes are one event."""

    def __init__(self, base_constraint: Any, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete, self.expected = base_constraint.is_discrete, base_constraint.expected
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Any) -> Any:
        fits, n = self.base_constraint.check(value), self.reinterpreted_batch_ndims
        if fits.ndim < n:
            raise UsageError(f"independent: a value of {value.ndim} axes; expected "
                             f"{self.event_dim} or more")  # fmt: skip
        return fits.flatten(-n).all(-1) if n else fits


class _Pieces(Constraint):
    """Constraints of parts of a value along an axis."""

    def __init__(self, cseq: Sequence[Any], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(c.is_discrete for c in self.cseq)


class stack(_Pieces):
    """A constraint for each index of axis `dim`."""

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """The axes of an event, the stacked one among them if it is inside."""
        most: int = max(c.event_dim for c in self.cseq)
        return most + 1 if self.dim + most < 0 else most

    def check(self, value: Any) -> Any:
        parts = [c.check(value.select(self.dim, k)) for k, c in enumerate(self.cseq)]
        return _stack(parts, self.dim)


class cat(_Pieces):
    """Constraints for pieces of the lengths `lengths` (1 each if left out) along axis `dim`."""

    def __init__(self, cseq: Sequence[Any], dim: int = 0, lengths: Any = None) -> None:
        super().__init__(cseq, dim)
        self.lengths = list(lengths) if lengths is not None else [1] * len(self.cseq)
        self.event_dim = max(c.event_dim for c in self.cseq)

    def check(self, value: Any) -> Any:
        parts = value.split(self.lengths, self.dim)
        return _cat([c.check(v) for c, v in zip(self.cseq, parts)], self.dim)


def _whole(x: Any) -> Any:
    return x % 1 == 0


def _symmetric(x: Any) -> Any:
    return ((x - x.mT).abs() <= 1e-6).all(-2).all(-1)


def _definite(x: Any, least: float) -> Any:
    low = linalg.eigvalsh(x)[..., 0]
    return _symmetric(x) & (low > 0 if least == 0 else low >= least)


def _lower(x: Any) -> Any:
    return (x.tril() == x).all(-2).all(-1)


def _positive_diagonal(x: Any) -> Any:
    return _lower(x) & (diagonal(x, 0, -2, -1) > 0).all(-1)


dependent = _Dependent()
boolean = _Plain("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
real = _Plain("numbers", lambda x: x == x)
real_vector = independent(real, 1)
positive, nonnegative = greater_than(0.0), greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
nonnegative_integer = _Plain(
    "whole numbers of 0 or more", lambda x: _whole(x) & (x >= 0), is_discrete=True)  # fmt: skip
positive_integer = _Plain(
    "whole numbers of 1 or more", lambda x: _whole(x) & (x >= 1), is_discrete=True)  # fmt: skip
one_hot = _Plain(
    "vectors with one 1 and zeros",
    lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1), 1, True)  # fmt: skip
simplex = _Plain(
    "shares of 0 or more whose sum is 1",
    lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6), 1)  # fmt: skip
square = _Plain("square matrices", lambda x: (x == x).all(-2).all(-1)
                if x.shape[-1] == x.shape[-2] else (x != x).all(-2).all(-1), 2)  # fmt: skip
symmetric = _Plain("symmetric matrices", _symmetric, 2)
positive_semidefinite = _Plain(
    "positive semidefinite matrices", lambda x: _definite(x, -1e-6), 2)  # fmt: skip
positive_definite = _Plain("positive definite matrices", lambda x: _definite(x, 0), 2)
lower_triangular = _Plain("lower triangular matrices", _lower, 2)
lower_cholesky = _Plain(
    "lower triangular matrices with a diagonal above 0", _positive_diagonal, 2)  # fmt: skip
corr_cholesky = _Plain(
    "Cholesky factors of correlations",
    lambda x: _positive_diagonal(x) & (((x * x).sum(-1) - 1).abs() < 1e-4).all(-1), 2)  # fmt: skip

__all__ = [
    n
    for n in dir()
    if n[0] != "_"
    and n
    not in (
        "annotations",
        "Callable",
        "Sequence",
        "Any",
        "UsageError",
        "linalg",
        "diagonal",
        "Tensor",
    )
]
