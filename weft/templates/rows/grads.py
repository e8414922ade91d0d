"""The formulas of row-wise composites, backward: softmax_grad, log_softmax_grad, layer_norm_grad,
rms_norm_grad, cross_entropy_grad and norm_weight_grads. The bodies of the composites (weft/ops)
give the maths; sums that need no other sum share a pass."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.kernel import expr as kb, math as km
from weft.kernel.ir import Expr
from weft.templates.affine import Affine
from weft.templates.rows.formulas import (
    SUM,
    centre,
    inverse_root,
    kept_exps,
    offset_weight,
    root_mean_square,
    row_class,
    row_target,
    scaled,
)
from weft.templates.rows.row import AnchorRow


def softmax_grad(row: AnchorRow) -> None:
    y, g = row.operand(0), row.operand(1)
    (total,) = row.fold((SUM,), lambda j: (y.first(j) * g.first(j),))
    row.each(lambda j: row.write(j, y.again(j) * (g.again(j) - total)))


def log_softmax_grad(row: AnchorRow) -> None:
    y, g = row.operand(0, once=True), row.operand(1)
    (total,) = row.fold((SUM,), lambda j: (g.first(j),))
    row.each(lambda j: row.write(j, g.again(j) - km.exp(row.b, y.first(j)) * total))


def layer_norm_grad(row: AnchorRow) -> None:
    """r (v - mean(v) - d r^2 mean(v d)), where d = x - mean and v = g w."""
    b, x, g = row.b, row.operand(0), row.operand(2)
    mean = centre(row, x)

    def products(j: Affine) -> tuple[Expr, ...]:
        d = b.let(x.again(j) - mean, "d")
        v = b.let(g.first(j) * row.weight(1, j), "v")
        return d * d, v, v * d

    squares, total, product = row.fold((SUM, SUM, SUM), products)
    r = inverse_root(row, squares)
    shift = b.let(total * (1.0 / row.n), "shift")
    slope = b.let(product * (r * r) * (1.0 / row.n), "slope")

    def result(j: Affine) -> None:
        v = g.again(j) * row.weight(1, j) - shift
        row.write(j, (v - (x.again(j) - mean) * slope) * r)

    row.each(result)


def rms_norm_grad(row: AnchorRow) -> None:
    """r (v - x r^2 mean(v x)), where v = g (offset + w)."""
    b, x, g = row.b, row.operand(0), row.operand(2)

    def products(j: Affine) -> tuple[Expr, ...]:
        v = x.first(j)
        return v * v, g.first(j) * offset_weight(row, 1, j) * v

    squares, product = row.fold((SUM, SUM), products)
    r = inverse_root(row, squares)
    slope = b.let(product * (r * r) * (1.0 / row.n), "slope")

    def result(j: Affine) -> None:
        v = g.again(j) * offset_weight(row, 1, j)
        row.write(j, (v - x.again(j) * slope) * r)

    row.each(result)


def cross_entropy_grad(row: AnchorRow) -> None:
    """(exp(x - top) / total - q) g; q is low everywhere and high at the target."""
    b, smoothing = row.b, row.params["label_smoothing"]
    e, total = kept_exps(row, row.operand(0))
    low = smoothing / row.n
    high = 1.0 - smoothing + low
    ignored, known = row_target(row)
    scale, g = b.let(1.0 / total, "scale"), b.let(kb.select(known, row.number(2), math.nan), "g")
    target = row.em.expr(row_class(row))

    def result(j: Affine) -> None:
        q = kb.select(kb.eq(row.em.expr(j), target), high, kb.const(low, g.type))
        row.write(j, kb.select(ignored, 0.0, (e.again(j) * scale - q) * g))

    row.each(result)


def weight_terms(row: AnchorRow) -> Callable[[Affine], tuple[Expr, ...]]:
    """Returns the terms of a row for norm_weight_grads at column j: g h and, for a centred norm,
    g."""
    b, x, g = row.b, row.operand(0), row.operand(1, once=True)
    if not row.params["centred"]:
        scale = root_mean_square(row, x)
        return lambda j: (g.first(j) * (x.again(j) * scale),)
    mean, r = scaled(row, x)

    def terms(j: Affine) -> tuple[Expr, ...]:
        v = b.let(g.first(j), "v")
        return v * ((x.again(j) - mean) * r), v

    return terms
