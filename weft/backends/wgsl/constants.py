"""Values that are known while a kernel is rendered, worked out as the interpreter would.

A compiler of WGSL evaluates expressions of constants itself and refuses the module where that
overflows, divides by zero, shifts too far or indexes outside, even in a branch never taken. So no
operation on constants is ever printed: what is known is folded here and printed as a literal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import ir, lanewise

Lanes = np.ndarray[Any, Any]  # the lanes of a value, in the NumPy dtype of its type
Known = Mapping[str, Lanes]  # variables with a single value at this place

INT_MIN = -(1 << 31)


def int_text(value: int) -> str:
    """A WGSL i32 of this value, wrapped into its range."""
    value = (value - INT_MIN) % (1 << 32) + INT_MIN
    if value == INT_MIN:
        return "i32(2147483648u)"
    return f"{value}i" if value >= 0 else f"({value}i)"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A WGSL scalar with exactly this value. Infinities and NaN are built from a module variable,
    because WGSL refuses them in constant expressions."""
    if dtype is dt.bool_:
        return "true" if value else "false"
    if dtype.kind == "int":
        return int_text(int(value))
    if dtype.kind == "uint":
        return f"{int(value) & 0xFFFFFFFF}u"
    with np.errstate(over="ignore"):
        single = np.asarray(value, dtype.numpy).astype(np.float32)
    if not np.isfinite(single):
        bits = 0x7FC00000 if math.isnan(single) else 0x7F800000 + (1 << 31) * int(single < 0)
        return f"bitcast<f32>({bits - 1:#x}u + w_one)"
    exact = int(single.view(np.uint32))
    if exact and not 1e-37 < abs(single) < 1e38:  # -0.0, and what compilers refuse near the ends
        return f"bitcast<f32>({exact:#x}u)"
    text = repr(float(str(single)))
    return f"{text}f" if single > 0 else f"({text}f)"


def fold(e: ir.Expr, known: Known) -> Lanes | None:
    """The lanes of an expression of constants and `known` variables, else None (what overflows or
    divides by zero warns, as NumPy is set)."""
    rule = _FOLD.get(type(e))
    return None if rule is None else rule(e, known)


def number(e: ir.Expr, known: Known) -> int | None:
    """The value of a scalar int32 or bool expression that can be folded, else None."""
    lanes = fold(e, known)
    return None if lanes is None else int(lanes[0])


def _const(e: ir.Const, known: Known) -> Lanes:
    return np.full(e.type.lanes, e.value).astype(e.type.dtype.numpy)


def _all(known: Known, *parts: ir.Expr) -> list[Lanes] | None:
    """The lanes of every part, or None when one is not known."""
    found = []
    for part in parts:
        lanes = fold(part, known)
        if lanes is None:
            return None
        found.append(lanes)
    return found


def _lanewise(
    fn: Callable[..., Lanes], fields: tuple[str, ...], e: ir.Expr, known: Known
) -> Lanes | None:
    parts = _all(known, *(getattr(e, f) for f in fields))
    return None if parts is None else fn(e, *parts)


def _select(e: ir.Select, known: Known) -> Lanes | None:
    """Folds a select; the side that is not chosen may be unknown."""
    cond = fold(e.cond, known)
    if cond is None or cond.all():
        return None if cond is None else fold(e.a, known)
    if not cond.any():
        return fold(e.b, known)
    sides = _all(known, e.a, e.b)
    return None if sides is None else np.where(cond, *sides)


def _vec(e: ir.Vec, known: Known) -> Lanes | None:
    if e.op == "iota":
        return np.arange(e.type.lanes, dtype=e.type.dtype.numpy)
    parts = _all(known, *e.args)
    if parts is None:
        return None
    whole = np.concatenate(parts)
    if e.op == "splat":
        return np.repeat(whole, e.type.lanes)
    if e.op == "any":
        some: Lanes = np.any(whole, keepdims=True)
        return some
    return whole if e.op == "pack" else whole[list(e.lanes)]


def _lanes_of(fn: Callable[..., Lanes], *fields: str) -> Callable[..., Lanes | None]:
    return functools.partial(_lanewise, fn, fields)


_FOLD: dict[type, Callable[..., Lanes | None]] = {
    ir.Const: _const,
    ir.Var: lambda e, known: known.get(e.name),
    ir.Unary: _lanes_of(lambda e, x: lanewise.UNARY[e.op](x), "x"),
    ir.Binary: _lanes_of(lambda e, a, b: lanewise.BINARY[e.op](a, b), "a", "b"),
    ir.Fma: _lanes_of(lambda e, a, b, c: lanewise.fma(a, b, c), "a", "b", "c"),
    ir.Cast: _lanes_of(lambda e, x: lanewise.cast(x, e.type.dtype), "x"),
    ir.Bitcast: _lanes_of(lambda e, x: x.view(e.type.dtype.numpy), "x"),
    ir.Select: _select,
    ir.Vec: _vec,
}
