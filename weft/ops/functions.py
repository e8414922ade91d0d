"""One function per primitive, on arrays, graph Nodes or device arrays alike.

They complete and normalise attributes (negative axes, -1 in a reshape) and lift Python numbers to
the other operand's dtype and shape; otherwise operands must already match (the Tensor layer
broadcasts and promotes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.ops.composite import COMPOSITES
from weft.ops.graph_listener import NODES, as_node
from weft.ops.primitive import NUMPY, RECORDED, aval, bind, tracing
from weft.ops.rules import axes_of, axis_of, default_out, dims

__all__ = [
    "abs_", "add", "argmax", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast", "call",
    "cast", "concat", "const", "cos", "div", "dot", "equal", "erf", "exp", "floor",
    "floor_divide", "full_like", "gather", "iota", "isnan", "less", "less_equal", "log", "max_",
    "maximum", "minimum", "mul", "ndtr", "neg", "pad", "pow_", "remainder", "reshape", "round_",
    "scatter_add", "shift_left", "shift_right", "signbit", "sin", "slice_", "sort", "sqrt", "sub",
    "sum_", "swap_last", "tanh", "transpose", "update", "where",
]  # fmt: skip

Value = Any  # np.ndarray, graph Node or device array
Number = int | float | bool


def const(value: Any, dtype: DType | None = None) -> Value:
    """A NumPy array (while tracing: a const Node) of a number, list or array."""
    with np.errstate(over="ignore"):  # 1e300 is infinite as float32
        array = np.asarray(value, dtype=None if dtype is None else dtype.numpy)
    return as_node(array) if tracing() else _constant(array)


def _constant(array: np.ndarray) -> np.ndarray:
    if RECORDED.now is not None:
        RECORDED.now.constant(array)
    return array


def full_like(value: Value, number: Number) -> Value:
    """`number` in the shape and dtype of `value` (a 0-d const, broadcast)."""
    known = aval(value)
    scalar = np.asarray(number).astype(known.dtype.numpy)
    return bind("broadcast", as_node(scalar) if tracing() else _constant(scalar), shape=known.shape)


def lift(values: Sequence[Value]) -> list[Value]:
    """The operands with Python numbers made constants like the first operand that is a value."""
    like = next((v for v in values if not isinstance(v, int | float)), None)
    if like is None:
        raise UsageError("an op needs an array or tensor; compute plain numbers in Python")
    return [full_like(like, v) if isinstance(v, int | float) else v for v in values]


def _binary(name: str):  # type: ignore[no-untyped-def]
    def function(x: Value | Number, y: Value | Number) -> Value:
        return bind(name, *lift((x, y)))

    function.__name__ = name
    function.__doc__ = f"{name}(x, y) element by element; equal shapes and dtypes."
    return function


def _unary(name: str):  # type: ignore[no-untyped-def]
    def function(x: Value) -> Value:
        return bind(name, x)

    function.__name__ = name
    function.__doc__ = f"{name}(x) element by element."
    return function


neg, abs_, floor, round_ = _unary("neg"), _unary("abs"), _unary("floor"), _unary("round")
sqrt, exp, log = _unary("sqrt"), _unary("exp"), _unary("log")
sin, cos, tanh = _unary("sin"), _unary("cos"), _unary("tanh")
erf, ndtr = _unary("erf"), _unary("ndtr")
isnan, signbit = _unary("isnan"), _unary("signbit")
add, sub, mul, div = _binary("add"), _binary("sub"), _binary("mul"), _binary("div")
remainder, floor_divide = _binary("remainder"), _binary("floor_divide")
pow_ = _binary("pow")
maximum, minimum = _binary("maximum"), _binary("minimum")
less, less_equal, equal = _binary("less"), _binary("less_equal"), _binary("equal")
bitwise_and, bitwise_or = _binary("bitwise_and"), _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
shift_left, shift_right = _binary("shift_left"), _binary("shift_right")


def cast(x: Value, dtype: DType | str) -> Value:
    """x as another dtype (see ops/unary.py for the rounding); x itself when it has it already."""
    wanted = as_dtype(dtype)
    return x if aval(x).dtype == wanted else bind("cast", x, dtype=wanted)


def where(cond: Value, a: Value | Number, b: Value | Number) -> Value:
    """a where cond (bool) holds, else b; Python numbers take the other side's dtype."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        raise DTypeError(
            "where: the dtype of two Python numbers is unknown; make one of them an array"
        )
    return bind("where", cond, *lift((a, b)))


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order; one size may be -1 (inferred)."""
    old = aval(x).shape
    new = [int(d) for d in shape]
    if new.count(-1) > 1:
        raise ShapeError(f"reshape: {new} has more than one -1; only one size can be inferred")
    if -1 in new:
        rest = math.prod(d for d in new if d != -1)
        if rest == 0 or math.prod(old) % rest:
            raise ShapeError(f"reshape: {list(old)} does not divide into {new}")
        new[new.index(-1)] = math.prod(old) // rest
    target = dims("reshape", tuple(new))
    return x if target == old else bind("reshape", x, shape=target)


def transpose(x: Value, perm: Sequence[int] | None = None) -> Value:
    """Axes reordered: axis i of the result is axis perm[i] (default: all reversed)."""
    rank = len(aval(x).shape)
    axes = range(rank)[::-1] if perm is None else perm
    order = tuple(axis_of("transpose", p, rank) for p in axes)
    return x if order == tuple(range(rank)) else bind("transpose", x, perm=order)


def swap_last(x: Value) -> Value:
    """The last two axes exchanged: the transpose of a (batch of) matrices."""
    rank = len(aval(x).shape)
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    """x repeated along size-1 and missing leading axes to `shape`."""
    target = dims("broadcast", tuple(shape))
    return x if target == aval(x).shape else bind("broadcast", x, shape=target)


def slice_(
    x: Value, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None
) -> Value:
    """x[start:stop:step] per axis, canonical: 0 <= start, and a stop of -1 with a negative step
    means "through index 0"."""
    old = aval(x).shape
    steps = (1,) * len(old) if steps is None else steps
    if all(s == 1 for s in steps) and tuple(stops) == old and not any(starts):
        return x
    ints = [tuple(int(v) for v in vs) for vs in (starts, stops, steps)]
    return bind("slice", x, starts=ints[0], stops=ints[1], steps=ints[2])


def pad(x: Value, low: Sequence[int], high: Sequence[int], value: Number = 0) -> Value:
    """`value` added before and after along each axis."""
    if not any(low) and not any(high):
        return x
    return bind("pad", x, low=tuple(map(int, low)), high=tuple(map(int, high)), value=value)


def concat(xs: Sequence[Value], axis: int = 0) -> Value:
    """Values joined along one axis."""
    if not xs:
        raise ShapeError("concat: nothing to join; give at least one value")
    found = axis_of("concat", axis, len(aval(xs[0]).shape))
    return xs[0] if len(xs) == 1 else bind("concat", *xs, axis=found)


def _axes(op: str, x: Value, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    return tuple(sorted(axes_of(op, axes, len(aval(x).shape))))


def sum_(x: Value, axes: int | Sequence[int] | None = None) -> Value:
    """The sum over the axes (all by default), in x's dtype; the axes disappear."""
    found = _axes("sum", x, axes)
    return bind("sum", x, axes=found) if found else x


def max_(x: Value, axes: int | Sequence[int] | None = None) -> Value:
    """The largest over the axes (all by default); NaN wins."""
    found = _axes("max", x, axes)
    return bind("max", x, axes=found) if found else x


def argmax(x: Value, axis: int) -> Value:
    """The first index (int32) of the largest value along an axis."""
    return bind("argmax", x, axis=axis_of("argmax", axis, len(aval(x).shape)))


def dot(a: Value, b: Value, out_dtype: DType | None = None) -> Value:
    """a[*B, M, K] . b[*B, K, N] -> [*B, M, N]; out_dtype defaults to a's (int32 for 8 bits)."""
    return bind("dot", a, b, out_dtype=out_dtype or default_out(aval(a).dtype))


def gather(x: Value, idx: Value, axis: int = 0) -> Value:
    """Slices of x along `axis` at idx (int32): x.shape[:axis] + idx.shape + rest; NaN, 0 or False
    where an index is outside."""
    return bind("gather", x, idx, axis=axis_of("gather", axis, len(aval(x).shape)))


def scatter_add(x: Value, idx: Value, upd: Value) -> Value:
    """x with upd[r] added to row idx[r], r ascending; rows outside x are dropped. An index of
    upd's shape is one for each element: x[idx[r, c], c] += upd[r, c]."""
    return bind("scatter_add", x, idx, upd)


def update(x: Value, idx: Value, value: Value) -> Value:
    """x with row idx[r] replaced by value[r]; rows outside x are dropped; idx is unique."""
    return bind("update", x, idx, value)


def sort(x: Value, axis: int = -1, descending: bool = False, indices: bool = False) -> Value:
    """x sorted along an axis (stable), or the int32 indices that sort it."""
    found = axis_of("sort", axis, len(aval(x).shape))
    return bind("sort", x, axis=found, descending=bool(descending), indices=bool(indices))


def iota(shape: Sequence[int], axis: int, dtype: DType) -> Value:
    """The index along `axis`, in the given shape and dtype."""
    target = dims("iota", tuple(shape))
    attrs = {"shape": target, "axis": axis_of("iota", axis, len(target)), "dtype": dtype}
    return NODES.bind("iota", (), attrs) if tracing() else _constant(NUMPY.bind("iota", (), attrs))


def call(name: str, *values: Value, **params: Any) -> Value:
    """The composite `name` on these values: its output, or a tuple of several. Parameters left out
    take their defaults."""
    composite = COMPOSITES.get(name)
    if composite is None:
        raise UsageError(f"no composite {name!r}; known: {', '.join(sorted(COMPOSITES))}")
    unknown = set(params) - set(composite.defaults)
    if unknown:
        raise UsageError(f"{name}: no parameter {', '.join(sorted(unknown))}")
    filled = {k: params.get(k, v) for k, v in composite.defaults.items()}
    missing = [k for k, v in filled.items() if v is None]
    if missing:
        raise UsageError(f"{name}: the parameter {', '.join(missing)} must be given")
    return bind("call", *values, name=name, params=filled)
