"""Values of many steps, such as those of a recurrent net: parts of one value and products with one
weight, whose gradients are put together once instead of step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ops import functions as f
from weft.ops.primitive import aval
from weft.ops.tape import PartGradients, Value, is_tracked, peel, plain, remember, tape_level


def apart(x: Value) -> list[Value]:
    """Returns the slices of x along axis 0. Their gradients are joined once; those of `slice` would
    each be padded to x's size and added, which takes time quadratic in their number."""
    n = aval(x).shape[0]
    if tape_level((x,)) is None:
        return [_row(x, i) for i in range(n)]
    hub = remember("apart", plain(x), (x,), lambda g, out, xs: (_joined(g, n),))

    def one(i: int) -> Value:
        def rule(g: Value, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
            return (PartGradients({i: g}),)

        return remember("apart", _row(plain(x), i), (hub,), rule)

    return [one(i) for i in range(n)]


def together(rows: Sequence[Value]) -> Value:
    """Returns values below one another on a new axis 0; the reverse of apart."""

    def rule(g: Value, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
        return [lambda i=i: _row(g, i) for i in range(len(xs))]

    level = tape_level(rows)
    given = rows if level is None else [peel(r, level) for r in rows]
    out = f.concat([f.reshape(r, (1, *aval(r).shape)) for r in given], 0)
    return remember("together", out, tuple(rows), rule)


MANY = 8  # steps from which on a weight is turned once


def products(weight: Value, steps: int = 1) -> Callable[[Value], Value]:
    """Returns the function h[N, K] -> h weight^T [N, M] for a weight [M, K] of several steps. The
    weight's gradient is one product over the rows of all steps; that of `dot` would be a product
    and a sum of the weight's size for each step. Many steps share one weight^T in memory, which
    each would transpose again."""
    turned: dict[int | None, Value] = {}

    def across(level: int | None) -> Value:
        """weight^T, as an op of this level of the tape takes it."""
        if level not in turned:
            w = f.swap_last(weight if level is None else peel(weight, level))
            turned[level] = f.call("barrier", w) if steps >= MANY else w
        return turned[level]

    def whole(pieces: Any, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
        slopes, rows = (
            f.reshape(_below(each), (-1, aval(each[0]).shape[-1]))
            for each in zip(*(pieces[i] for i in sorted(pieces)))
        )
        return (f.dot(f.swap_last(slopes), rows, aval(rows).dtype),)

    hub = remember("products", plain(weight), (weight,), whole)
    count = itertools.count()

    def times(h: Value) -> Value:
        number, dtype, level = next(count), aval(h).dtype, tape_level((h, weight))
        if level is None:
            return f.dot(h, across(level), dtype)

        def rule(g: Value, out: Value, xs: tuple[Value, ...]) -> Sequence[Any]:
            w = weight if is_tracked(xs, level) else peel(weight, level)
            return (lambda: f.dot(g, w, dtype)), PartGradients({number: (g, xs[0])})

        out = f.dot(peel(h, level), across(level), dtype)
        return remember("products", out, (h, hub), rule)

    return times


def _row(x: Value, i: int) -> Value:
    """Returns slice i of axis 0 by a gather: its place is data, so one kernel serves all slices."""
    return f.reshape(f.gather(x, np.array([i], np.int32)), tuple(aval(x).shape[1:]))


def _joined(pieces: PartGradients, n: int) -> Value:
    """Returns n pieces below one another, zeros where there is none."""
    like = next(iter(pieces.values()))
    none = f.cast(f.less(like, like), aval(like).dtype)
    return _below([pieces.get(i, none) for i in range(n)])


def _below(rows: Sequence[Value]) -> Value:
    """Returns values below one another on a new axis 0, each copied to its place: a map would
    choose among all of them at each element."""
    return f.concat([f.call("barrier", f.reshape(r, (1, *aval(r).shape))) for r in rows], 0)
