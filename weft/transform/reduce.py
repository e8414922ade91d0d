"""Long reductions to few values become two: partial results of pieces, then their reduction.

One worker per output would leave a large sum to one core; pieces give every core work. A sum of
floats is cut where its order is (core/order.py): a row at its segments, columns at whole chains. So
both ways of computing it give the same bits. A sum over axes that lie apart stays whole.
"""

from __future__ import annotations

import math

import numpy as np

from weft.core import dtypes as dt
from weft.core.order import COLUMN_SEGMENT, ROW_SEGMENT
from weft.graph.ir import Graph, Node
from weft.transform.rebuild import const, make, remake, rewrite

BLOCKS = 64  # pieces where the order of summation is free
FEWEST = 8  # fewest pieces of columns
# rows or columns at least this long are cut even if one worker could take them whole
LONG = 1 << 20
MIN_ELEMENTS = 1 << 18  # shorter reductions are over before a second kernel has started
MAX_OUTPUTS = 1 << 10  # more outputs than this occupy the cores by themselves


def split_reductions(graph: Graph, turns: int = 0) -> Graph:
    """The graph with each long sum, max or argmax to few values done in parts. `turns`: after how
    many a target ends a thread's loops (0: it does not); longer rows are cut there, too."""
    long = min(LONG, turns or LONG)
    return rewrite(graph, lambda node, inputs: _split(remake(node, inputs), long), _reduces_many)


def _reduces_many(node: Node) -> bool:
    return node.op in ("sum", "max", "argmax") and node.inputs[0].size >= MIN_ELEMENTS


def _split(node: Node, long: int) -> Node:
    if not _reduces_many(node):
        return node
    (x,) = node.inputs
    if node.size > MAX_OUTPUTS and x.size < node.size * long:
        return node
    if node.op == "argmax":
        return _argmax(node, x, node.attrs["axis"], long)
    axes = tuple(sorted(node.attrs["axes"]))
    lead = next((i for i, a in enumerate(axes) if a != i), len(axes))  # axes 0..lead-1 go
    if node.op == "sum" and node.dtype.is_float:
        if lead and (lead == len(axes) or node.size == 1):
            return _sum(node, x, lead, long)
        last = axes == tuple(range(len(node.shape), len(x.shape)))
        return _row_sums(node, x, long) if last else node
    if lead:
        x = make("reshape", x, shape=(math.prod(x.shape[:lead]), *x.shape[lead:]))
        axes = (0, *(a - lead + 1 for a in axes[lead:]))
    cut = max(axes, key=lambda a: x.shape[a], default=0)
    if lead and x.shape[0] > BLOCKS:
        cut = 0
    elif not axes or x.shape[cut] < long:
        return node
    rest = tuple(a + (a > cut) for a in axes if a != cut)
    parts = [make(node.op, p, axes=(cut + 1, *rest), where=node.where) for p in _pieces(x, cut)]
    at = cut - sum(a < cut for a in axes)
    return make(node.op, _joined(parts, at), axes=(at,), where=node.where)


def _joined(parts: list[Node], axis: int) -> Node:
    return parts[0] if len(parts) == 1 else make("concat", *parts, axis=axis)


def _pieces(x: Node, axis: int) -> list[Node]:
    """BLOCKS pieces of an axis, [..., pieces, elements, ...], and one of what is left over."""
    length = x.shape[axis]
    each, found = length // BLOCKS, []
    for start, stop, count in ((0, each * BLOCKS, BLOCKS), (each * BLOCKS, length, 1)):
        if start == stop:
            continue
        part = x
        if (start, stop) != (0, length):
            starts, stops = [0] * len(x.shape), list(x.shape)
            starts[axis], stops[axis] = start, stop
            ones = (1,) * len(x.shape)
            part = make("slice", x, starts=tuple(starts), stops=tuple(stops), steps=ones)
        shape = (*x.shape[:axis], count, (stop - start) // count, *x.shape[axis + 1 :])
        found.append(make("reshape", part, shape=shape))
    return found


def _argmax(node: Node, x: Node, axis: int, long: int) -> Node:
    """The first piece with the largest value, and the first place of that value in it."""
    if x.shape[axis] < long:
        return node
    each = x.shape[axis] // BLOCKS
    values, places = [], []
    for k, part in enumerate(_pieces(x, axis)):
        values.append(make("max", part, axes=(axis + 1,), where=node.where))
        inside = make("argmax", part, axis=axis + 1, where=node.where)
        piece = make("iota", shape=inside.shape, axis=axis, dtype=dt.int32)
        start = _like(inside, k * each * BLOCKS)
        before = make("add", make("mul", piece, _like(inside, each)), start)
        places.append(make("add", inside, before))
    value, place = (_joined(parts, axis) for parts in (values, places))
    best = make("argmax", value, axis=axis, where=node.where)
    kept = (*best.shape[:axis], 1, *best.shape[axis:])
    wanted = make("broadcast", make("reshape", best, shape=kept), shape=place.shape)
    chosen = make("equal", make("iota", shape=place.shape, axis=axis, dtype=dt.int32), wanted)
    return make("sum", make("where", chosen, place, _like(place, 0)), axes=(axis,))


def _like(x: Node, number: int) -> Node:
    return make("broadcast", const(np.asarray(number, x.dtype.numpy)), shape=x.shape)


def _row_sums(node: Node, x: Node, long: int) -> Node:
    """Sums of floats over the last axes, cut at a row's segments."""
    length = math.prod(x.shape[len(node.shape) :])
    if length < long:
        return node
    if x.dtype != dt.float32:
        x = make("cast", x, dtype=dt.float32)
    rows = make("reshape", x, shape=(node.size, length))
    whole = length // ROW_SEGMENT * ROW_SEGMENT
    parts = []
    for start, stop, each in ((0, whole, ROW_SEGMENT), (whole, length, length - whole)):
        if start < stop:
            stops = (node.size, stop)
            part = make("slice", rows, starts=(0, start), stops=stops, steps=(1, 1))
            part = make("reshape", part, shape=(node.size, (stop - start) // each, each))
            parts.append(make("sum", part, axes=(2,), where=node.where))
    total = _split(make("sum", _joined(parts, 1), axes=(1,), where=node.where), long)
    if total.dtype != node.dtype:
        total = make("cast", total, dtype=node.dtype)
    return make("reshape", total, shape=node.shape)


def _sum(node: Node, x: Node, lead: int, long: int) -> Node:
    """A sum of floats over all axes, or over the first `lead`, in f32."""
    kept = () if node.size == 1 else x.shape[lead:]
    length = x.size // math.prod(kept)
    piece = ROW_SEGMENT
    if kept and length < FEWEST * COLUMN_SEGMENT**2:
        piece = COLUMN_SEGMENT
    elif kept:
        piece = COLUMN_SEGMENT**2
    if length < 2 * piece:
        return node
    if x.dtype != dt.float32:
        x = make("cast", x, dtype=dt.float32)
    flat = make("reshape", x, shape=(length, *kept))
    whole = length // piece * piece
    partial = _partial(flat, 0, whole, piece, node.where)
    if whole < length:
        rest = _partial(flat, whole, length, length - whole, node.where)
        partial = make("concat", partial, rest, axis=0)
    total = _split(make("sum", partial, axes=(0,), where=node.where), long)
    if total.dtype != node.dtype:
        total = make("cast", total, dtype=node.dtype)
    return total if total.shape == node.shape else make("reshape", total, shape=node.shape)


def _partial(x: Node, start: int, stop: int, piece: int, where: str) -> Node:
    """Sums of runs of `piece` elements of axis 0, from `start` up to `stop`."""
    kept = x.shape[1:]
    if (start, stop) != (0, x.shape[0]):
        zeros, ones = (0,) * len(kept), (1,) * (1 + len(kept))
        x = make("slice", x, starts=(start, *zeros), stops=(stop, *kept), steps=ones)
    x = make("reshape", x, shape=((stop - start) // piece, piece, *kept))
    return make("sum", x, axes=(1,), where=where)
