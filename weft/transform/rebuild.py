"""Builds nodes and rewrites graphs: the tools of every transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.graph.ir import Graph, Node, toposort
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import PRIMITIVES, Aval

_SCALARS = (str, int)
_MAPPINGS = (dict, Mapping)  # a dict is known at once, any other mapping slowly

Visit = Callable[[Node, tuple[Node, ...]], Node]


def make(op: str, *inputs: Node, where: str = "", **attrs: Any) -> Node:
    """A node of primitive `op`; its shape and dtype come from the primitive's abstract rule."""
    found = PRIMITIVES[op].abstract(*(Aval(x.shape, x.dtype) for x in inputs), **attrs)
    return Node(op, inputs, attrs, found.shape, found.dtype, where=where)


def const(value: np.ndarray) -> Node:
    """A const node holding `value`."""
    return Node("const", (), {"value": value}, value.shape, as_dtype(value.dtype))


def remake(node: Node, inputs: tuple[Node, ...]) -> Node:
    """`node` over other inputs of the same shapes and dtypes; itself when nothing changed."""
    if len(inputs) == len(node.inputs) and all(map(is_, inputs, node.inputs)):
        return node
    return Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.body, node.where)


def rewrite(graph: Graph, visit: Visit, change: Callable[[Node], bool] | None = None) -> Graph:
    """The graph with each node replaced by `visit(node, new_inputs)`, operands first.

    Input nodes keep their identity (they are not visited); `visit` must keep shape and dtype. A
    graph that no visit changes is returned itself. Where `visit` is known to change only nodes for
    which `change` holds, a graph without such nodes is not visited.
    """
    if change is not None and not any(map(change, graph.nodes())):
        return graph
    new = {x: x for x in graph.inputs}
    for node in graph.nodes():
        if node not in new:
            made = visit(node, tuple([new[x] for x in node.inputs]))
            assert made.shape == node.shape and made.dtype is node.dtype, (node, made)
            new[node] = made
    if all(new[x] is x for x in graph.roots()):
        return graph
    return Graph(
        graph.inputs,
        tuple(new[x] for x in graph.outputs),
        tuple((state, new[x]) for state, x in graph.assigns),
        graph.name,
        graph.meta,
    )


def over(graph: Graph, new: Mapping[int, Node]) -> Graph:
    """Returns the graph over other inputs; `new` is keyed by the ids of the inputs they replace."""
    made: dict[int, Node] = dict(new)
    for node in toposort((*graph.inputs, *graph.roots())):
        if id(node) not in made:
            made[id(node)] = remake(node, tuple(made[id(x)] for x in node.inputs))
    return Graph(
        tuple(made[id(x)] for x in graph.inputs),
        tuple(made[id(x)] for x in graph.outputs),
        tuple((made[id(state)], made[id(x)]) for state, x in graph.assigns),
        graph.name,
        graph.meta,
    )


def users(graph: Graph) -> dict[int, list[Node]]:
    """id(node) -> the nodes that read it, in topological order (outputs are not users)."""
    found: dict[int, list[Node]] = {}
    for node in graph.nodes():
        found[id(node)] = []
        for x in dict.fromkeys(node.inputs):
            found[id(x)].append(node)
    return found


def kind_of(node: Node) -> str:
    """The primitive's kind: "elementwise", "movement", "reduce", "dot", "source", "call", ..."""
    return COMPOSITES[node.attrs["name"]].kind if node.op == "call" else PRIMITIVES[node.op].kind


def label(node: Node) -> str:
    """Returns the name of a value for messages: its own name if it has one, else its op."""
    if node.op == "result":
        return f"{label(node.inputs[0])}.{node.attrs['index']}"
    return str(node.attrs.get("name", node.op))


def shown(node: Node) -> str:
    """A value in messages: label, dtype, shape and the user's line where it is known."""
    where = f" ({node.where})" if node.where else ""
    return f"{label(node)} {node.dtype.name}{list(node.shape)}{where}"


def uniform(node: Node) -> np.ndarray | None:
    """The 0-d value that every element has, where the graph shows it (a const behind movement)."""
    while node.op in ("broadcast", "reshape", "transpose", "slice") and node.size:
        node = node.inputs[0]
    if node.op == "const" and node.size == 1:
        value: np.ndarray = node.attrs["value"]
        return value.reshape(())
    return None


def filled(value: np.ndarray, shape: tuple[int, ...]) -> Node:
    """A node of `shape` with the 0-d `value` in every element."""
    scalar = const(value)
    return scalar if shape == () else make("broadcast", scalar, shape=shape)


def frozen(value: Any) -> Any:
    """Attributes as a hashable key: equal keys mean equal attributes (constants by content)."""
    if isinstance(value, _SCALARS):  # most of them
        return (type(value).__name__, value)
    if isinstance(value, list | tuple):
        return tuple([frozen(v) for v in value])
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, _MAPPINGS):
        return tuple([(k, frozen(v)) for k, v in sorted(value.items())])
    if isinstance(value, float):
        return ("float", value.hex())
    return (type(value).__name__, value)
