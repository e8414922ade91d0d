"""Nodes that follow an anchor in its group, and the places of its elements in the outputs."""

from __future__ import annotations

from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel.ir import Expr
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.view import Index
from weft.transform.rebuild import kind_of


def forward_index(group: Group, anchor: Node, node: Node, index: Index) -> Index | None:
    """Returns the index in `node` of the element of `anchor` at `index`. `node` follows from it by
    elementwise ops, transposes and reshapes; otherwise the result is None."""
    if node is anchor:
        return index
    if any(node is n for n in group.inputs) or node.op in ("broadcast", "slice", "pad", "concat"):
        return None
    for x in node.inputs:
        inner = forward_index(group, anchor, x, index)
        if inner is None:
            continue
        if node.op == "transpose":
            return tuple(inner[p] for p in node.attrs["perm"])
        if node.op == "reshape":
            return affine.reshape_index(inner, x.shape, node.shape)
        return inner
    return None


def store_all(em: Emitter, anchor: Node, index: Index, value: Expr, mask: Expr | None) -> None:
    """Writes every output of the group, given the anchor's value at `index`; in a group around a
    call with several outputs, the one that is `anchor`.

    Raises CompileError where an output is not elementwise, transposed or reshaped of the anchor.
    """
    em.define(anchor, lambda _: value)
    several = any(out.op == "result" for out in em.group.outputs)
    with em.masked(mask):
        for out in (anchor,) if several else em.group.outputs:
            at = forward_index(em.group, anchor, out, index)
            if at is None:
                raise CompileError(f"{out!r} does not follow from {anchor!r} element by element")
            em.store(out, at)


def find_call(group: Group) -> Node:
    """The composite that the group computes. Raises CompileError where there is none."""
    call = next((n for n in group.inside() if kind_of(n) == "call"), None)
    if call is None:
        raise CompileError(f"a {group.kind} group without a composite")
    return call
