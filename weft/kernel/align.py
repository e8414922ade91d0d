"""Alignment of accesses: the power of two known to divide each load's and store's index, on which
wide accesses rely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.walk import children, operands

TOP = 1 << 20  # "divisible by everything that matters"


def alignment(expr: ir.Expr, known: Mapping[str, int]) -> int:
    """A power of two that divides a scalar int32 expression; `known` maps variables to theirs."""
    if isinstance(expr, ir.Const):
        value = abs(int(expr.value))
        return min(value & -value, TOP) if value else TOP
    if isinstance(expr, ir.Var):
        return known.get(expr.name, 1)
    if isinstance(expr, ir.Select):
        return min(alignment(expr.a, known), alignment(expr.b, known))
    if not isinstance(expr, ir.Binary):
        return 1
    a, b = alignment(expr.a, known), alignment(expr.b, known)
    if expr.op == "mul":
        return min(a * b, TOP)
    if expr.op in ("add", "sub", "min", "max", "or", "xor", "rem"):
        return min(a, b)
    if expr.op == "and":
        return max(a, b)
    if isinstance(expr.b, ir.Const):
        c = int(expr.b.value)
        if expr.op == "shl" and 0 <= c < 21:
            return min(a << c, TOP)
        if expr.op == "div" and c > 0 and c & (c - 1) == 0 and a % c == 0:
            return a // c
    return 1


@dataclass(frozen=True)
class Access:
    """One load or store (of a tile: its rows): how many elements, at an index divisible by what."""

    node: ir.Load | ir.Store | ir.TileOp
    lanes: int
    aligned: int  # 1 where the lanes go separate ways (gather, per-lane mask of a store)


def lanes_uniform(mask: ir.Expr | None) -> bool:
    """True if a mask is the same in every lane (one condition for the whole access)."""
    if mask is None or mask.type.lanes == 1:
        return True
    return isinstance(mask, ir.Const) or (isinstance(mask, ir.Vec) and mask.op == "splat")


def accesses(kernel: ir.Kernel) -> Iterator[Access]:
    """Every load and store of the kernel, also of tiles, with its provable alignment."""
    yield from _in_stmt(kernel.body, {})


def _in_stmt(stmt: ir.Stmt, known: dict[str, int]) -> Iterator[Access]:
    if isinstance(stmt, ir.For):
        known[stmt.var.name] = min(alignment(stmt.start, known), stmt.step & -stmt.step)
    for child in children(stmt):
        if isinstance(child, ir.Expr):
            yield from _in_expr(child, known)
        else:
            yield from _in_stmt(child, known)
    if isinstance(stmt, ir.Let) and not stmt.mutable and stmt.var.type == ir.I32:
        known[stmt.var.name] = alignment(stmt.value, known)
    if isinstance(stmt, ir.Store):
        lanes = max(stmt.value.type.lanes, stmt.index.type.lanes)
        together = stmt.index.type.lanes == 1 and lanes_uniform(stmt.mask)
        yield Access(stmt, lanes, alignment(stmt.index, known) if together else 1)
    if isinstance(stmt, ir.TileOp) and stmt.index is not None:
        rows = alignment(ir.Const(stmt.stride, ir.I32), known)
        yield Access(stmt, stmt.tiles[0].cols, min(alignment(stmt.index, known), rows))


def _in_expr(expr: ir.Expr, known: dict[str, int]) -> Iterator[Access]:
    if isinstance(expr, ir.Load):
        scalar = expr.index.type.lanes == 1
        yield Access(expr, expr.type.lanes, alignment(expr.index, known) if scalar else 1)
    for child in operands(expr):
        yield from _in_expr(child, known)
