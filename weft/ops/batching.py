"""Mapped values: one op on a whole batch in place of one op per example.

A Batched value wraps a value with one more axis in front, the batch. An op with a Batched operand
runs once on what is inside, by the batching rule of its primitive, and its result is Batched too. A
composite without a rule of its own runs its body. So a mapped function can be differentiated, and a
derivative mapped, on the host, on devices and in traces alike (as in JAX: Frostig et al. 2018).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from weft.core.dtypes import DType
from weft.core.errors import GradientError
from weft.graph.ir import Shape
from weft.ops import functions as f
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import PRIMITIVES, aval, bind, is_wrapper, register_listener
from weft.ops.tape import Tracked

Value = Any


@dataclass(eq=False)
class MapFrame:
    """One mapped function that is running: how many lie around it and itself, the size of its
    batch, and how it draws random numbers ("error", "same" or "different")."""

    level: int
    size: int
    randomness: str
    running: bool = True
    written: list[Any] = field(default_factory=list)  # (tensor, how to undo a write to it)


class Batched:
    """A value of a mapped function; `value` has the batch as axis 0."""

    __slots__ = ("__weakref__", "frame", "level", "rank", "value")

    def __init__(self, value: Value, frame: MapFrame):
        self.value, self.frame, self.level = value, frame, frame.level
        self.rank = 9 + 2 * frame.level

    @property
    def shape(self) -> Shape:
        return aval(self.value).shape[1:]

    @property
    def dtype(self) -> DType:
        return aval(self.value).dtype

    def __repr__(self) -> str:
        return f"Batched({self.frame.size} of {self.dtype.name}{list(self.shape)})"


class _Frames(threading.local):
    stack: tuple[MapFrame, ...] = ()


_FRAMES = _Frames()


@contextmanager
def mapping(size: int, randomness: str) -> Iterator[MapFrame]:
    """A frame for a function that is mapped inside the block."""
    before = _FRAMES.stack
    frame = MapFrame(len(before) + 1, size, randomness)
    _FRAMES.stack = (*before, frame)
    try:
        yield frame
    finally:
        _FRAMES.stack, frame.running = before, False


def frames() -> tuple[MapFrame, ...]:
    """The mapped functions that this thread is in, the innermost last."""
    return _FRAMES.stack


def top_frame(inputs: Sequence[Value]) -> MapFrame | None:
    """The mapped function that an op on these operands belongs to, or None."""
    top = max((x for x in inputs if is_wrapper(x)), key=lambda x: x.rank, default=None)
    return top.frame if isinstance(top, Batched) else None


def detached(value: Value) -> Value:
    """The value without its histories, on any level."""
    while isinstance(value, Tracked):
        value = value.value
    return Batched(detached(value.value), value.frame) if isinstance(value, Batched) else value


def leading(value: Value, frame: MapFrame) -> Value:
    """The content for the whole batch: the same for each example if it is not Batched."""
    if isinstance(value, Batched) and value.frame is frame:
        return value.value
    return f.broadcast(value, (frame.size, *aval(value).shape))


class BatchListener:
    """Runs an op once for all examples."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        frame = max((x.frame for x in inputs if isinstance(x, Batched)), key=lambda m: m.level)
        if not frame.running:
            raise GradientError(
                f"vmap: a value of a mapped function ({aval(inputs[0])!r}) was used after the "
                "function ended; return it instead of storing it elsewhere"
            )
        check: Any = PRIMITIVES[op].abstract
        check(*map(aval, inputs), **attrs)  # so that messages name an example's shapes
        mine = [isinstance(x, Batched) and x.frame is frame for x in inputs]
        if op == "call":
            out = _call(frame, inputs, mine, **attrs)
        else:
            rule: Rule = RULES.get(op, _elementwise)
            out = rule(frame, inputs, mine, **{"op": op, **attrs})
        return (
            tuple(Batched(y, frame) for y in out) if isinstance(out, tuple) else Batched(out, frame)
        )


register_listener(Batched, BatchListener(), rank=0)

Rule = Callable[..., Any]  # (frame, operands, which are Batched, op=, **attrs) -> the whole batch
RULES: dict[str, Rule] = {}


def batching(*ops: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of the primitives named."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def _inside(xs: Sequence[Value], mine: Sequence[bool]) -> list[Value]:
    return [x.value if m else x for x, m in zip(xs, mine)]


def _elementwise(frame: MapFrame, xs: Any, mine: Any, *, op: str, **attrs: Any) -> Value:
    return bind(op, *(leading(x, frame) for x in xs), **attrs)


# -- movement and reductions: the axes are one further back ----------------------------------------


@batching("reshape", "broadcast")
def _reshape(frame: MapFrame, xs: Any, mine: Any, *, op: str, shape: Shape) -> Value:
    x = xs[0].value
    if op == "broadcast":  # missing axes come after the batch
        old = aval(x).shape
        missing = len(shape) + 1 - len(old)
        x = f.reshape(x, (old[0], *(1 for _ in range(missing)), *old[1:]))
        return f.broadcast(x, (frame.size, *shape))
    return f.reshape(x, (frame.size, *shape))


@batching("transpose")
def _transpose(frame: MapFrame, xs: Any, mine: Any, *, op: str, perm: Sequence[int]) -> Value:
    return f.transpose(xs[0].value, (0, *(p + 1 for p in perm)))


@batching("slice")
def _slice(
    frame: MapFrame, xs: Any, mine: Any, *, op: str, starts: Any, stops: Any, steps: Any
) -> Value:
    return f.slice_(xs[0].value, (0, *starts), (frame.size, *stops), (1, *steps))


@batching("pad")
def _pad(frame: MapFrame, xs: Any, mine: Any, *, op: str, low: Any, high: Any, value: Any) -> Value:
    return f.pad(xs[0].value, (0, *low), (0, *high), value)


@batching("concat", "argmax", "sort")
def _along(frame: MapFrame, xs: Any, mine: Any, *, op: str, axis: int, **attrs: Any) -> Value:
    return bind(op, *(leading(x, frame) for x in xs), axis=axis + 1, **attrs)


@batching("sum", "max")
def _reduce(frame: MapFrame, xs: Any, mine: Any, *, op: str, axes: Sequence[int]) -> Value:
    return bind(op, xs[0].value, axes=tuple(a + 1 for a in axes))


# -- products and indices -------------------------------------------------------------------------


@batching("dot")
def _dot(frame: MapFrame, xs: Any, mine: Any, *, op: str, out_dtype: DType) -> Value:
    """A batch on one side only is more rows of one product (or more columns, as its transpose)."""
    a, b = _inside(xs, mine)
    if all(mine):
        return f.dot(a, b, out_dtype)
    if mine[1]:  # a b = (b^T a^T)^T
        return f.swap_last(_rows_dot(frame, f.swap_last(b), f.swap_last(a), out_dtype))
    return _rows_dot(frame, a, b, out_dtype)


def _rows_dot(frame: MapFrame, a: Value, b: Value, out_dtype: DType) -> Value:
    """a[batch, *L, M, K] b[*L, K, N], with the rows of all examples below one another."""
    *lead, m, k = aval(a).shape[1:]
    rank = len(lead)
    stacked = f.transpose(a, (*range(1, rank + 1), 0, rank + 1, rank + 2))
    out = f.dot(f.reshape(stacked, (*lead, frame.size * m, k)), b, out_dtype)
    out = f.reshape(out, (*lead, frame.size, m, aval(out).shape[-1]))
    return f.transpose(out, (rank, *range(rank), rank + 1, rank + 2))


@batching("gather")
def _gather(frame: MapFrame, xs: Any, mine: Any, *, op: str, axis: int) -> Value:
    x, index = _inside(xs, mine)
    if not mine[1]:
        return f.gather(x, index, axis + 1)
    if not mine[0]:
        return _to_front(f.gather(x, index, axis), axis)
    shape = aval(x).shape
    before = range(1, axis + 1)  # what lies between the batch and the axis goes behind both
    behind = range(axis + 2, len(shape))
    moved = f.transpose(x, (0, axis + 1, *before, *behind))
    table = f.reshape(moved, (frame.size * shape[axis + 1], *aval(moved).shape[2:]))
    found = f.gather(table, _own_rows(frame, index, shape[axis + 1]))
    rank = len(aval(index).shape) - 1
    first, last = range(rank + 1, rank + 1 + axis), range(rank + 1 + axis, len(aval(found).shape))
    return f.transpose(found, (0, *first, *range(1, rank + 1), *last))


@batching("scatter_add", "update")
def _scatter(frame: MapFrame, xs: Any, mine: Any, *, op: str) -> Value:
    """The rows of all examples below one another, each example's with indices of its own."""
    x, index, rows = (leading(v, frame) for v in xs)
    shape, count = aval(x).shape, aval(index).shape[1]
    flat = [f.reshape(v, (frame.size * aval(v).shape[1], *shape[2:])) for v in (x, rows)]
    own = aval(index).shape[2:]
    at = f.reshape(_own_rows(frame, index, shape[1]), (frame.size * count, *own))
    return f.reshape(bind(op, flat[0], at, flat[1]), shape)


def _own_rows(frame: MapFrame, index: Value, n: int) -> Value:
    """Indices [batch, ...] of n rows each, as those of batch * n rows; -1 for one outside."""
    start = f.mul(f.iota(aval(index).shape, 0, aval(index).dtype), n)
    inside = f.bitwise_and(f.less_equal(f.full_like(index, 0), index), f.less(index, n))
    return f.where(inside, f.add(index, start), -1)


def _to_front(x: Value, axis: int) -> Value:
    rest = [i for i in range(len(aval(x).shape)) if i != axis]
    return f.transpose(x, (axis, *rest))


# -- composites -----------------------------------------------------------------------------------

# Each element, or each row of the last axis, by itself: the batch is one more axis in front.
ROWS = frozenset((
    "softmax", "log_softmax", "softmax_grad", "log_softmax_grad", "gelu", "gelu_grad", "sigmoid",
    "silu", "silu_grad", "relu", "clip_low", "clip_high", "times",
))  # fmt: skip
# The same with weights [D] at these places, which must be one for all examples.
WEIGHTS = {
    "layer_norm": (1, 2), "rms_norm": (1,), "layer_norm_grad": (1,), "rms_norm_grad": (1,),
    "moments": (), "rms_scale": (),
}  # fmt: skip
# Each entry of the first axis by itself: the batch makes it longer. The weight of a convolution
# must be one for all examples.
FOLDED = {
    "attention": (), "attention_lse": (), "attention_dq": (), "attention_dkv": (),
    "attention_grad": (), "rope": (), "cross_entropy": (), "cross_entropy_grad": (),
    "max_pool": (), "sum_pool": (), "conv": (1,), "conv_transpose": (1,),
}  # fmt: skip
ALONG = frozenset(("scan", "logcumsumexp", "window_max", "skewed"))  # along params["axis"]


def _call(frame: MapFrame, xs: Any, mine: Any, *, name: str, params: Mapping[str, Any]) -> Any:
    values = [x.value if m else x for x, m in zip(xs, mine)]
    weights = {**WEIGHTS, **FOLDED}.get(name, ())
    shared = not any(mine[i] for i in weights if i < len(mine))
    if name == "barrier":
        return f.call(name, leading(xs[0], frame), *values[1:])
    if name in ROWS or (name in WEIGHTS and shared):
        given = [v if i in weights else leading(x, frame)
                 for i, (v, x) in enumerate(zip(values, xs))]  # fmt: skip
        return f.call(name, *given, **params)
    if name in FOLDED and shared:
        return _folded(frame, name, xs, weights, params)
    if name in ALONG:
        moved = {**params, "axis": params["axis"] + 1}
        return f.call(name, *(leading(x, frame) for x in xs), **moved)
    if name == "prod":
        return f.call(name, values[0], axes=tuple(a + 1 for a in params["axes"]))
    out = COMPOSITES[name].body(*xs, **params)
    return tuple(leading(y, frame) for y in out) if isinstance(out, tuple) else leading(out, frame)


def _folded(frame: MapFrame, name: str, xs: Any, weights: Any, params: Any) -> Any:
    def merged(x: Value) -> Value:
        whole = leading(x, frame)
        size, n, *rest = aval(whole).shape
        return f.reshape(whole, (size * n, *rest))

    def split(y: Value) -> Value:
        shape = aval(y).shape
        return f.reshape(y, (frame.size, shape[0] // max(frame.size, 1), *shape[1:]))

    out = f.call(name, *(x if i in weights else merged(x) for i, x in enumerate(xs)), **params)
    return tuple(map(split, out)) if isinstance(out, tuple) else split(out)
