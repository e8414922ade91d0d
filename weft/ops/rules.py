"""Checks shared by the shape rules. Each message says what was given, expected, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import AxisError, DTypeError, LimitError, ShapeError
from weft.ops.primitive import Aval

KINDS: dict[str, tuple[str, ...]] = {
    "any": ("bool", "uint", "int", "float"),
    "numeric": ("uint", "int", "float"),
    "float": ("float",),
    "integer": ("uint", "int"),
    "bits": ("bool", "uint", "int"),
}


def want(op: str, x: Aval, kinds: str) -> None:
    """Raises DTypeError unless x's dtype is one of the named kinds (a key of KINDS)."""
    if x.dtype.kind not in KINDS[kinds]:
        names = " or ".join(KINDS[kinds])
        raise DTypeError(f"{op}: got {x.dtype.name}, expected {names}; cast it with astype")


def same(op: str, *xs: Aval) -> None:
    """Raises unless all have one shape and one dtype."""
    first = xs[0]
    for x in xs[1:]:
        if x.shape != first.shape:
            raise ShapeError(
                f"{op}: shapes {list(first.shape)} and {list(x.shape)} differ; broadcast one first"
            )
        if x.dtype != first.dtype:
            raise DTypeError(f"{op}: {first.dtype.name} with {x.dtype.name}; cast one first")


def axis_of(op: str, axis: object, rank: int) -> int:
    """A non-negative axis of a value of this rank; raises ShapeError when out of range."""
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
        raise ShapeError(f"{op}: an axis is an integer, not {axis!r}")
    found = int(axis)
    if not -rank <= found < rank:
        span = f"{-rank}..{rank - 1}" if rank else "none: the value is 0-d"
        raise AxisError(f"{op}: axis {found} is out of range (valid: {span})")
    return found % rank


def integers(op: str, what: str, given: object) -> tuple[int, ...]:
    """An integer, or a sequence or 1-d array of integers, as a tuple; anything else (a set, text,
    a Tensor, fractions) is a ShapeError that names `what`."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu":
        several = True
    values = tuple(given) if several else (given,)  # type: ignore[arg-type]
    for v in values:
        if not isinstance(v, int | np.integer) or isinstance(v, bool):
            raise ShapeError(f"{op}: {what} is an integer or a tuple of them, not {given!r:.80}")
    return tuple(int(v) for v in values)  # type: ignore[call-overload]


def axes_of(op: str, axes: object, rank: int) -> tuple[int, ...]:
    """Different axes of a value of this rank, counted from the front, in the order given; all for
    None. Raises ShapeError."""
    if axes is None:
        return tuple(range(rank))
    found = tuple(axis_of(op, a, rank) for a in integers(op, "axis", axes))
    if len(set(found)) != len(found):
        raise ShapeError(f"{op}: axes {axes} name one axis twice")
    return found


def canonical_axis(op: str, axis: object, rank: int) -> None:
    """Raises ShapeError unless `axis` is already in 0..rank-1 (the form attributes take)."""
    if axis_of(op, axis, rank) != axis:
        raise ShapeError(f"{op}: axis {axis} must be counted from the front")


def dims(op: str, shape: object) -> tuple[int, ...]:
    """A shape as a tuple of non-negative ints, or ShapeError."""
    if isinstance(shape, int | np.integer):
        shape = (shape,)
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise ShapeError(f"{op}: a shape is a tuple of integers, not {shape!r}")
    out = []
    for d in shape:
        if not isinstance(d, int | np.integer) or isinstance(d, bool) or d < 0:
            raise ShapeError(f"{op}: {shape!r} is not a shape; sizes are integers >= 0")
        out.append(int(d))
    return tuple(out)


def countable(op: str, count: int) -> None:
    """Raises LimitError unless int32, which indices are, can number `count` elements."""
    if count > 1 << 31:
        raise LimitError(f"{op}: {count:,} elements; int32 indices number at most {1 << 31:,}")


def wide(x: np.ndarray) -> np.ndarray:
    """f16 and bf16 as f32 (arithmetic on narrow floats is done in f32); others unchanged."""
    return x.astype(np.float32) if is_narrow(x.dtype) else x


def is_narrow(dtype: np.dtype) -> bool:
    return dtype == np.float16 or dtype == dt.bfloat16.numpy


def in_f32(rule: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A NumPy rule that computes narrow floats in f32 and rounds its float result back once."""

    def widened(*xs: np.ndarray, **attrs: object) -> np.ndarray:
        if not is_narrow(xs[0].dtype):
            return rule(*xs, **attrs)
        out = np.asarray(rule(*(wide(x) for x in xs), **attrs))
        return out.astype(xs[0].dtype) if out.dtype == np.float32 else out

    widened.__wrapped__ = rule  # type: ignore[attr-defined]  # ops/ufuncs.py finds it
    return widened


def default_out(dtype: dt.DType) -> dt.DType:
    """The dtype of a product of `dtype` values: int32 for 8-bit integers, else the same."""
    return dt.int32 if dtype in (dt.int8, dt.uint8) else dtype
