"""pointwise: elementwise work, with several results, as one node until its kernel is written.

A step of an optimiser repeats some twenty operations for each parameter. As one node each, ten
thousand updates pass through the compiler like ten thousand operations.
"""

from __future__ import annotations

from typing import Any

from weft.graph.digest import digest
from weft.graph.ir import Graph, Node
from weft.ops.composite import Composite, register_composite
from weft.ops.primitive import Aval, bind, innermost

BY_DIGEST: dict[str, Graph] = {}  # what this process has traced


def known(work: Graph) -> str:
    """The digest by which calls of "pointwise" name `work`. Its outputs have one size, and each of
    their elements needs that element alone of its operands, or all of a 0-d operand."""
    key = digest(work)
    BY_DIGEST.setdefault(key, work)
    return key


def _abstract(*xs: Aval, work: str) -> Aval | tuple[Aval, ...]:
    made = tuple(Aval(x.shape, x.dtype) for x in BY_DIGEST[work].outputs)
    return made if len(made) > 1 else made[0]


def _body(*values: Any, work: str) -> Any:
    graph, in_graph = BY_DIGEST[work], any(isinstance(innermost(x), Node) for x in values)
    made: dict[int, Any] = {id(x): value for x, value in zip(graph.inputs, values)}
    for node in graph.nodes():
        if node.op == "const":
            made[id(node)] = node if in_graph else node.attrs["value"]
        elif id(node) not in made:
            made[id(node)] = bind(node.op, *(made[id(x)] for x in node.inputs), **node.attrs)
    out = tuple(made[id(x)] for x in graph.outputs)
    return out if len(out) > 1 else out[0]


register_composite(Composite("pointwise", _abstract, _body, {"work": None}, kind="pointwise"))
