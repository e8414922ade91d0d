"""Weights that are worked out from others once, when a Program is bound: what does not change from
run to run is not computed in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, ShapeError, WeftError
from weft.ops.primitive import PRIMITIVES, Aval

GROWTH = 4  # times the bytes of operands and result that a step of a stranger's formula may give
_DTYPE = "dtype:"  # before the name of a dtype among attributes


class Step(NamedTuple):
    """A primitive on values made before, by number: sources first, then steps."""

    op: str
    operands: tuple[int, ...]
    attrs: Mapping[str, Any]


class Formula(NamedTuple):
    """A weight buffer holds the value of the last step. `sources` are (name, shape, dtype's name)
    of weights; a "const" step holds its numbers as attrs value, dtype and shape."""

    sources: tuple[tuple[str, tuple[int, ...], str], ...]
    steps: tuple[Step, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that it reads."""
        return tuple(name for name, _, _ in self.sources)

    def value(self, weights: Mapping[str, Any]) -> np.ndarray:
        """The buffer's content, given whole weights on the host. Raises ShapeError or DTypeError
        for others."""
        values = [_fitting(weights[name], name, *rest) for name, *rest in self.sources]
        with np.errstate(all="ignore"):
            for step in self.steps:
                values.append(_run(step, [values[i] for i in step.operands]))
        return np.ascontiguousarray(values[-1])

    def check(self, shape: tuple[int, ...], dtype: DType) -> str | None:
        """What is wrong with it as the recipe of a buffer, or None."""
        most = GROWTH * (_nbytes(Aval(shape, dtype)) + 64)
        try:
            avals = [Aval(tuple(s), as_dtype(d)) for _, s, d in self.sources]
            for step in self.steps:
                given = [avals[i] for i in step.operands if 0 <= i < len(avals)]
                if step.op not in PRIMITIVES or len(given) != len(step.operands):
                    return f"no step {step.op!r} on {step.operands}"
                made = _aval(step, given)
                if _nbytes(made) > most + GROWTH * sum(map(_nbytes, given)):
                    return f"step {step.op!r} gives {_nbytes(made)} bytes"
                avals.append(made)
        except (WeftError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            return repr(error)
        if not self.steps or avals[-1] != Aval(shape, dtype):
            return f"it gives {avals[-1:]!r}"
        return None

    def plain(self) -> list[Any]:
        """As JSON has it."""
        attrs = [{k: _plain(v) for k, v in s.attrs.items()} for s in self.steps]
        steps = [[s.op, list(s.operands), a] for s, a in zip(self.steps, attrs)]
        return [[[n, list(s), d] for n, s, d in self.sources], steps]

    @staticmethod
    def read(raw: Sequence[Any]) -> Formula:
        """The reverse of `plain`. Raises TypeError, ValueError or DTypeError for anything else."""
        sources, steps = raw
        return Formula(
            tuple((str(n), tuple(map(int, s)), str(d)) for n, s, d in sources),
            tuple(
                Step(str(op), tuple(map(int, at)), {k: _read(v) for k, v in attrs.items()})
                for op, at, attrs in steps
            ),
        )


def _nbytes(x: Aval) -> int:
    return math.prod(x.shape) * x.dtype.itemsize


def _fitting(value: Any, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.shape != shape:
        raise ShapeError(
            f"weight {name!r} is an array of shape {list(shape)} on the host, got "
            f"{type(value).__name__} {list(getattr(value, 'shape', ()))}"
        )
    if as_dtype(value.dtype) != as_dtype(dtype):
        raise DTypeError(f"weight {name!r} is {as_dtype(value.dtype).name}; expected {dtype}")
    return value


def _rule(step: Step) -> Callable[..., Any]:
    rule = PRIMITIVES[step.op].numpy
    if rule is None:
        raise TypeError(f"{step.op!r} has no meaning on the host")
    return rule


def _constant(step: Step) -> np.ndarray:
    value, shape = step.attrs["value"], tuple(step.attrs["shape"])
    return np.asarray(value, step.attrs["dtype"].numpy).reshape(shape)


def _run(step: Step, values: Sequence[np.ndarray]) -> np.ndarray:
    return _constant(step) if step.op == "const" else np.asarray(_rule(step)(*values, **step.attrs))


def _aval(step: Step, given: Sequence[Aval]) -> Aval:
    if step.op == "const":
        made = _constant(step)
        return Aval(made.shape, as_dtype(made.dtype))
    _rule(step)
    made = PRIMITIVES[step.op].abstract(*given, **step.attrs)
    if not isinstance(made, Aval):
        raise TypeError(f"{step.op!r} gives several values")
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return _DTYPE + value.name
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _read(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_DTYPE):
        return as_dtype(value.removeprefix(_DTYPE))
    return tuple(map(_read, value)) if isinstance(value, list) else value
