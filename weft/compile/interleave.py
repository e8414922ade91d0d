"""Weights of products in the order that a CPU's lanes read them: a kept interleaved order.

Checkpoints hold a linear layer as w[N, K]. Lanes of a product are rows of w (core.order), which
lie K apart there. Where nothing writes a weight, its product reads a copy in which `lanes` rows
are interleaved, w[N / lanes, K, lanes]: one stream, no shuffle. Whatever else reads the weight
(a gather of embeddings) reads the checkpoint's order.
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Graph, Node
from weft.templates.view import views
from weft.transform.rebuild import make, remake, rewrite

_PAIRS = {"dot2_bf16", "mma_bf16"}  # which take neighbours along K as they lie


def interleave(graph: Graph, caps: Caps) -> Graph:
    """The graph whose dots read interleaved weights, where `graph.meta["frozen"]` promises that
    weights never change and the target gains."""
    if not graph.meta.get("frozen") or not caps.is_cpu or caps.lanes < 2:
        return graph
    made: dict[int, Node] = {}  # weight -> the interleaved one

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        weight = _weight(node.inputs[1], caps) if node.op == "dot" else None
        if weight is None:
            return remake(node, inputs)
        if id(weight) not in made:
            whole = {"part": (0, weight.shape[0]), "whole": weight.shape}
            attrs = {**weight.attrs, **whole, "interleave": caps.lanes}
            made[id(weight)] = Node("input", (), attrs, weight.shape, weight.dtype)
        kept = _cast(made[id(weight)], node.inputs[1].dtype)
        columns = make("transpose", kept, perm=(1, 0))
        if len(node.inputs[1].shape) > 2:
            columns = make("broadcast", columns, shape=node.inputs[1].shape)
        return remake(node, (inputs[0], columns))

    return rewrite(graph, visit)


def _cast(node: Node, dtype: dt.DType) -> Node:
    return node if node.dtype == dtype else make("cast", node, dtype=dtype)


def _weight(node: Node, caps: Caps) -> Node | None:
    """The weight w[N, K] of which `node` is the transpose, where it can be interleaved."""
    *_, view = views(node)
    at, found = view.node, view.strides
    if at.op != "input" or at.attrs["role"] != "weight" or len(at.shape) != 2 or "part" in at.attrs:
        return None
    rows, depth = at.shape
    plain = node.shape[-2:] == (depth, rows) and found[-2:] == (1, depth) and not any(found[:-2])
    pairs = at.dtype == dt.bfloat16 and caps.features & _PAIRS
    even = rows and rows % caps.lanes == 0 and depth > 1
    return at if plain and even and at.dtype.is_float and not pairs else None
