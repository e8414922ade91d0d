"""Weights larger than a target may bind at once become row ranges of their buffer.

A range is an "input" node with attrs part=(start, stop) and whole=shape. The planner binds it at an
offset of the whole weight's buffer or, where the target cannot hold that in one buffer, gives each
range its own. Users see a concat of the ranges. The rules here push it through casts, transposes,
gathers and dots, so that no kernel binds it all: a gather selects between ranges, a dot becomes one
dot per range.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import CHUNK, SPAN
from weft.graph.ir import Graph, Node
from weft.ops.graph_listener import make_node
from weft.ops.packed import form_of
from weft.transform.rebuild import const, kind_of, make, remake, rewrite

ALIGN = 256  # bytes: binding offsets


def split(graph: Graph, caps: Caps) -> Graph:
    """The graph with parts small enough for the target: weights in bindable row ranges, concats
    of at most as many operands as a kernel may read."""
    large = {id(x): _ranges(x, caps) for x in graph.inputs if x.attrs["role"] == "weight"}
    parts = {key: made for key, made in large.items() if made is not None}
    if any(x.nbytes > caps.max_buffer_bytes for x in graph.inputs if id(x) in parts):
        _keep_whole(graph, caps, parts)
    limit = max(2, caps.max_bindings - 2)

    def ranged(node: Node, inputs: tuple[Node, ...]) -> Node:
        if form_of(node) is not None and (cut := _packed_ranges(node, caps)) is not None:
            return cut
        inputs = tuple(parts.get(id(x), x) for x in inputs)
        return _pushed(node, inputs) or remake(node, inputs)

    def nested(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        return _nested_concat(node, limit) if node.op == "concat" else node

    # ranges are found in flat concats: those still there in the end are nested
    packed = any(form_of(x) is not None for x in graph.nodes())
    graph = rewrite(graph, ranged) if parts or packed else graph
    return rewrite(graph, nested, lambda node: node.op == "concat")


def _ranges(weight: Node, caps: Caps) -> Node | None:
    """A concat of row ranges of a weight that is too large to bind or to hold, or None."""
    if not weight.shape or not (rows := _rows((weight,), caps)):
        return None  # also if one row is too large: the planner rejects it with an error naming it
    starts = range(0, weight.shape[0], rows)
    return make("concat", *(_range(weight, start, rows) for start in starts), axis=0)


def _packed_ranges(call: Node, caps: Caps) -> Node | None:
    """The same of a packed weight, whose parts are cut at the same rows."""
    weights = all(x.op == "input" and x.attrs["role"] == "weight" for x in call.inputs)
    if not weights or not (rows := _rows(call.inputs, caps)):
        return None
    made = (
        make_node(
            "call", tuple(_range(x, start, rows) for x in call.inputs), call.attrs, call.where
        )
        for start in range(0, call.shape[0], rows)
    )
    return make("concat", *made, axis=0)


def _rows(weights: Sequence[Node], caps: Caps) -> int:
    """Returns how many rows at a time are small enough in each of some weights with equally many
    rows. Returns 0 where whole weights are small enough, or where one row is too large."""
    limit = min(caps.max_binding_bytes, caps.max_buffer_bytes)
    sizes = [max(w.nbytes // w.shape[0], 1) if w.shape[0] else 1 for w in weights]
    if all(w.nbytes <= limit for w in weights):
        return 0
    step = max(ALIGN // math.gcd(ALIGN, size) for size in sizes)
    rows = limit // max(sizes) // step * step
    return rows - rows % next((n for n in (SPAN, CHUNK) if rows >= n), 1)  # see _dot


def _range(weight: Node, start: int, rows: int) -> Node:
    """Returns `rows` rows of a weight from `start` on, or the remaining ones."""
    stop = min(start + rows, weight.shape[0])
    attrs = {**weight.attrs, "part": (start, stop), "whole": weight.shape}
    shape = (stop - start, *weight.shape[1:])
    return Node("input", (), attrs, shape, weight.dtype, where=weight.where)


def _keep_whole(graph: Graph, caps: Caps, parts: dict[int, Node]) -> None:
    """Drops the weights beyond a buffer that something reads other than range by range: joined,
    they would need that buffer after all. The planner refuses them by name."""
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes():
        for x in node.inputs:
            readers.setdefault(id(x), []).append(node)
    outputs = {id(x) for x in graph.roots()}

    def by_ranges(x: Node, axis: int) -> bool:
        """True if all readers of x, which is in ranges along `axis`, can do without the whole."""
        if id(x) in outputs:
            return False
        for node in readers.get(id(x), ()):
            if node.op in ("cast", "transpose"):
                moved = axis if node.op == "cast" else node.attrs["perm"].index(axis)
                good = by_ranges(node, moved)
            elif node.op == "gather":
                good = node.attrs["axis"] == axis == 0 and node.inputs[1] is not x
            else:
                good = node.op == "dot" and node.inputs[0] is not x and axis >= len(x.shape) - 2
            if not good:
                return False
        return True

    for x in graph.inputs:
        if id(x) in parts and x.nbytes > caps.max_buffer_bytes and not by_ranges(x, 0):
            del parts[id(x)]


def _in_ranges(node: Node) -> bool:
    """True if node is a concat of ranges of one weight (behind casts and transposes)."""
    if node.op != "concat":
        return False
    leaves = list(node.inputs)
    for i, leaf in enumerate(leaves):
        while leaf.op in ("cast", "transpose") or form_of(leaf) is not None:
            leaf = leaf.inputs[0]
        leaves[i] = leaf
    return all(x.op == "input" and "part" in x.attrs for x in leaves)


def _pushed(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """The node with its op done range by range, or None."""
    if node.op in ("cast", "transpose") and _in_ranges(inputs[0]):
        (x,) = inputs
        axis = x.attrs["axis"]
        moved = axis if node.op == "cast" else node.attrs["perm"].index(axis)
        return make("concat", *(make(node.op, p, **node.attrs) for p in x.inputs), axis=moved)
    if node.op == "gather" and _in_ranges(inputs[0]) and node.attrs["axis"] == 0:
        return _gather(node, *inputs) if inputs[0].attrs["axis"] == 0 else None
    if node.op == "dot" and _in_ranges(inputs[1]):
        return _dot(node, *inputs)
    return None


def _gather(node: Node, table: Node, idx: Node) -> Node:
    """Gathers from each range, and keeps the last result whose range begins at or before the
    index."""
    tail = (1,) * (len(node.shape) - len(idx.shape))
    out, stop = None, 0
    for part in table.inputs:
        start, stop = stop, stop + part.shape[0]
        if out is None:
            out = make("gather", part, idx, axis=0)
            continue
        local = make("sub", idx, _filled(start, idx.shape))
        inside = make("less_equal", _filled(start, idx.shape), idx)
        shown = make("broadcast", make("reshape", inside, shape=idx.shape + tail), shape=node.shape)
        out = make("where", shown, make("gather", part, local, axis=0), out)
    assert out is not None
    return out


def _filled(value: int, shape: tuple[int, ...]) -> Node:
    scalar = const(np.asarray(value, np.int32))
    return make("broadcast", scalar, shape=shape) if shape else scalar


def _dot(node: Node, a: Node, b: Node) -> Node:
    axis = b.attrs["axis"]
    if axis == len(b.shape) - 1:
        dots = [make("dot", a, p, where=node.where, **node.attrs) for p in b.inputs]
        return make("concat", *dots, axis=len(node.shape) - 1)
    if axis != len(b.shape) - 2:
        return remake(node, (a, b))
    return _summed(node, a, b)


def _summed(node: Node, a: Node, b: Node) -> Node:
    """A dot over ranges of the summed axis: one dot per span, or per chunk of a span, added in the
    order of core/order. Only ranges shorter than a chunk give sums of their own."""
    starts = list(itertools.accumulate((x.shape[-2] for x in b.inputs), initial=0))
    unit = next((n for n in (SPAN, CHUNK) if all(s % n == 0 for s in starts[:-1])), starts[-1])
    exact = not node.inputs[0].dtype.is_float
    spans: dict[int, Node] = {}
    for first, part in zip(starts, b.inputs):
        for start in range(0, part.shape[-2], unit):
            stop = min(start + unit, part.shape[-2])
            left = _cut(a, len(a.shape) - 1, first + start, first + stop)
            right = _cut(part, len(part.shape) - 2, start, stop)
            attrs = node.attrs if exact else {**node.attrs, "out_dtype": dt.float32}
            term = make("dot", left, right, where=node.where, **attrs)
            span = (first + start) // SPAN
            spans[span] = make("add", spans[span], term) if span in spans else term
    total = functools.reduce(lambda x, y: make("add", x, y), spans.values())
    return total if total.dtype == node.dtype else make("cast", total, dtype=node.dtype)


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    """x[..., start:stop, ...] along an axis."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = start, stop
    steps = (1,) * len(x.shape)
    return make("slice", x, starts=tuple(starts), stops=tuple(stops), steps=steps)


def _nested_concat(node: Node, limit: int) -> Node:
    """A concat of many parts as a tree of concats of at most `limit` parts. Computed parts are
    joined in kernels of their own: fused with one another they would exceed the limit again."""
    parts = list(node.inputs)
    axis = node.attrs["axis"]
    alone = not any(kind_of(_behind(x)) == "source" for x in parts)
    while len(parts) > limit:
        runs = [parts[i : i + limit] for i in range(0, len(parts), limit)]
        parts = [make("concat", *r, axis=axis) if len(r) > 1 else r[0] for r in runs]
        parts = [_barrier(x) if alone and x.op == "concat" else x for x in parts]
    return remake(node, tuple(parts))


def _behind(node: Node) -> Node:
    while kind_of(node) == "movement":
        node = node.inputs[0]
    return node


def _barrier(node: Node) -> Node:
    return make_node("call", (node,), {"name": "barrier", "params": {}}, node.where)
