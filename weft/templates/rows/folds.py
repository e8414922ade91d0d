"""Reductions as monoids on tuples of expressions, and the fixed orders in which they are folded.

A fold's state is a tuple of values (one for sum and max, key and index for argmax). Lanes,
accumulators and threads each fold into halves, always in the same order, so a result is the same
bits at every run and does not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel import expr as kb, math as km
from weft.kernel.builder import Builder
from weft.kernel.ir import F32, Expr, Type

State = tuple[Expr, ...]


@dataclass(frozen=True)
class Fold:
    """`lift(b, value, index)` makes a state of one element, `combine(b, s, t)` joins two,
    `finish(b, s)` gives the result; `identity` is the state of no elements (one constant per
    entry, with its dtype). `quick` is a cheaper combine for states of at most 32 elements, and for
    what is finished next. A `free` fold gives the same bits in any order."""

    name: str
    dtypes: tuple[DType, ...]
    identity: tuple[float | int, ...]
    lift: Callable[[Builder, Expr, Expr | None], State]
    combine: Callable[[Builder, State, State], State]
    finish: Callable[[Builder, State], Expr]
    quick: Callable[[Builder, State, State], State] | None = None
    free: bool = False

    def empty(self, lanes: int = 1) -> State:
        """The identity in every lane."""
        return tuple(kb.const(v, Type(d, lanes)) for v, d in zip(self.identity, self.dtypes))


def order_key(b: Builder, x: Expr) -> Expr:
    """An int32 that compares as `x` does: NaN above everything, -0 equal to 0."""
    dtype = x.type.dtype
    if dtype == dt.uint32:
        return kb.bitcast(x ^ 0x80000000, dt.int32)
    if not dtype.is_float:
        return kb.cast(x, dt.int32)
    bits = b.let(kb.bitcast(x, dt.int32), "bits")
    size = b.let(bits & 0x7FFFFFFF, "size")
    ordered = kb.select(bits < 0, -size, size)
    return kb.select(size > 0x7F800000, 0x7FFFFFFF, ordered)


def accumulator(dtype: DType) -> DType:
    """Sums run in f32, int32 or uint32 (8-bit integers wrap at the end, which is the same)."""
    return dtype if dtype in (dt.float32, dt.uint32) else dt.int32


def sum_fold(dtype: DType) -> Fold:
    """The sum of values of a compute dtype."""
    acc = accumulator(dtype)
    return Fold(
        "sum", (acc,), (0,),
        lambda b, x, i: (kb.cast(x, acc),),
        lambda b, s, t: (s[0] + t[0],),
        lambda b, s: kb.cast(s[0], dtype),
        free=not acc.is_float,
    )  # fmt: skip


def max_fold(dtype: DType, nan: bool = True) -> Fold:
    """The largest value; with `nan`, NaN wins (else it is ignored)."""
    acc = accumulator(dtype)
    least = -np.inf if acc.is_float else (0 if acc == dt.uint32 else -(1 << 31))

    def combine(b: Builder, s: State, t: State) -> State:
        if acc.is_float and nan:
            return (km.nan_max(b, b.let(s[0], "a"), b.let(t[0], "b")),)
        return (kb.maximum(s[0], t[0]),)

    return Fold(
        "max", (acc,), (least,),
        lambda b, x, i: (kb.cast(x, acc),), combine,
        lambda b, s: kb.cast(s[0], dtype),
        free=True,
    )  # fmt: skip


def _larger(b: Builder, x: Expr, y: Expr) -> Expr:
    x, y = b.let(x, "top"), b.let(y, "top")
    return kb.select(x < y, y, x)


def number_fold() -> Fold:
    """The largest f32 value that is a number."""
    return Fold(
        "top", (dt.float32,), (-np.inf,),
        lambda b, x, i: (x,),
        lambda b, s, t: (_larger(b, s[0], t[0]),),
        lambda b, s: s[0],
        free=True,
    )  # fmt: skip


def top_fold() -> Fold:
    """The largest f32 value, NaN if there is one: as max_fold, with NaN noticed on the side (the
    largest absolute bits), which costs a vector loop half as much as handing it through."""

    def lift(b: Builder, x: Expr, i: Expr | None) -> State:
        return (x, kb.bitcast(x, dt.int32) & 0x7FFFFFFF)

    def combine(b: Builder, s: State, t: State) -> State:
        return (_larger(b, s[0], t[0]), kb.maximum(s[1], t[1]))

    def finish(b: Builder, s: State) -> Expr:
        return kb.select(s[1] > 0x7F800000, kb.const(np.nan, F32), s[0])

    return Fold("top", (dt.float32, dt.int32), (-np.inf, 0), lift, combine, finish, free=True)


def argmax_fold(dtype: DType) -> Fold:
    """The first index of the largest value; NaN counts as the largest."""

    def lift(b: Builder, x: Expr, i: Expr | None) -> State:
        assert i is not None
        return (order_key(b, x), i)

    def combine(b: Builder, s: State, t: State) -> State:
        (k, i), (m, j) = ([b.let(v, "arg") for v in state] for state in (s, t))
        earlier = kb.eq(m, k) & (j < i)
        take = b.let((m > k) | earlier, "take")
        return (kb.select(take, m, k), kb.select(take, j, i))

    return Fold(
        "argmax", (dt.int32, dt.int32), (-(1 << 31), 0x7FFFFFFF), lift, combine,
        lambda b, s: s[1],
        free=True,
    )  # fmt: skip


def bind(b: Builder, state: State, name: str = "acc") -> State:
    return tuple(b.let(v, name) for v in state)


class Accumulator:
    """A mutable state of some lanes."""

    def __init__(self, b: Builder, fold: Fold, lanes: int = 1) -> None:
        self.b, self.fold, self.lanes = b, fold, lanes
        self.vars = tuple(b.var(v, "acc") for v in fold.empty(lanes))

    def add(self, value: Expr, index: Expr | None = None, keep: Expr | None = None) -> None:
        """Joins one element per lane; lanes where `keep` is false stay as they are."""
        b, lanes = self.b, self.lanes
        index = None if index is None else kb.splat(index, lanes)
        self.join(self.fold.lift(b, kb.splat(value, lanes), index), keep)

    def join(self, state: State, keep: Expr | None = None) -> None:
        state = tuple(kb.splat(v, self.lanes) for v in state)
        if keep is not None:
            empty = self.fold.empty(self.lanes)
            state = tuple(kb.select(keep, v, e) for v, e in zip(state, empty))
        self.set(bind(self.b, self.fold.combine(self.b, self.vars, state)))

    def set(self, state: State) -> None:
        for var, v in zip(self.vars, state):
            self.b.assign(var, v)

    def state(self) -> State:
        """The current state, bound."""
        return bind(self.b, self.vars)


def fold_strands(b: Builder, fold: Fold, states: Sequence[State]) -> State:
    """Joins states by halves of the least power of two that holds them: i with i + half."""
    found = list(states)
    half = 1 << max(len(found) - 1, 0).bit_length()
    while half > 1:
        half //= 2
        for i, far in enumerate(found[half:]):
            found[i] = bind(b, fold.combine(b, found[i], far))
        del found[half:]
    return found[0]


def fold_lanes(b: Builder, fold: Fold, state: State) -> State:
    """Joins the lanes of a vector state: upper half onto lower half until one is left."""
    lanes = state[0].type.lanes
    while lanes > 1:
        lanes //= 2
        state = bind(b, state)
        if lanes == 1:
            low = tuple(kb.extract(v, 0) for v in state)
            high = tuple(kb.extract(v, 1) for v in state)
        else:
            low = tuple(kb.shuffle(range(lanes), v) for v in state)
            high = tuple(kb.shuffle(range(lanes, 2 * lanes), v) for v in state)
        state = bind(b, fold.combine(b, low, high))
    return bind(b, state)


def several(folds: Sequence[Fold]) -> Fold:
    """Folds side by side, for joining their states at once: only its `combine` and what describes
    a state are of use."""
    if len(folds) == 1:
        return folds[0]

    def combine(b: Builder, s: State, t: State) -> State:
        joined: list[Expr] = []
        at = 0
        for fold in folds:
            part = slice(at, at + len(fold.dtypes))
            joined += fold.combine(b, s[part], t[part])
            at = part.stop
        return tuple(joined)

    return replace(
        folds[0],
        name="several",
        dtypes=tuple(d for fold in folds for d in fold.dtypes),
        identity=tuple(v for fold in folds for v in fold.identity),
        combine=combine,
        free=all(fold.free for fold in folds),
    )
