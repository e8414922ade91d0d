"""Movement ops as index transformations, and strided views of materialised nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.graph.ir import Node
from weft.templates import affine
from weft.templates.affine import Affine, Sym
from weft.templates.group import Group

Index = tuple[Affine, ...]
PURE = ("reshape", "transpose", "broadcast", "slice")


class View(NamedTuple):
    """A strided window on a materialised node: element (i0, i1, ...) of the viewed value is element
    offset + i0 * strides[0] + ... of `node`'s row-major storage."""

    node: Node
    offset: int
    strides: tuple[int, ...]


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


def operand_view(group: Group, node: Node) -> View | None:
    """How `node`, reached from one of the group's inputs by movement ops alone, lies in that
    input's storage: one stride (in elements) per axis of `node`. None when it is computed, or when
    the movement cannot be expressed by strides."""
    syms = [Sym(f"axis{i}", "var", max(d, 1)) for i, d in enumerate(node.shape)]
    index: Index = tuple(affine.symbol(s) for s in syms)
    materialised = {id(n) for n in group.inputs}
    while id(node) not in materialised:
        if node.op not in PURE:
            return None
        index = source_index(node, index)
        node = node.inputs[0]
    linear = affine.flatten(index, affine.contiguous(node.shape))
    if any(s.kind != "var" for s, _ in linear.terms):
        return None
    return View(node, linear.const, tuple(linear.coefficient(s) for s in syms))
