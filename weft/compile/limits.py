"""What a target cannot hold is refused with the nodes named."""

from __future__ import annotations

from weft.core.caps import Caps
from weft.core.errors import DTypeError
from weft.graph.ir import Graph, Node, toposort


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
