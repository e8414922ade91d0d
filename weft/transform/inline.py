"""Composites that no template claims are replaced by their bodies."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node, toposort
from weft.transform.rebuild import remake, rewrite

Claims = Callable[[Node], bool]


def inline(graph: Graph, claims: Claims) -> Graph:
    """The graph without "call" nodes except those that `claims` keeps, at any depth."""

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        return _expand(node, claims) if node.op == "call" and not claims(node) else node

    return rewrite(graph, visit)


def _expand(call: Node, claims: Claims) -> Node:
    body = call.body
    if body is None or len(body.inputs) != len(call.inputs) or len(body.outputs) != 1:
        name = call.attrs.get("name")
        raise CompileError(f"composite {name!r} has no usable body and no template claims it")
    new = {id(p): x for p, x in zip(body.inputs, call.inputs)}
    for node in toposort(body.outputs):
        if id(node) in new:
            continue
        made = remake(node, tuple(new[id(x)] for x in node.inputs))
        if made.op == "call" and not claims(made):
            made = _expand(made, claims)
        new[id(node)] = made
    return new[id(body.outputs[0])]
