"""The formulas of row-wise composites, forward: softmax, log_softmax, layer_norm, rms_norm,
cross_entropy, and the statistics moments and rms_scale. Sums are f32; the bodies of the composites
(weft/ops) give the maths."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.kernel import expr as kb, math as km
from weft.kernel.ir import Expr
from weft.templates.affine import Affine
from weft.templates.rows.folds import number_fold, sum_fold, top_fold
from weft.templates.rows.row import AnchorRow, RowValue

NEXT_BYTES = 16 << 10  # of a row: in longer ones the hardware itself prefetches
# The same of a row with an exponential of each element: by the time that all are computed, the
# hardware has forgotten the stream. Two such rows lie in a second cache.
EXP_BYTES = 256 << 10
TOP, NUMBER, SUM = top_fold(), number_fold(), sum_fold(dt.float32)


class Exponentials:
    """exp(x - top) of a row's elements, where `top` is their maximum. A CPU's exponentials
    propagate a NaN by themselves; elsewhere the maximum does, and `total` handles it."""

    def __init__(self, row: AnchorRow, x: RowValue) -> None:
        self.row, self.x = row, x
        self.plain = row.em.caps.is_cpu
        (self.top,) = row.fold((NUMBER if self.plain else TOP,), lambda j: (x.first(j),))

    def below(self, j: Affine) -> Expr:
        """x - top."""
        return self.row.b.let(self.x.again(j) - self.top, "d")

    def exp(self, d: Expr) -> Expr:
        return (km.exp_below_plain if self.plain else km.exp_below)(self.row.b, d)

    def total(self, found: Expr) -> Expr:
        """The sum of the weights, NaN if the row holds one."""
        if self.plain:
            return found
        return self.row.b.let(kb.select(km.isnan(self.row.b, self.top), self.top, found), "total")


def exps(row: AnchorRow, x: RowValue) -> tuple[Expr, Expr]:
    """The row's maximum and the sum of exp(x - maximum); the sum is NaN if the row holds one."""
    weights = Exponentials(row, x)

    def term(j: Affine) -> tuple[Expr]:
        row.ahead(j, EXP_BYTES)
        return (weights.exp(weights.below(j)),)

    (total,) = row.fold((SUM,), term)
    return weights.top, weights.total(total)


def kept_exps(row: AnchorRow, x: RowValue) -> tuple[RowValue, Expr]:
    """exp(x - maximum) of each element, kept, and their sum (NaN if the row holds one)."""
    weights = Exponentials(row, x)
    e = row.held(lambda j: weights.exp(weights.below(j)), over=x)

    def term(j: Affine) -> tuple[Expr]:
        row.ahead(j, EXP_BYTES)
        return (e.first(j),)

    (total,) = row.fold((SUM,), term)
    return e, weights.total(total)


def softmax(row: AnchorRow) -> None:
    e, total = kept_exps(row, row.operand(0))
    scale = row.b.let(1.0 / total, "scale")
    row.each(lambda j: row.write(j, e.again(j) * scale))


def log_softmax(row: AnchorRow) -> None:
    x = row.operand(0)
    top, total = exps(row, x)
    log = row.b.let(km.log(row.b, total), "log")
    row.each(lambda j: row.write(j, x.again(j) - top - log))


def cross_entropy(row: AnchorRow) -> None:
    """log(sum(exp(x - top))) - (1 - smoothing) (x[target] - top) - smoothing mean(x - top)."""
    b, smoothing = row.b, row.params["label_smoothing"]
    x = row.operand(0)
    weights = Exponentials(row, x)

    def terms(j: Affine) -> tuple[Expr, ...]:
        d = weights.below(j)
        e = weights.exp(d)
        return (e, d) if smoothing else (e,)

    total, *rest = row.fold((SUM,) * (2 if smoothing else 1), terms)
    log = km.log(b, weights.total(total))
    loss = log - (x.again(row_class(row)) - weights.top) * (1.0 - smoothing)
    if smoothing:
        loss = loss - rest[0] * (smoothing / row.n)
    ignored, known = row_target(row)
    row.results(b.let(kb.select(ignored, 0.0, kb.select(known, loss, math.nan)), "loss"))


def row_class(row: AnchorRow) -> Affine:
    """The row's target as an index of its elements, clamped."""
    held = kb.minimum(kb.maximum(row.number(1), 0), row.n - 1)
    return row.em.axis(held, row.n)


def row_target(row: AnchorRow) -> tuple[Expr, Expr]:
    """Returns two conditions: the row's target is ignored, and it is a class."""
    b, target = row.b, row.number(1)
    known = b.let((target >= 0) & (target < row.n), "known")
    return b.let(kb.eq(target, row.params["ignore_index"]), "ignored"), known


def centre(row: AnchorRow, x: RowValue) -> Expr:
    """The row's mean."""
    (total,) = row.fold((SUM,), lambda j: (x.first(j),))
    return row.b.let(total * (1.0 / row.n), "mean")


def inverse_root(row: AnchorRow, squares: Expr) -> Expr:
    """1 / sqrt(squares / n + eps)."""
    var = squares * (1.0 / row.n)
    return row.b.let(1.0 / kb.unary("sqrt", var + row.params["eps"]), "r")


def scaled(row: AnchorRow, x: RowValue) -> tuple[Expr, Expr]:
    """The row's mean and 1 / sqrt(var + eps)."""
    b = row.b
    mean = centre(row, x)

    def square(j: Affine) -> tuple[Expr]:
        row.ahead(j, NEXT_BYTES)
        d = b.let(x.again(j) - mean, "d")
        return (d * d,)

    (squares,) = row.fold((SUM,), square)
    return mean, inverse_root(row, squares)


def layer_norm(row: AnchorRow) -> None:
    x = row.operand(0)
    mean, r = scaled(row, x)

    def result(j: Affine) -> None:
        d = (x.again(j) - mean) * r
        row.write(j, kb.fma(d, row.weight(1, j), row.weight(2, j)))

    row.each(result)


def moments(row: AnchorRow) -> None:
    row.results(*scaled(row, row.operand(0)))


def root_mean_square(row: AnchorRow, x: RowValue) -> Expr:
    """1 / sqrt(mean(x^2) + eps)."""

    def square(j: Affine) -> tuple[Expr]:
        row.ahead(j, NEXT_BYTES)
        v = x.first(j)
        return (v * v,)

    (squares,) = row.fold((SUM,), square)
    return inverse_root(row, squares)


def rms_norm(row: AnchorRow) -> None:
    x = row.operand(0)
    r = root_mean_square(row, x)
    row.each(lambda j: row.write(j, x.again(j) * r * offset_weight(row, 1, j)))


def rms_scale(row: AnchorRow) -> None:
    row.results(root_mean_square(row, row.operand(0)))


def offset_weight(row: AnchorRow, k: int, j: Affine) -> Expr:
    """offset + w[j]."""
    w, offset = row.weight(k, j), row.params["offset"]
    return row.b.let(w + offset if offset else w, "w")
