"""The tracer: binding an op to graph Nodes makes a new Node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import UsageError
from weft.core.lines import user_line
from weft.graph.ir import Graph, Node, Shape, results
from weft.ops.composite import body_graph
from weft.ops.primitive import PRIMITIVES, Aval, aval, register_listener


def make_node(
    op: str, inputs: tuple[Node, ...], attrs: Mapping[str, Any], where: str | None = None
) -> Node:
    """Makes a checked Node, whose shape and dtype come from the primitive's shape rule. For op
    "call" it builds (or shares) the composite's body; the node is the first of its outputs (see
    `graph.ir.results`)."""
    avals = tuple(Aval(x.shape, x.dtype) for x in inputs)
    out = PRIMITIVES[op].abstract(*avals, **attrs)
    body: Graph | None = None
    if op == "call":
        body = body_graph(attrs["name"], avals, attrs["params"])
    where = user_line() if where is None else where
    out = out[0] if isinstance(out, tuple) else out
    return Node(op, inputs, attrs, out.shape, out.dtype, body, where)


def input_node(name: str, shape: Shape, dtype: DType, role: str = "input", **attrs: Any) -> Node:
    """An input of a Graph; `rows` may name the runtime scalar that bounds its axis 0."""
    given = {k: v for k, v in attrs.items() if v is not None}
    return Node("input", (), {"name": name, "role": role, **given}, shape, dtype, None, "")


def as_node(value: Any) -> Node:
    """A Node as it is; an array as a const Node (its content is copied, so later writes to the
    array cannot change the Graph)."""
    if isinstance(value, Node):
        return value
    if not isinstance(value, np.ndarray | np.generic):
        raise UsageError(f"cannot place a {type(value).__name__} in a graph; pass it as an input")
    array = np.array(value)
    known = aval(array)
    array.flags.writeable = False
    return Node("const", (), {"value": array}, known.shape, known.dtype, None, user_line())


class NodeListener:
    """Makes Nodes of bound ops; arrays among the operands become consts."""

    def bind(self, op: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        found = results(make_node(op, tuple(as_node(x) for x in inputs), attrs))
        return found if len(found) > 1 else found[0]


NODES = NodeListener()
register_listener(Node, NODES, rank=9)
