"""Nodes made from others, and small questions about them, for passes that rewrite kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.core import dtypes as dt
from weft.kernel import expr as kb, ir
from weft.kernel.ir import U32, Expr, Type
from weft.kernel.ranges import INT32
from weft.kernel.walk import child_fields, children


def rebuilt(e: Any, parts: list[Expr]) -> Expr:
    """The expression over other children."""
    old = children(e)
    made: Expr = e
    if all(a is b for a, b in zip(old, parts)):
        return made
    if isinstance(e, ir.Vec | ir.Collective):
        made = replace(e, args=tuple(parts))
        return made
    kind: Any = type(e)
    names = child_fields(kind)
    made = replace(e, **dict(zip([n for n in names if getattr(e, n) is not None], parts)))
    return made


def copied(e: Any, parts: list[Expr]) -> Expr:
    """The expression over other children, an object of its own: the text may be written twice."""
    made: Any = rebuilt(e, parts)
    if made is e and not isinstance(e, ATOMS):
        made = replace(made)
    found: Expr = made
    return found


ATOMS = (ir.Const, ir.Param, ir.Var, ir.Axis)  # they may stand in several places


def unsigned(e: Any) -> Expr:
    """An int32 sum, product or shift computed in uint32, which every target lets wrap."""
    a, b = kb.bitcast(e.a, dt.uint32), kb.bitcast(e.b, dt.uint32)
    return ir.Bitcast(ir.Binary(e.op, a, b, U32), e.type)


def within(at: Expr, top: int) -> Expr:
    """Returns an expression that is true in each lane where 0 <= at <= top."""
    low: Expr = at >= 0
    return low if top >= INT32[1] else low & (at <= top)


def lanes_within(at: Expr, lanes: int, size: int) -> Expr:
    """Returns an expression that is true in each lane where at + lane is below `size`, without
    overflow."""
    if lanes == 1:
        return within(at, size - 1)
    last = kb.const(min(size - 1, INT32[1]), Type(dt.int32, lanes))
    low = kb.splat(at, lanes) >= -kb.iota(lanes)
    return low & (kb.splat(at, lanes) <= last - kb.iota(lanes))


def zero(type_: Type) -> float | int | bool:
    return False if type_.dtype == dt.bool_ else 0 if type_.dtype.is_int else 0.0


def reads(e: Expr, var: ir.Var) -> bool:
    return isinstance(e, ir.Var) and e.name == var.name


def no_more(e: Expr, name: str) -> bool:
    """True if an expression cannot exceed the variable that it is assigned to."""
    if isinstance(e, ir.Binary) and e.op == "min":
        return no_more(e.a, name) or no_more(e.b, name)
    if isinstance(e, ir.Select):
        return no_more(e.a, name) and no_more(e.b, name)
    return isinstance(e, ir.Var) and e.name == name
