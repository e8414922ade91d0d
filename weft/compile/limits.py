"""What a target cannot hold: refused with the nodes named, or rewritten to smaller parts."""

from __future__ import annotations

from weft.core.caps import Caps
from weft.core.errors import DTypeError
from weft.graph.ir import Graph, Node, toposort
from weft.transform.rebuild import make, remake, rewrite


def check_dtypes(graph: Graph, caps: Caps) -> None:
    """Raises DTypeError naming the first values whose dtype the target cannot store."""
    wrong: list[Node] = []
    for node in toposort((*graph.inputs, *graph.roots())):
        if node.dtype not in caps.dtypes:
            wrong.append(node)
    if wrong:
        shown = ", ".join(f"{_name(n)} {n.dtype.name}{list(n.shape)}" for n in wrong[:3])
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        where = f" ({wrong[0].where})" if wrong[0].where else ""
        raise DTypeError(
            f"{caps.name} has no {wrong[0].dtype.name}: {shown}{more}{where}; cast before"
        )


def _name(node: Node) -> str:
    return str(node.attrs.get("name", node.op))


def split(graph: Graph, caps: Caps) -> Graph:
    """The graph with concats small enough for caps.max_bindings."""
    limit = max(2, caps.max_bindings - 2)

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        return _nested_concat(node, limit) if node.op == "concat" else node

    return rewrite(graph, visit)


def _nested_concat(node: Node, limit: int) -> Node:
    """A concat of many parts as a tree of concats of at most `limit` parts."""
    parts = list(node.inputs)
    axis = node.attrs["axis"]
    while len(parts) > limit:
        runs = [parts[i : i + limit] for i in range(0, len(parts), limit)]
        parts = [make("concat", *r, axis=axis) if len(r) > 1 else r[0] for r in runs]
    return remake(node, tuple(parts))
