"""Long reductions to few values become two: partial results of blocks, then their reduction.

One worker per output would leave a large sum to one core; blocks give every core work. The order
stays fixed: it depends on shapes alone.
"""

from __future__ import annotations

import math

from weft.graph.ir import Graph, Node
from weft.transform.rebuild import make, remake, rewrite

BLOCKS = 64
MIN_ELEMENTS = 1 << 18  # shorter reductions are over before a second kernel has begun
MAX_OUTPUTS = 1 << 10  # more outputs than this occupy the cores by themselves


def split_reductions(graph: Graph) -> Graph:
    """The graph with each long sum or max over its leading axis done in BLOCKS parts."""
    return rewrite(graph, lambda node, inputs: _split(remake(node, inputs)))


def _split(node: Node) -> Node:
    if node.op not in ("sum", "max") or 0 not in node.attrs["axes"]:
        return node
    (x,) = node.inputs
    if x.size < MIN_ELEMENTS or node.size > MAX_OUTPUTS:
        return node
    axes = tuple(sorted(node.attrs["axes"]))
    lead = next((i for i, a in enumerate(axes) if a != i), len(axes))  # axes 0..lead-1 go
    length = math.prod(x.shape[:lead])
    if length % BLOCKS or length == BLOCKS:
        return node
    flat = make("reshape", x, shape=(BLOCKS, length // BLOCKS, *x.shape[lead:]))
    rest = tuple(a - lead + 2 for a in axes[lead:])
    partial = make(node.op, flat, axes=(1, *rest), where=node.where)
    return make(node.op, partial, axes=(0,), where=node.where)
