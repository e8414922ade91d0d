"""Long reductions to few values become two: partial results of pieces, then their reduction.

One worker per output would leave a large sum to one core; pieces give every core work. A sum of
floats is cut where its order is (core/order.py): a row at its segments, columns at whole chains. So
both ways of computing it give the same bits. A sum over axes that lie apart stays whole.
"""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.order import COLUMN_SEGMENT, ROW_SEGMENT
from weft.graph.ir import Graph, Node
from weft.transform.rebuild import make, remake, rewrite

BLOCKS = 64  # pieces where the order is free
FEWEST = 8  # pieces of columns at least
MIN_ELEMENTS = 1 << 18  # shorter reductions are over before a second kernel has begun
MAX_OUTPUTS = 1 << 10  # more outputs than this occupy the cores by themselves


def split_reductions(graph: Graph) -> Graph:
    """The graph with each long sum or max over its leading axis done in parts."""
    return rewrite(graph, lambda node, inputs: _split(remake(node, inputs)))


def _split(node: Node) -> Node:
    if node.op not in ("sum", "max") or 0 not in node.attrs["axes"]:
        return node
    (x,) = node.inputs
    if x.size < MIN_ELEMENTS or node.size > MAX_OUTPUTS:
        return node
    axes = tuple(sorted(node.attrs["axes"]))
    lead = next((i for i, a in enumerate(axes) if a != i), len(axes))  # axes 0..lead-1 go
    if node.op == "sum" and node.dtype.is_float:
        return _sum(node, x, lead) if lead == len(axes) or node.size == 1 else node
    length = math.prod(x.shape[:lead])
    if length % BLOCKS or length == BLOCKS:
        return node
    flat = make("reshape", x, shape=(BLOCKS, length // BLOCKS, *x.shape[lead:]))
    rest = tuple(a - lead + 2 for a in axes[lead:])
    partial = make(node.op, flat, axes=(1, *rest), where=node.where)
    return make(node.op, partial, axes=(0,), where=node.where)


def _sum(node: Node, x: Node, lead: int) -> Node:
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
    total = _split(make("sum", partial, axes=(0,), where=node.where))
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
