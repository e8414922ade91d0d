"""Composites that no template claims are replaced by their bodies."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node, toposort
from weft.transform.rebuild import Visit, remake, rewrite

Claims = Callable[[Node], bool]


def inline(graph: Graph, claims: Claims) -> Graph:
    """The graph without "call" nodes except those that `claims` keeps, at any depth."""

    return rewrite(graph, _visitor(claims), lambda node: node.op == "call" and not claims(node))


def _visitor(claims: Claims) -> Visit:
    expanded: dict[int, list[Node]] = {}  # id of a call -> what the outputs of its body became

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op == "result" and id(node.inputs[0]) in expanded:
            output: int = node.attrs["index"]
            return expanded[id(node.inputs[0])][output]
        made = remake(node, inputs)
        if made.op != "call" or claims(made):
            return made
        expanded[id(node)] = expand(made, claims)
        return expanded[id(node)][0]

    return visit


def expand(call: Node, claims: Claims) -> list[Node]:
    """The outputs of the call's body on its operands."""
    body = call.body
    if body is None or len(body.inputs) != len(call.inputs) or not body.outputs:
        name = call.attrs.get("name")
        raise CompileError(f"no template claims composite {name!r}, and its body cannot be inlined")
    new, visit = {id(p): x for p, x in zip(body.inputs, call.inputs)}, _visitor(claims)
    for node in toposort(body.outputs):
        if id(node) not in new:
            new[id(node)] = visit(node, tuple(new[id(x)] for x in node.inputs))
    return [new[id(x)] for x in body.outputs]
