"""The operations of a scan as folds, whose states are joined in the order of the elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr
from weft.ops.scan import empty
from weft.templates.rows.folds import Fold, State, accumulator, sum_fold
from weft.templates.rows.product_fold import prod_fold

_INF = 0x7F800000  # the bits of infinity


def linear_fold(dtype: DType) -> Fold:
    """y[i] = a[i] y[i-1] + x[i]: a run multiplies what comes before it by its factor and adds its
    value. Where either is zero nothing flows, whatever the other has become."""

    def lift(b: Builder, x: Expr, a: Expr | None) -> State:
        assert a is not None
        return (a, x)

    def combine(b: Builder, s: State, t: State) -> State:
        (a, x), (c, y) = ([b.let(v, "run") for v in state] for state in (s, t))
        flows = kb.ne(c, 0.0) & kb.ne(x, 0.0)
        return (a * c, kb.select(flows, c * x + y, y))

    return Fold("linear", (dtype, dtype), (1.0, 0.0), lift, combine, lambda b, s: s[1])


def _integers(op: str, dtype: DType) -> Fold:
    acc = accumulator(dtype)
    return Fold(
        op, (acc,), (empty(op, dtype),),
        lambda b, x, i: (kb.cast(x, acc),),
        lambda b, s, t: (kb.binary(op, s[0], t[0]),),
        lambda b, s: kb.cast(s[0], dtype),
    )  # fmt: skip


def beginning(fold: Fold, exclusive: bool) -> Fold:
    """The fold as it begins a row: the sum of nothing, where that is a result, is +0."""
    if fold.name != "sum" or not exclusive:
        return fold
    return replace(fold, identity=(abs(fold.identity[0]),))


def extreme_fold(op: str) -> Fold:
    """The largest or smallest f32, by an integer that orders as the number does (-0 below 0) and
    is beyond all others for NaN; the way back is the way there."""
    nan, least = (0x7FFFFFFF, -1 - _INF) if op == "max" else (-1 - 0x7FFFFFFF, _INF)

    def lift(b: Builder, x: Expr, i: Expr | None) -> State:
        bits = b.let(kb.bitcast(x, dt.int32), "bits")
        return (kb.select((bits & 0x7FFFFFFF) > _INF, nan, bits ^ ((bits >> 31) & 0x7FFFFFFF)),)

    def finish(b: Builder, s: State) -> Expr:
        key = b.let(s[0], "key")
        return kb.bitcast(key ^ ((key >> 31) & 0x7FFFFFFF), dt.float32)

    return Fold(
        op, (dt.int32,), (least,), lift, lambda b, s, t: (kb.binary(op, s[0], t[0]),), finish
    )


def scan_fold(op: str, dtype: DType) -> Fold:
    """The fold of a scan on values of a compute dtype. That of float sums starts from -0, which
    added to anything gives just that."""
    if op == "sum":
        fold = sum_fold(dtype)
        return replace(fold, identity=(-0.0,)) if dtype.is_float else fold
    if op in ("max", "min"):
        return extreme_fold(op) if dtype.is_float else _integers(op, dtype)
    return (prod_fold if op == "prod" else linear_fold)(dtype)


def kept(b: Builder, fold: Fold, state: State) -> State:
    """A state as the numbers that another kernel reads: those of extremes are the extremes."""
    return (fold.finish(b, state),) if fold.name in ("max", "min") else state


def restored(b: Builder, fold: Fold, values: Sequence[Expr]) -> State:
    """The state that `kept` made `values` of."""
    return fold.lift(b, values[0], None) if fold.name in ("max", "min") else tuple(values)
