"""Graphs checked against the primitives' own shape rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.dtypes import DType
from weft.core.errors import DTypeError, UsageError
from weft.graph import verify as structure
from weft.graph.ir import Graph, Node, Shape
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import PRIMITIVES, Aval


def shape_rule(
    op: str, operands: list[tuple[Shape, DType]], attrs: Mapping[str, Any]
) -> tuple[Shape, DType]:
    """The shape and dtype that primitive `op` gives, by its own rule."""
    if op not in PRIMITIVES:
        raise UsageError(f"{op!r} is no primitive")
    if op == "call" and attrs.get("name") not in COMPOSITES:
        raise UsageError(f"{attrs.get('name')!r} is no composite")
    out = PRIMITIVES[op].abstract(*(Aval(s, d) for s, d in operands), **attrs)
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out.dtype, DType):
        raise DTypeError(f"{op}: {out.dtype!r} is not a dtype")
    return out.shape, out.dtype


def verify(graph: Graph, sound: dict[int, Node] | None = None) -> None:
    """Raises CompileError unless the graph is well formed and every shape is what its op gives.
    `sound`: the nodes of which both are known, as in weft.graph.verify."""
    structure.verify(graph, shape_rule, sound)
