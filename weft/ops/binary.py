"""Elementwise primitives of two and three arguments: add sub mul div remainder floor_divide pow
maximum minimum less less_equal equal bitwise_and bitwise_or bitwise_xor shift_left shift_right
where.

Every rule is total. Integers wrap. Integer div truncates and floor_divide rounds down; by zero
both give 0, and so does remainder, which otherwise takes the sign of the divisor. A shift by a
count outside 0..bits-1 shifts everything out. Integer pow wraps, and a negative exponent gives
trunc(1 / x**|y|), with 0 for x = 0. Maximum and minimum give NaN when either side is NaN;
comparisons with NaN are false.

Lowering: as in unary.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError, ShapeError
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr
from weft.ops import functions as f
from weft.ops.functions import Value
from weft.ops.lazy import division, km
from weft.ops.primitive import Aval, Primitive, VjpRule, register
from weft.ops.rules import in_f32, same, want
from weft.ops.unary import in_int32

Lower = Callable[[Builder, Expr, Expr], Expr]


def _register(
    name: str, kinds: str, numpy: Any, lower: Lower, vjp: VjpRule | None = None, *,
    cost: int = 1, first: tuple[float, float] = (-2, 2), out: DType | None = None,
) -> None:  # fmt: skip
    def abstract(x: Aval, y: Aval) -> Aval:
        same(name, x, y)
        want(name, x, kinds)
        return Aval(x.shape, out or x.dtype)

    numpy, ranges = in_f32(numpy), (first, (0.5, 1.5))
    register(Primitive(name, "elementwise", abstract, numpy, lower, vjp, cost, ranges))


def _plain(op: str) -> Lower:
    return in_int32(lambda b, x, y: kb.binary(op, x, y))


# -- division -----------------------------------------------------------------------------------


def _safe_divisor(b: Builder, y: Expr) -> tuple[Expr, Expr, Expr | None]:
    """(divisor that never traps, y == 0, y == -1 or None): INT_MIN / -1 overflows on hardware."""
    zero = b.let(kb.eq(y, 0), "zero")
    unsafe, minus = zero, None
    if y.type.dtype.kind == "int":
        minus = b.let(kb.eq(y, -1), "minus")
        unsafe = kb.binary("or", zero, minus)
    return b.let(kb.select(unsafe, 1, y), "divisor"), zero, minus


def _div(b: Builder, x: Expr, y: Expr) -> Expr:
    if x.type.dtype.is_float:
        return kb.binary("div", x, y)
    x, y = b.let(x), b.let(y)
    divisor, zero, minus = _safe_divisor(b, y)
    out = kb.binary("div", x, divisor)
    if minus is not None:
        out = kb.select(minus, kb.binary("sub", kb.const(0, x.type), x), out)
    return kb.select(zero, 0, out)


def _np_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        ratio: np.ndarray = np.divide(x, y)
        return ratio
    quotient = np.floor_divide(x, np.where(y == 0, 1, y).astype(x.dtype))
    rest = x - quotient * y
    up = ((rest != 0) & ((x < 0) != (y < 0))).astype(x.dtype)
    return np.where(y == 0, 0, quotient + up).astype(x.dtype)


def _remainder(b: Builder, x: Expr, y: Expr) -> Expr:
    x, y = b.let(x), b.let(y)
    if x.type.dtype.is_float:
        return division.remainder(b, x, y)
    divisor, _, _ = _safe_divisor(b, y)
    rest = b.let(kb.binary("rem", x, divisor), "rest")
    if x.type.dtype.kind == "uint":
        return rest  # x % 1 is 0 where the divisor was 0
    flip = kb.binary("lt", kb.binary("xor", rest, divisor), 0)
    return kb.select(kb.binary("and", kb.ne(rest, 0), flip), kb.binary("add", rest, divisor), rest)


def _floor_divide(b: Builder, x: Expr, y: Expr) -> Expr:
    x, y = b.let(x), b.let(y)
    if x.type.dtype.is_float:
        return division.floor_divide(b, x, y)
    if x.type.dtype.kind == "uint":
        return _div(b, x, y)
    divisor, _, _ = _safe_divisor(b, y)  # 1 where the remainder is 0: there is no rounding down
    rest = b.let(kb.binary("rem", x, divisor), "rest")
    below = kb.binary("and", kb.ne(rest, 0), kb.binary("lt", kb.binary("xor", rest, y), 0))
    return kb.binary("sub", _div(b, x, y), kb.cast(below, x.type.dtype))


def _np_remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        unsafe = (y == 0) | ((y == -1) if x.dtype.kind == "i" else False)
        y = np.where(unsafe, 1, y).astype(x.dtype)
    rest: np.ndarray = np.remainder(x, y)
    return rest


def _np_floor_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Computes f32 quotients in float64.

    x less its exact remainder is a multiple of y, whose quotient float64 misses by less than a
    half, up to 2**49. Beyond that the floor is far below the precision of f32.
    """
    if x.dtype == np.float32:
        a, c = x.astype(np.float64), y.astype(np.float64)
        exact = np.rint((a - np.remainder(a, c)) / c)
        plain = np.floor_divide(a, c)  # right for zeros, infinities and NaN
        return np.where(np.isfinite(exact) & (exact != 0), exact, plain).astype(x.dtype)
    if x.dtype.kind == "f":
        floor: np.ndarray = np.floor_divide(x, y)
        return floor
    minus = (y == -1) if x.dtype.kind == "i" else np.zeros(y.shape, bool)
    out = np.floor_divide(x, np.where((y == 0) | minus, 1, y).astype(x.dtype))
    return np.where(y == 0, 0, np.where(minus, np.negative(x), out)).astype(x.dtype)


# -- powers -------------------------------------------------------------------------------------


def _pow(b: Builder, x: Expr, y: Expr) -> Expr:
    if x.type.dtype.is_float:
        return km.pow_(b, x, y)
    x, y = b.let(x), b.let(y)
    signed = x.type.dtype.kind == "int"
    count = b.let(kb.cast(kb.unary("abs", y) if signed else y, dt.uint32), "count")
    out, base = b.let(kb.const(1, x.type)), x
    for bit in range(32):  # square and multiply, wrapping
        odd = kb.ne(kb.binary("and", kb.binary("shr", count, bit), 1), 0)
        out = b.let(kb.select(odd, kb.binary("mul", out, base), out), "power")
        base = b.let(kb.binary("mul", base, base), "base") if bit < 31 else base
    if not signed:
        return out
    unit = kb.binary("or", kb.eq(x, 1), kb.eq(x, -1))
    return kb.select(kb.binary("lt", y, 0), kb.select(unit, out, 0), out)


def _np_pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        power: np.ndarray = np.power(x, y)
        return power
    bits = 8 * y.dtype.itemsize
    # holds for the least integer too, whose abs wraps
    count = np.abs(y).astype(f"u{y.dtype.itemsize}")
    out, base = np.ones_like(x), x.copy()
    for bit in range(bits):
        out = np.where((count >> bit) & 1 != 0, out * base, out)
        base = base * base
    return np.where((y < 0) & (x != 1) & (x + 1 != 0), 0, out).astype(x.dtype)


# -- order --------------------------------------------------------------------------------------


def _extreme(op: str) -> Lower:
    def lower(b: Builder, x: Expr, y: Expr) -> Expr:
        return getattr(km, f"nan_{op}")(b, x, y) if x.type.dtype.is_float else kb.binary(op, x, y)

    return in_int32(lower)


def _compare(op: str) -> Lower:
    def lower(b: Builder, x: Expr, y: Expr) -> Expr:
        if x.type.dtype == dt.bool_:  # `equal` alone takes bool
            return kb.not_(kb.binary("xor", x, y))
        if not x.type.dtype.is_float:
            return kb.binary(op, x, y)
        x, y = b.let(x), b.let(y)
        nan = kb.binary("or", km.isnan(b, x), km.isnan(b, y))
        return kb.binary("and", kb.binary(op, x, y), kb.not_(nan))

    return in_int32(lower)


# -- bits ---------------------------------------------------------------------------------------


def _shift(op: str) -> Lower:
    def lower(b: Builder, x: Expr, y: Expr, dtype: DType) -> Expr:
        x, y, width = b.let(x), b.let(y), dtype.itemsize * 8
        count = b.let(kb.cast(y, dt.uint32), "count")  # a negative count becomes a huge one
        inside = b.let(kb.binary("lt", count, width), "inside")
        safe = kb.cast(kb.select(inside, count, width - 1), x.type.dtype)
        shifted = b.let(kb.binary(op, x, safe), "shifted")
        if op == "shr" and dtype.kind == "int":
            return shifted  # width - 1 leaves the sign in every bit
        return kb.select(inside, shifted, 0)

    def by_dtype(b: Builder, x: Expr, y: Expr) -> Expr:
        dtype = x.type.dtype
        return in_int32(lambda b, x, y: lower(b, x, y, dtype))(b, x, y)

    return by_dtype


# -- derivatives (see VjpRule) -------------------------------------------------------------------


def _pow_vjp(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    def base() -> Value:
        slope = f.mul(y, f.pow_(x, f.sub(y, 1.0)))
        return f.mul(g, f.where(f.equal(y, 0), 0, slope))

    def exponent() -> Value:
        at_zero = f.bitwise_and(f.equal(x, 0), f.less_equal(f.full_like(y, 0), y))
        return f.where(at_zero, 0, f.mul(g, f.mul(out, f.log(f.where(at_zero, 1, x)))))

    return base, exponent


def _remainder_vjp(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    """x - floor(x / y) y: the floor is constant almost everywhere."""
    return g, lambda: f.neg(f.mul(g, f.floor_divide(x, y)))


def _floor_divide_vjp(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    return f.full_like(g, 0), f.full_like(g, 0)


def _unless(g: Value, loses: Value, ties: Value) -> Value:
    """The share of an operand of maximum or minimum; a NaN passes the gradient on."""
    return f.where(loses, 0, f.where(ties, f.mul(g, 0.5), g))


def _maximum_vjp(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    same = f.equal(x, y)
    return (lambda: _unless(g, f.less(x, y), same)), (lambda: _unless(g, f.less(y, x), same))


def _minimum_vjp(g: Value, out: Value, x: Value, y: Value) -> Sequence[Any]:
    same = f.equal(x, y)
    return (lambda: _unless(g, f.less(y, x), same)), (lambda: _unless(g, f.less(x, y), same))


# -- the records ----------------------------------------------------------------------------------

_register("add", "numeric", np.add, _plain("add"), lambda g, out, x, y: (g, g))
_register("sub", "numeric", np.subtract, _plain("sub"),
          lambda g, out, x, y: (g, lambda: f.neg(g)))  # fmt: skip
_register("mul", "numeric", np.multiply, _plain("mul"),
          lambda g, out, x, y: (lambda: f.mul(g, y), lambda: f.mul(g, x)))  # fmt: skip
_register("div", "numeric", _np_div, in_int32(_div),
          lambda g, out, x, y: (lambda: f.div(g, y), lambda: f.neg(f.mul(g, f.div(out, y)))),
          cost=4)  # fmt: skip
_register("remainder", "numeric", _np_remainder, in_int32(_remainder), _remainder_vjp, cost=40)
_register("floor_divide", "numeric", _np_floor_divide, in_int32(_floor_divide),
          _floor_divide_vjp, cost=40)  # fmt: skip
_register("pow", "numeric", _np_pow, in_int32(_pow), _pow_vjp, cost=16, first=(0.4, 3))
_register("maximum", "numeric", np.maximum, _extreme("max"), _maximum_vjp)
_register("minimum", "numeric", np.minimum, _extreme("min"), _minimum_vjp)
_register("less", "numeric", np.less, _compare("lt"), out=dt.bool_)
_register("less_equal", "numeric", np.less_equal, _compare("le"), out=dt.bool_)
_register("equal", "any", np.equal, _compare("eq"), out=dt.bool_)
_register("bitwise_and", "bits", np.bitwise_and, _plain("and"))
_register("bitwise_or", "bits", np.bitwise_or, _plain("or"))
_register("bitwise_xor", "bits", np.bitwise_xor, _plain("xor"))
_register("shift_left", "integer", np.left_shift, _shift("shl"))
_register("shift_right", "integer", np.right_shift, _shift("shr"))


# -- where --------------------------------------------------------------------------------------


def _where_abstract(cond: Aval, a: Aval, b: Aval) -> Aval:
    same("where", a, b)
    if cond.dtype != dt.bool_:
        raise DTypeError(f"where: the condition is {cond.dtype.name}, expected bool; compare first")
    if cond.shape != a.shape:
        raise ShapeError(
            f"where: condition {list(cond.shape)} and values {list(a.shape)} differ; broadcast"
        )
    return a


def _where_vjp(g: Value, out: Value, cond: Value, a: Value, b: Value) -> Sequence[Any]:
    return None, (lambda: f.where(cond, g, 0)), (lambda: f.where(cond, 0, g))


register(
    Primitive(
        "where", "elementwise", _where_abstract, np.where, lambda b, c, x, y: kb.select(c, x, y),
        _where_vjp, cost=1,
    )
)  # fmt: skip
