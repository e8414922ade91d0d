"""Common subexpressions become one node; equal constants become one constant."""

from __future__ import annotations

from typing import Any

from weft.graph.ir import Graph, Node
from weft.transform.rebuild import frozen, remake, rewrite


def cse(graph: Graph) -> Graph:
    """The graph with each distinct computation once (inputs are always distinct)."""
    seen: dict[Any, Node] = {}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op == "input":
            return node
        key = (node.op, tuple(id(x) for x in inputs), frozen(node.attrs), node.shape, node.dtype)
        return seen.setdefault(key, remake(node, inputs))

    return rewrite(graph, visit)
