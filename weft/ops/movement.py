"""Movement primitives: reshape transpose broadcast slice pad concat. They only rename elements
(pad adds some), so a template turns chains of them into index arithmetic.

Attributes are canonical: axes counted from the front, slice stops that may be -1 ("before the
first") when the step is negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import DTypeError, ShapeError
from weft.graph.ir import Shape
from weft.ops import functions as f
from weft.ops.functions import Value
from weft.ops.primitive import Aval, Primitive, aval, register
from weft.ops.rules import canonical_axis, dims, same

Ints = tuple[int, ...]


def _reshape_abstract(x: Aval, *, shape: Shape) -> Aval:
    if math.prod(dims("reshape", shape)) != math.prod(x.shape):
        raise ShapeError(
            f"reshape: {list(x.shape)} has {math.prod(x.shape)} elements, {list(shape)} would have "
            f"{math.prod(shape)}; the counts must be equal"
        )
    return Aval(tuple(shape), x.dtype)


def _transpose_abstract(x: Aval, *, perm: Ints) -> Aval:
    if sorted(perm) != list(range(len(x.shape))):
        raise ShapeError(
            f"transpose: {list(perm)} is not an order of the {len(x.shape)} axes of {list(x.shape)}"
        )
    return Aval(tuple(x.shape[p] for p in perm), x.dtype)


def _broadcast_abstract(x: Aval, *, shape: Shape) -> Aval:
    missing = len(dims("broadcast", shape)) - len(x.shape)
    fits = missing >= 0 and all(d in (1, s) for d, s in zip(x.shape, shape[max(missing, 0) :]))
    if not fits:
        raise ShapeError(
            f"broadcast: {list(x.shape)} does not fit {list(shape)}; from the last axis on, sizes "
            "must be equal or 1"
        )
    return Aval(tuple(shape), x.dtype)


def slice_length(start: int, stop: int, step: int) -> int:
    """Returns the number of indices in range(start, stop, step)."""
    return len(range(start, stop, step))


def _slice_abstract(x: Aval, *, starts: Ints, stops: Ints, steps: Ints) -> Aval:
    if not len(starts) == len(stops) == len(steps) == len(x.shape):
        raise ShapeError(
            f"slice: starts {list(starts)}, stops {list(stops)} and steps {list(steps)} need one "
            f"entry per axis of {list(x.shape)}"
        )
    out = []
    for axis, (a, z, s, d) in enumerate(zip(starts, stops, steps, x.shape)):
        n = slice_length(a, z, s) if s else 0
        if s == 0 or (n and not (0 <= a < d and 0 <= a + (n - 1) * s < d)):
            raise ShapeError(
                f"slice: {a}:{z}:{s} leaves axis {axis} of size {d}; steps are not 0 and indices "
                f"stay in 0..{d - 1}"
            )
        out.append(n)
    return Aval(tuple(out), x.dtype)


def slice_index(starts: Ints, stops: Ints, steps: Ints) -> tuple[slice, ...]:
    """A slice's index as NumPy has it."""
    index = []
    for a, z, s in zip(starts, stops, steps):
        empty = slice_length(a, z, s) == 0
        index.append(slice(0, 0) if empty else slice(a, None if z < 0 else z, s))
    return tuple(index)


def _slice_numpy(x: np.ndarray, *, starts: Ints, stops: Ints, steps: Ints) -> np.ndarray:
    return x[slice_index(starts, stops, steps)]


def _pad_abstract(x: Aval, *, low: Ints, high: Ints, value: float | int | bool) -> Aval:
    if not len(low) == len(high) == len(x.shape) or any(n < 0 for n in (*low, *high)):
        raise ShapeError(
            f"pad: low {list(low)} and high {list(high)} need one entry >= 0 per axis of "
            f"{list(x.shape)}; cut with slice"
        )
    if not isinstance(value, int | float):
        raise DTypeError(f"pad: the value is a number, not {value!r}")
    return Aval(tuple(a + d + z for a, d, z in zip(low, x.shape, high)), x.dtype)


def _pad_numpy(x: np.ndarray, *, low: Ints, high: Ints, value: float | int | bool) -> np.ndarray:
    shape = tuple(a + d + z for a, d, z in zip(low, x.shape, high))
    out = np.full(shape, value, x.dtype)
    out[tuple(slice(a, a + d) for a, d in zip(low, x.shape))] = x
    return out


def _concat_abstract(*xs: Aval, axis: int) -> Aval:
    if not xs:
        raise ShapeError("concat: nothing to join; give at least one value")
    canonical_axis("concat", axis, len(xs[0].shape))
    total = 0
    for x in xs:
        if len(x.shape) != len(xs[0].shape):
            raise ShapeError(f"concat: ranks of {list(xs[0].shape)} and {list(x.shape)} differ")
        flat = [Aval((*v.shape[:axis], *v.shape[axis + 1 :]), v.dtype) for v in (xs[0], x)]
        same(f"concat (axis {axis} aside)", *flat)
        total += x.shape[axis]
    return Aval((*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]), xs[0].dtype)


# -- derivatives (see VjpRule) -------------------------------------------------------------------


def _transpose_vjp(g: Value, out: Value, x: Value, *, perm: Ints) -> Sequence[Any]:
    back = sorted(range(len(perm)), key=lambda i: perm[i])
    return (f.transpose(g, back),)


def _broadcast_vjp(g: Value, out: Value, x: Value, *, shape: Ints) -> Sequence[Any]:
    old = aval(x).shape
    new = len(shape) - len(old)
    axes = [*range(new), *(i + new for i, d in enumerate(old) if d == 1 and shape[i + new] != 1)]
    return (f.reshape(f.sum_(g, axes), old) if axes else f.reshape(g, old),)


def _slice_vjp(
    g: Value, out: Value, x: Value, *, starts: Ints, stops: Ints, steps: Ints
) -> Sequence[Any]:
    """Moves the gradient's elements back to their places: reversed, spread out, then padded."""
    shape = list(aval(g).shape)
    if 0 in shape:
        return (f.full_like(x, 0),)
    if any(s < 0 for s in steps):
        flips = [-1 if s < 0 else 1 for s in steps]
        first = [n - 1 if s < 0 else 0 for n, s in zip(shape, steps)]
        last = [-1 if s < 0 else n for n, s in zip(shape, steps)]
        g = f.slice_(g, first, last, flips)
    low = [a + (n - 1) * s if s < 0 else a for a, s, n in zip(starts, steps, shape)]
    for axis, step in enumerate(map(abs, steps)):
        if step > 1 and shape[axis] > 1:
            g, shape[axis] = _spread(g, axis, step), (shape[axis] - 1) * step + 1
    high = [d - a - n for d, a, n in zip(aval(x).shape, low, shape)]
    return (f.pad(g, low, high),)


def _spread(x: Value, axis: int, step: int) -> Value:
    """x with step - 1 zeros between neighbours along an axis."""
    shape = aval(x).shape
    n, rank = shape[axis], len(shape)
    x = f.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    x = f.pad(x, [0] * (rank + 1), [step - 1 if i == axis + 1 else 0 for i in range(rank + 1)])
    x = f.reshape(x, (*shape[:axis], n * step, *shape[axis + 1 :]))
    stops = [d if i != axis else (n - 1) * step + 1 for i, d in enumerate(shape)]
    return f.slice_(x, [0] * rank, stops)


def _pad_vjp(g: Value, out: Value, x: Value, *, low: Ints, high: Ints, value: Any) -> Sequence[Any]:
    return (f.slice_(g, low, [a + d for a, d in zip(low, aval(x).shape)]),)


def _concat_vjp(g: Value, out: Value, *xs: Value, axis: int) -> Sequence[Any]:
    shape = aval(g).shape
    parts, at = [], 0
    for x in xs:
        size = aval(x).shape[axis]
        starts = [at if i == axis else 0 for i in range(len(shape))]
        stops = [at + size if i == axis else d for i, d in enumerate(shape)]
        parts.append(lambda a=starts, z=stops: f.slice_(g, a, z))
        at += size
    return parts


register(
    Primitive(
        "reshape", "movement", _reshape_abstract, lambda x, *, shape: np.reshape(x, shape),
        vjp=lambda g, out, x, *, shape: (f.reshape(g, aval(x).shape),),
    )
)  # fmt: skip
register(
    Primitive(
        "transpose", "movement", _transpose_abstract, lambda x, *, perm: x.transpose(perm),
        vjp=_transpose_vjp,
    )
)  # fmt: skip
register(
    Primitive(
        "broadcast", "movement", _broadcast_abstract,
        lambda x, *, shape: np.broadcast_to(x, shape), vjp=_broadcast_vjp,
    )
)  # fmt: skip
register(Primitive("slice", "movement", _slice_abstract, _slice_numpy, vjp=_slice_vjp))
register(Primitive("pad", "movement", _pad_abstract, _pad_numpy, vjp=_pad_vjp, cost=1))
register(
    Primitive(
        "concat", "movement", _concat_abstract, lambda *xs, axis: np.concatenate(xs, axis=axis),
        vjp=_concat_vjp, cost=2,
    )
)  # fmt: skip
