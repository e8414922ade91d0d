"""Avoids computing unused rows: a gather of few rows moves up through row-wise work.

Prefill wants the logits of one row, so the work after the last layer's keys and values runs on that
row alone. Rows are independent in the ops that the gather passes, so each value stays the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.ir import Graph, Node, Shape, results
from weft.ops.graph_listener import make_node
from weft.ops.indexing import missing
from weft.transform.rebuild import const, kind_of, make, remake, rewrite, users

FACTOR = 4  # rows must shrink by at least this much
ROW_WISE = ("softmax", "log_softmax", "layer_norm", "rms_norm", "quantize")
ROW_OPERANDS = {"cached_attention": (0, 3, 4)}  # operands of a composite that hold its rows


def select_rows_early(graph: Graph) -> Graph:
    """The graph with gathers of few rows (axis 0) done as early as all their source allows."""
    cone = _cone(graph) if any(map(_narrows, graph.nodes())) else None
    return rewrite(graph, _Narrower(cone).visit) if cone else graph


def _narrows(node: Node) -> bool:
    if node.op != "gather" or node.attrs["axis"] != 0 or len(node.inputs[1].shape) != 1:
        return False
    x, idx = node.inputs
    return kind_of(x) != "source" and 0 < idx.size * FACTOR <= x.shape[0]


class _Narrower:
    """Values of the `cone` as they were, until a gather of their rows is met: then those rows."""

    def __init__(self, cone: dict[int, int]):
        self.cone = cone
        self.operands: dict[int, tuple[Node, ...]] = {}  # operands of values in the cone, rewritten
        self.small: dict[tuple[int, int], Node] = {}  # keyed by the ids of a value and its index

    def visit(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        if id(node) in self.cone:
            self.operands[id(node)] = inputs
        elif _narrows(node) and id(node.inputs[0]) in self.cone:
            (x, idx), rows = node.inputs, inputs[1]
            return _found(self.rows_of(x, id(idx), rows), rows, x.shape[0])
        return remake(node, inputs)

    def rows_of(self, asked: Node, key: int, idx: Node) -> Node:
        """The rows `idx` of a value of the cone."""
        todo = [asked]
        while todo:
            node = todo[-1]
            first = next((x for x in self.wanted(node) if (id(x), key) not in self.small), None)
            if first is not None:
                todo.append(first)
            else:
                todo.pop()
                if (id(node), key) not in self.small:
                    self.small[id(node), key] = self.smaller(node, key, idx)
        return self.small[id(asked), key]

    def wanted(self, node: Node) -> list[Node]:
        """The operands in the cone that hold rows of `node`."""
        held = _row_operands(node) or ()
        return [node.inputs[i] for i in held if id(node.inputs[i]) in self.cone]

    def smaller(self, node: Node, key: int, idx: Node) -> Node:
        held = _row_operands(node)
        assert held is not None
        inputs = []
        for i, (x, made) in enumerate(zip(node.inputs, self.operands[id(node)])):
            if i in held and (id(x), key) not in self.small:
                self.small[id(x), key] = _gathered(made, idx)
            inputs.append(self.small[id(x), key] if i in held else made)
        return _smaller(node, tuple(inputs), idx.size)


def _gathered(x: Node, idx: Node) -> Node:
    """The rows `idx` of x. Those of a `rescale` are one of its parts' rows: a product of few rows
    then multiplies integers, as that of all rows does, and has the same bits."""
    if x.op == "call" and x.attrs["name"] == "rescale":
        parts = tuple(_gathered(part, idx) for part in x.inputs)
        return make_node(x.op, parts, dict(x.attrs), x.where)
    return make("gather", x, idx, axis=0)


def _found(rows: Node, idx: Node, extent: int) -> Node:
    """The narrowed rows as the gather gives them: those of an index outside come from no row."""
    known = idx.attrs.get("value") if idx.op == "const" else None
    if known is not None and ((known >= 0) & (known < extent)).all():
        return rows

    def filled(value: Any, like: Node) -> Node:
        scalar = const(np.asarray(value, like.dtype.numpy))
        return make("broadcast", scalar, shape=like.shape)

    low = make("less_equal", filled(0, idx), idx)
    inside = make("bitwise_and", low, make("less", idx, filled(extent, idx)))
    column = make("reshape", inside, shape=(idx.size, *(1,) * (len(rows.shape) - 1)))
    shown = make("broadcast", column, shape=rows.shape)
    return make("where", shown, rows, filled(missing(rows.dtype), rows))


def _cone(graph: Graph) -> dict[int, int]:
    """The row-wise values of which only gathered rows are ever used, always by the same index:
    id -> id of the index."""
    readers = users(graph)
    roots = {id(r) for r in graph.roots()}
    cone: dict[int, int] = {}
    for node in reversed(list(graph.nodes())):
        uses = readers[id(node)]
        if not uses or id(node) in roots or _row_operands(node) is None:
            continue
        indices = {_index_of(node, user, cone) for user in uses}
        if len(indices) == 1 and (idx := indices.pop()) is not None:
            cone[id(node)] = idx
    return cone


def _index_of(node: Node, user: Node, cone: dict[int, int]) -> int | None:
    """The id of the index by which `user` reads rows of `node` alone; None where it reads more."""
    if _narrows(user):
        x, idx = user.inputs
        return id(idx) if x is node and idx is not node else None
    rows = _row_operands(user) if id(user) in cone else None
    only = rows is not None and all(i in rows for i, x in enumerate(user.inputs) if x is node)
    return cone[id(user)] if only else None


def _row_operands(node: Node) -> tuple[int, ...] | None:
    """Returns the operands whose axis 0 holds the rows of the node's axis 0, or None if the node is
    not row-wise."""
    kind, everything = kind_of(node), tuple(range(len(node.inputs)))
    if not node.shape or not node.inputs:
        return None
    x = node.inputs[0]
    same = bool(x.shape) and x.shape[0] == node.shape[0]
    if kind == "elementwise":
        return everything
    if node.op == "dot":
        return (0,) if len(node.shape) == 2 else None
    if node.op == "call":
        name = node.attrs["name"]
        if name in ROW_WISE:
            return (0,) if len(node.shape) > 1 else None
        return everything if name == "rescale" else ROW_OPERANDS.get(name)
    if node.op == "result":
        return (0,) if _row_operands(x) is not None else None
    if kind == "reduce" and "axes" in node.attrs:
        return everything if 0 not in node.attrs["axes"] else None
    if node.op == "concat":
        return everything if node.attrs["axis"] else None
    if node.op == "broadcast":
        if len(x.shape) < len(node.shape) or (x.shape[0] == 1 and node.shape[0] != 1):
            return ()  # every row is the same: no operand holds rows
        return everything
    if node.op == "reshape":
        return everything if same else None
    if node.op == "slice":
        whole = same and node.attrs["starts"][0] == 0 and node.attrs["steps"][0] == 1
        return everything if whole else None
    return None


def _smaller(node: Node, inputs: tuple[Node, ...], rows: int) -> Node:
    """The node computed for the gathered rows only."""
    attrs = dict(node.attrs)
    if node.op == "result":
        output: int = attrs["index"]
        return results(inputs[0])[output]
    shape: Shape = (rows, *node.shape[1:])
    if node.op in ("broadcast", "reshape"):
        attrs["shape"] = shape
    elif node.op == "slice":
        attrs["stops"] = (rows, *node.attrs["stops"][1:])
    return make_node(node.op, inputs, attrs, node.where)
