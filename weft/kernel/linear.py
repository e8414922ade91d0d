"""The arithmetic of addresses: int32 additions and products that lead to an index or a loop's
bounds.

Targets may assume that it does not overflow, and may use wider integers for it.
"""

from __future__ import annotations

from weft.kernel import ir
from weft.kernel.ir import Expr
from weft.kernel.walk import walk

_LINEAR = ("add", "sub", "mul", "shl")
_INDEXED = (ir.Load, ir.Store, ir.Prefetch, ir.TileOp)
_ASSIGNING = (ir.Let, ir.Assign)


def is_linear(x: Expr) -> bool:
    """Scalar int32 arithmetic that an address may be widened through."""
    return isinstance(x, ir.Binary) and x.op in _LINEAR and x.type == ir.I32


def address_vars(body: ir.Block) -> set[str]:
    """The Vars whose values go into addresses through additions and products alone: their
    arithmetic may be taken not to overflow."""
    lets: list[tuple[str, Expr]] = []
    found: set[str] = set()

    def note(x: Expr) -> None:
        if isinstance(x, ir.Var) and x.type == ir.I32:
            found.add(x.name)
        elif isinstance(x, ir.Binary) and is_linear(x):
            note(x.a)
            note(x.b)

    for node in walk(body):
        if isinstance(node, _INDEXED) and node.index:
            note(node.index)
        elif isinstance(node, _ASSIGNING):
            lets.append((node.var.name, node.value))
        elif isinstance(node, ir.For):
            lets.extend([(node.var.name, node.start), (node.var.name, node.stop)])
    for name, value in reversed(lets):
        if name in found:
            note(value)
    return found
