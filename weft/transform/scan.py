"""Long scans become three kernels, and long products two: totals of blocks, then their use.

One worker per row would leave a long row to one core. Blocks give every core work: their totals,
the totals before each (one after the other), and each block from there on. A worker that walks a
whole row joins its blocks in the same order, so which of the two is done depends on how many rows
there are and the bits do not.
"""

from __future__ import annotations

import math

from weft.core.caps import Caps
from weft.graph.ir import Graph, Node, Shape
from weft.ops.graph_listener import make_node
from weft.transform.rebuild import make, remake, rewrite

BLOCK = 4096  # fewest elements of a block that vectors or many threads share
SERIAL = 256  # ... and where they are joined one by one, so that rounding errors stay few
BLOCKS = 2048  # most blocks of a row
SMALL = 1 << 16  # elements that a CPU finishes before a second kernel has started
COLUMNS = 1024  # columns that one worker of a CPU takes together, along an axis other than the last
GROUPS = 512  # groups of threads that keep a GPU busy
THREADS = 1 << 14  # ... and threads, where each works alone


def alone(caps: Caps, last: bool) -> bool:
    """True if one thread of a GPU walks a row: where barriers are expensive, and across rows."""
    return not caps.is_cpu and not (caps.cheap_barrier and last)


def block_length(caps: Caps, n: int, last: bool) -> int:
    """Elements of a block of a scan over n elements, along the last axis or another."""
    across = caps.is_cpu and not last
    length = SERIAL if across or alone(caps, last) else BLOCK
    most = 8 * BLOCKS if across else BLOCKS
    while length * most < n:
        length *= 2
    return length


def busy(caps: Caps, shape: Shape, axis: int) -> bool:
    """True if one worker per row (or per some columns) occupies the target, or finishes at once."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if caps.is_cpu:
        return math.prod(shape) <= SMALL or outer * -(-inner // COLUMNS) >= 2 * caps.cores
    if alone(caps, axis == len(shape) - 1):
        return outer * inner >= THREADS
    return outer >= GROUPS


def walked(caps: Caps, blocks: int) -> int:
    """Returns the number of blocks at the end of a row that one core walks: its share. They are not
    read a second time for their totals."""
    return blocks // caps.cores if caps.cores > 1 else 0


def split_scans(graph: Graph, caps: Caps) -> Graph:
    """The graph with each scan and product of few long rows done in blocks."""

    rules = {"scan": _split_scan, "prod": _split_product}

    def long(node: Node) -> bool:
        named = node.op == "call" and node.attrs["name"] in rules
        return named and 0 not in node.inputs[0].shape

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        return rules[node.attrs["name"]](node, caps) if long(node) else node

    return rewrite(graph, visit, long)


def _call(name: str, where: str, *inputs: Node, **params: object) -> Node:
    return make_node("call", inputs, {"name": name, "params": params}, where)


def _split_scan(node: Node, caps: Caps) -> Node:
    params = node.attrs["params"]
    axis, op, shape = params["axis"], params["op"], node.shape
    block = block_length(caps, shape[axis], axis == len(shape) - 1)
    if shape[axis] <= block or busy(caps, shape, axis):
        return node
    cut = {"reverse": params["reverse"], "block": block}
    if caps.is_cpu and axis == len(shape) - 1:
        cut["tail"] = walked(caps, -(-shape[axis] // block))
    start = {"op": op, "axis": axis, "exclusive": params["exclusive"]}
    totals = _call("scan_totals", node.where, *node.inputs, op=op, axis=axis, **cut)
    carries = _call("scan_carries", node.where, totals, **start)
    return _call("scan_blocks", node.where, *node.inputs, carries, **cut, **start)


def _split_product(node: Node, caps: Caps) -> Node:
    """Axes side by side are one axis to begin with."""
    (x,) = node.inputs
    axes = node.attrs["params"]["axes"]
    first, stop = axes[0], axes[-1] + 1
    shape = (*x.shape[:first], math.prod(x.shape[first:stop]), *x.shape[stop:])
    block = block_length(caps, shape[first], stop == len(x.shape))
    if stop - first != len(axes) or shape[first] <= block or busy(caps, shape, first):
        return node
    flat = x if shape == x.shape else make("reshape", x, shape=shape)
    cut = {"op": "prod", "axis": first, "reverse": False, "block": block}
    totals = _call("scan_totals", node.where, flat, **cut)
    return _call("scan_joined", node.where, totals, op="prod", axis=first, dtype=node.dtype)
