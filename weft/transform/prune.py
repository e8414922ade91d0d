"""Removes values that a graph computes twice, and values without a user."""

from __future__ import annotations

from typing import Any

from weft.graph.ir import Graph, Node, toposort
from weft.transform.rebuild import frozen, remake, rewrite


def cse(graph: Graph) -> Graph:
    """The graph with each distinct computation once (inputs are always distinct)."""
    seen: dict[Any, Node] = {}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op == "input":
            return node
        attrs = frozen(node.attrs) if node.attrs else ()
        key = (node.op, tuple(map(id, inputs)), attrs, node.shape, node.dtype)
        return seen.setdefault(key, remake(node, inputs))

    return rewrite(graph, visit)


def dce(graph: Graph) -> Graph:
    """The graph without unused weights and states, and without assignments that change nothing.

    Inputs and scalars stay even when unused: they are the call signature.
    """
    assigns = tuple((state, new) for state, new in graph.assigns if state is not new)
    live = {id(n) for n in toposort((*graph.outputs, *(new for _, new in assigns)))}
    live |= {id(state) for state, _ in assigns}
    inputs = tuple(
        x for x in graph.inputs if id(x) in live or x.attrs["role"] in ("input", "scalar")
    )
    return Graph(inputs, graph.outputs, assigns, graph.name, graph.meta)
