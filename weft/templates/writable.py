"""The abilities of templates, as the compiler asks for them before it joins groups."""

from __future__ import annotations

from weft.graph.ir import Node
from weft.templates.emit_special import emits
from weft.templates.group import Group
from weft.templates.product.then_norm import is_norm

PRODUCTS = ("matmul", "matvec")  # templates that compute several dots of one left operand


def stranger(group: Group) -> Node | None:
    """The first node inside the group that its kernel cannot compute; None where it can compute
    all: what the emitter writes, the anchor, further dots of a product, one norm after it."""
    norms = 0
    for node in group.inside():
        if node is group.anchor or node.op == "result" or emits(node):
            continue
        if node.op == "dot" and group.kind in PRODUCTS:
            continue
        norms += is_norm(node)
        if not is_norm(node) or group.kind != "matmul" or norms > 1:
            return node
    return None
