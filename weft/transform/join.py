"""Turns sums of zero-padded pieces, which derivatives of slices produce, into one concatenation.

Values are equal; a piece's -0.0 stays -0.0 (added to a padding's 0.0 it would become 0.0).
"""

from __future__ import annotations

from weft.graph.ir import Graph, Node
from weft.transform.rebuild import make, remake, rewrite


def join_pads(graph: Graph) -> Graph:
    """Returns the graph with add(pad(x), pad(y)), where x and y are adjacent along one axis, as a
    concat (padded where something is left on either side)."""

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        return (_joined(*inputs) or node) if node.op == "add" else node

    return rewrite(graph, visit)


def _joined(a: Node, b: Node) -> Node | None:
    axis = _axis(a)
    if axis is None or axis != _axis(b):
        return None
    if a.attrs["low"][axis] > b.attrs["low"][axis]:
        a, b = b, a
    (x,), (y,) = a.inputs, b.inputs
    low, high = a.attrs["low"][axis], b.attrs["high"][axis]
    if low + x.shape[axis] != b.attrs["low"][axis]:
        return None
    pieces = [*_pieces(x, axis), *_pieces(y, axis)]
    made = make("concat", *pieces, axis=axis, where=a.where)
    if not low and not high:
        return made
    rank = len(a.shape)
    lows, highs = (tuple(n if i == axis else 0 for i in range(rank)) for n in (low, high))
    return make("pad", made, low=lows, high=highs, value=a.attrs["value"], where=a.where)


def _axis(node: Node) -> int | None:
    """The one axis along which `node` is padded with zeros."""
    if node.op != "pad" or node.attrs["value"] != 0:
        return None
    ends = zip(node.attrs["low"], node.attrs["high"])
    axes = [i for i, (low, high) in enumerate(ends) if low or high]
    return axes[0] if len(axes) == 1 else None


def _pieces(x: Node, axis: int) -> tuple[Node, ...]:
    return x.inputs if x.op == "concat" and x.attrs["axis"] == axis else (x,)
