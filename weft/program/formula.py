"""Weights that are worked out from others once, when a Program is bound: what does not change from
run to run is not computed in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, ShapeError

FEW = 4  # most floats in one sum
GROWTH = 4  # a step of an untrusted formula may give this many times the bytes of the result
Shape = tuple[int, ...]
Known = tuple[Shape, DType]

# Elementwise steps: operands of one shape and dtype, which the result has as well.
_NUMBERS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "sqrt": np.sqrt, "maximum": np.maximum, "minimum": np.minimum, "abs": np.abs,
}  # fmt: skip
_MOVES = ("reshape", "transpose", "broadcast", "pad")
_OWN = ("const", "cast", "sum")
_CASTS = {("int8", "int32"), ("uint8", "int32"), ("int32", "int8"), ("int32", "float32")}
STEPS = frozenset((*_NUMBERS, *_MOVES, *_OWN))


def takes(op: str, given: DType | None, made: DType, joined: int = 1) -> bool:
    """True if `op` is one of STEPS with supported dtypes. Casts take whole numbers only. Sums take
    whole numbers, or a few (`joined`) other numbers, which NumPy adds in order."""
    if op == "cast":
        return given is not None and (given.name, made.name) in _CASTS
    few = made.name == "float32" and joined <= FEW
    return op in STEPS and (op != "sum" or made.name == "int32" or few)


class FormulaStep(NamedTuple):
    """One of STEPS on values made before, by number: sources first, then steps. `attrs` are those
    of the primitive of this name; of a const its numbers (value), dtype's name and shape."""

    op: str
    operands: tuple[int, ...]
    attrs: Mapping[str, Any]


class Formula(NamedTuple):
    """A weight buffer holds the value of the last step. `sources` are (name, shape, dtype's name)
    of weights."""

    sources: tuple[tuple[str, Shape, str], ...]
    steps: tuple[FormulaStep, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that it reads."""
        return tuple(name for name, _, _ in self.sources)

    def value(self, weights: Mapping[str, Any]) -> np.ndarray:
        """The buffer's content, given whole weights on the host. Raises ShapeError or DTypeError
        for others."""
        values = [_fitting(weights[name], name, s, d) for name, s, d in self.sources]
        with np.errstate(all="ignore"):
            for step in self.steps:
                values.append(_run(step, [values[i] for i in step.operands]))
        return np.ascontiguousarray(values[-1])

    def check(self, shape: Shape, dtype: DType) -> str | None:
        """Returns the fault of this formula as the recipe of a buffer, or None."""
        try:
            known: list[Known] = [(s, as_dtype(d)) for _, s, d in self.sources]
            most = GROWTH * (max(math.prod(s) for s, _ in (*known, (shape, dtype))) + 64)
            for step in self.steps:
                if not all(0 <= i < len(known) for i in step.operands):
                    return f"step {step.op!r} reads {step.operands}"
                made = _shape_of(step, [known[i] for i in step.operands])
                if made is None or math.prod(made[0]) > most:
                    return f"no step {step.op!r} on {[known[i] for i in step.operands]}"
                known.append(made)
        except (DTypeError, KeyError, TypeError, ValueError) as error:
            return repr(error)
        return None if self.steps and known[-1] == (shape, dtype) else f"it gives {known[-1:]}"

    def plain(self) -> list[Any]:
        """Returns the formula as JSON values."""
        steps = [[s.op, list(s.operands), dict(s.attrs)] for s in self.steps]
        return [[[n, list(s), d] for n, s, d in self.sources], steps]

    @staticmethod
    def read(raw: Sequence[Any]) -> Formula:
        """The reverse of `plain`. Raises TypeError, ValueError or AttributeError for anything
        else."""
        sources, steps = raw
        return Formula(
            tuple((str(n), tuple(map(int, s)), str(d)) for n, s, d in sources),
            tuple(
                FormulaStep(str(op), tuple(map(int, at)), {k: _tuples(v) for k, v in attrs.items()})
                for op, at, attrs in steps
            ),
        )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _fitting(value: Any, name: str, shape: Shape, dtype: str) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.shape != shape:
        raise ShapeError(
            f"weight {name!r} is an array of shape {list(shape)} on the host, got "
            f"{type(value).__name__} {list(getattr(value, 'shape', ()))}"
        )
    if as_dtype(value.dtype) != as_dtype(dtype):
        raise DTypeError(f"weight {name!r} is {as_dtype(value.dtype).name}; expected {dtype}")
    return value


def _run(step: FormulaStep, values: Sequence[np.ndarray]) -> np.ndarray:
    op, attrs = step.op, step.attrs
    if op == "const":
        return np.asarray(attrs["value"], as_dtype(attrs["dtype"]).numpy).reshape(attrs["shape"])
    if op in _NUMBERS:
        return np.asarray(_NUMBERS[op](*values))
    (x,) = values
    if op == "cast":
        return x.astype(as_dtype(attrs["dtype"]).numpy)
    if op == "sum":
        return np.asarray(x.sum(tuple(attrs["axes"]), dtype=x.dtype))
    if op == "reshape":
        return x.reshape(attrs["shape"])
    if op == "transpose":
        return x.transpose(attrs["perm"])
    if op == "broadcast":
        return np.broadcast_to(x, attrs["shape"])
    sides = list(zip(attrs["low"], attrs["high"]))
    return np.pad(x, sides, constant_values=attrs["value"])


def _shape_of(step: FormulaStep, given: Sequence[Known]) -> Known | None:
    """Returns the shape and dtype of a step's result, or None if the step is not possible."""
    op, attrs = step.op, step.attrs
    if op == "const":
        shape, dtype = tuple(attrs["shape"]), as_dtype(attrs["dtype"])
        return (shape, dtype) if np.size(attrs["value"]) == math.prod(shape) else None
    if op in _NUMBERS:
        count = 1 if op in ("neg", "sqrt", "abs") else 2
        fits = len(given) == count and all(x == given[0] for x in given)
        whole = fits and given[0][1].name == "int32" and op not in ("div", "sqrt")
        return given[0] if fits and (given[0][1].is_float or whole) else None
    if op not in (*_MOVES, *_OWN) or len(given) != 1:
        return None
    (old, dtype), new = given[0], tuple(attrs.get("shape", ()))
    if op == "cast":
        goal = as_dtype(attrs["dtype"])
        return (old, goal) if takes(op, dtype, goal) else None
    if op == "sum":
        axes = tuple(attrs["axes"])
        fits = len({*axes}) == len(axes) and all(0 <= a < len(old) for a in axes)
        kept = tuple(d for a, d in enumerate(old) if a not in axes)
        joined = math.prod(d for a, d in enumerate(old) if a in axes)
        return (kept, dtype) if fits and takes(op, dtype, dtype, joined) else None
    if any(type(d) is not int or d < 0 for d in new):
        return None
    if op == "reshape":
        return (new, dtype) if math.prod(new) == math.prod(old) else None
    if op == "transpose":
        perm = tuple(attrs["perm"])
        fits = sorted(perm) == list(range(len(old)))
        return (tuple(old[i] for i in perm), dtype) if fits else None
    if op == "broadcast":
        tail = new[len(new) - len(old) :]
        fits = len(new) >= len(old) and all(a in (1, b) for a, b in zip(old, tail))
        return (new, dtype) if fits else None
    low, high = tuple(attrs["low"]), tuple(attrs["high"])
    fits = len(low) == len(high) == len(old) and min((*low, *high), default=0) >= 0
    return (tuple(a + n + b for a, n, b in zip(low, old, high)), dtype) if fits else None
