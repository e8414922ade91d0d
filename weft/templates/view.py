"""Movement ops as index transformations."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.ir import Node
from weft.templates import affine
from weft.templates.affine import Affine

Index = tuple[Affine, ...]
PURE = ("reshape", "transpose", "broadcast", "slice")


def source_index(node: Node, index: Sequence[Affine]) -> Index:
    """The index in node.inputs[0] of the element at `index` of a reshape, transpose, broadcast or
    slice node."""
    source = node.inputs[0].shape
    if node.op == "reshape":
        return affine.reshape_index(index, node.shape, source)
    if node.op == "transpose":
        back = [affine.ZERO] * len(source)
        for i, axis in enumerate(node.attrs["perm"]):
            back[axis] = index[i]
        return tuple(back)
    if node.op == "broadcast":
        tail = index[len(index) - len(source) :]
        return tuple(affine.ZERO if d == 1 else i for i, d in zip(tail, source))
    assert node.op == "slice", node.op
    steps = node.attrs.get("steps") or (1,) * len(source)
    return tuple(i * k + a for i, a, k in zip(index, node.attrs["starts"], steps))
