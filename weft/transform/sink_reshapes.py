"""Reshapes that follow an anchor move past the elementwise ops after it, so that the anchor's
kernel can compute them as its epilogue: f(reshape(dot), y) = reshape(f(dot, reshape(y)))."""

from __future__ import annotations

from weft.graph.ir import Graph, Node, Shape
from weft.transform.fold import simplify
from weft.transform.rebuild import kind_of, make, remake, rewrite

ANCHORS = ("reduce", "dot", "scatter", "sort", "call")


def sink_reshapes(graph: Graph) -> Graph:
    """The graph with elementwise ops done in the shape of the anchor that leads to them."""
    led: set[int] = set()  # ids of anchors and of elementwise values computed from them
    keep: list[Node] = []  # keeps ids unique

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        kind = kind_of(node)
        if kind in ANCHORS:
            led.add(id(node))
        elif kind == "elementwise":
            lead = _lead(node, led)
            if lead is not None:
                parts = tuple(_in_shape(x, lead.shape) for x in node.inputs)
                inner = simplify(make(node.op, *parts, where=node.where, **node.attrs))
                led.add(id(inner))
                keep.append(inner)
                node = make("reshape", inner, shape=node.shape)
            elif any(id(x) in led and x.shape == node.shape for x in node.inputs):
                led.add(id(node))
        node = simplify(node)
        keep.append(node)
        return node

    return rewrite(graph, visit)


def _lead(node: Node, led: set[int]) -> Node | None:
    """The anchor-led value behind a reshape among the operands, unless one needs no reshape."""
    if any(id(x) in led for x in node.inputs):
        return None
    for x in node.inputs:
        if x.op == "reshape" and id(x.inputs[0]) in led:
            return x.inputs[0]
    return None


def _in_shape(x: Node, shape: Shape) -> Node:
    return x if x.shape == shape else simplify(make("reshape", x, shape=shape))
