"""A layer or rms norm that ends a product's kernel, whose groups then own whole rows.

Such a group finishes its rows (sums, epilogue, stores for other readers) and keeps them. It
normalises them from there with the norm template's own code, so the bits are those of a separate
norm kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.core.caps import Caps
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.kernel import ir
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group, reached
from weft.templates.rows.rows import GroupRows
from weft.transform.rebuild import kind_of

NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class NormHalves:
    """The two halves of a group with a norm. `before` are the outputs of the product's half (empty
    where only the norm reads it), and `value` is the norm's operand. `group` is the norm with its
    epilogue, as the norm template takes it."""

    before: tuple[Node, ...]
    value: Node
    group: Group


def normalised(call: Node) -> Node:
    """Returns the operand of a norm, without reshapes and casts on the way."""
    x = call.inputs[0]
    while x.op in ("reshape", "cast"):
        x = x.inputs[0]
    return x


def is_norm(node: Node) -> bool:
    """True if a product's kernel can end with the node."""
    return kind_of(node) == "call" and node.attrs["name"] in NORMS


def following(group: Group) -> NormHalves | None:
    """The norm that a matmul group ends with, or None."""
    stop = {id(n) for n in group.inputs}
    call = next((n for n in group.inside() if is_norm(n)), None)
    if call is None:
        return None
    value = normalised(call)
    late = tuple(o for o in group.outputs if any(n is call for n in reached((o,), stop)))
    before = tuple(o for o in group.outputs if o not in late)
    read = {id(n) for n in reached(late, stop | {id(value)})}
    inputs = tuple(n for n in group.inputs if id(n) in read)
    norm = replace(group, kind="norm", inputs=inputs, outputs=late, anchor=call)
    return NormHalves(before, value, norm)


class NormRows(GroupRows):
    """The norm's rows inside the product's kernel."""

    def __init__(self, norm: NormHalves, caps: Caps, em: Emitter) -> None:
        super().__init__(norm.group, caps, em)
        self.value = norm.value

    def normalise(self, row: Affine, kept: Callable[[Affine], ir.Expr]) -> None:
        """Emits one row (counted over all leading axes), whose element j is kept(j)."""
        self.em.define(self.value, lambda index: kept(index[-1]))
        self.run(row)

    def array(self, cheap: bool) -> ir.Array | None:
        """None: the rows are kept already."""
        return None
