"""Rows that nobody reads are not computed: a gather of few rows moves up through row-wise work.

Prefill wants the logits of one row: everything after the last layer's keys and values then runs on
that row alone. Rows are independent in the ops that are passed, so each value stays the same.
"""

from __future__ import annotations

from weft.graph.ir import Graph, Node, Shape, toposort
from weft.ops.nodes import make_node
from weft.transform.rebuild import kind_of, make, remake, rewrite, users

FACTOR = 4  # rows must shrink by at least this much
ROW_WISE = ("softmax", "log_softmax", "layer_norm", "rms_norm")
ROW_OPERANDS = {"cached_attention": (0, 3, 4)}  # operands of a composite that hold its rows


def narrow_rows(graph: Graph) -> Graph:
    """The graph with gathers of few rows (axis 0) done as early as all their source allows."""
    indices = {id(n.inputs[1]): n.inputs[1] for n in toposort(graph.roots()) if _narrows(n)}
    for idx in indices.values():
        graph = _narrow(graph, idx)
    return graph


def _narrows(node: Node) -> bool:
    if node.op != "gather" or node.attrs["axis"] != 0 or len(node.inputs[1].shape) != 1:
        return False
    x, idx = node.inputs
    return kind_of(x) != "source" and 0 < idx.size * FACTOR <= x.shape[0]


def _narrow(graph: Graph, idx: Node) -> Graph:
    order = list(toposort(graph.roots()))
    gathers = {id(n) for n in order if _narrows(n) and n.inputs[1] is idx}
    cone = _cone(graph, order, gathers)
    small: dict[int, Node] = {}

    def narrowed(x: Node) -> Node:
        if id(x) not in small:
            small[id(x)] = make("gather", x, idx, axis=0)
        return small[id(x)]

    for node in order:
        if id(node) in cone:
            small[id(node)] = _smaller(node, narrowed, idx.size)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if id(node) in gathers and id(node.inputs[0]) in cone:
            return small[id(node.inputs[0])]
        return remake(node, inputs)

    return rewrite(graph, visit)


def _cone(graph: Graph, order: list[Node], gathers: set[int]) -> set[int]:
    """Row-wise values of which only the gathered rows are ever used."""
    readers = users(graph)
    roots = {id(r) for r in graph.roots()}
    cone: set[int] = set()
    for node in reversed(order):
        uses = readers[id(node)]
        if not uses or id(node) in roots or _row_operands(node) is None:
            continue
        if all(_keeps_rows(node, u, cone, gathers) for u in uses):
            cone.add(id(node))
    return cone


def _keeps_rows(node: Node, user: Node, cone: set[int], gathers: set[int]) -> bool:
    """Whether `user` reads `node` only at the gathered rows."""
    if id(user) in gathers:
        return user.inputs[0] is node and user.inputs[1] is not node
    rows = _row_operands(user) if id(user) in cone else None
    return rows is not None and all(i in rows for i, x in enumerate(user.inputs) if x is node)


def _row_operands(node: Node) -> tuple[int, ...] | None:
    """Which operands hold, in their axis 0, the rows of the node's axis 0; None: not row-wise."""
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
        return ROW_OPERANDS.get(name)
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


def _smaller(node: Node, narrowed, rows: int) -> Node:  # type: ignore[no-untyped-def]
    """The node computed for the gathered rows only."""
    held = _row_operands(node)
    assert held is not None
    inputs = tuple(narrowed(x) if i in held else x for i, x in enumerate(node.inputs))
    attrs = dict(node.attrs)
    shape: Shape = (rows, *node.shape[1:])
    if node.op in ("broadcast", "reshape"):
        attrs["shape"] = shape
    elif node.op == "slice":
        attrs["stops"] = (rows, *node.attrs["stops"][1:])
    return make_node(node.op, inputs, attrs, node.where)
