"""Exact remainders and floored quotients of f32 in Kernel IR: any lane count, every target.

With |x| = X 2^e and |y| = Y 2^f, X and Y integers of 24 bits, |x| mod |y| is (X 2^(e - f) mod Y)
2^f. Long division in base 2^20 finds it. Each digit is estimated in f32 and may be off by one; the
remainder is exact in wrapping int32. So neither the target's division nor its Fma has to round
well, and no compiler can cancel anything. Quotients below 2^20 take one step; the largest (2^277)
takes 14. Subnormals keep their value, even where a target's arithmetic flushes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.core import dtypes as dt
from weft.kernel import expr as k
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr

_INF, _MAGNITUDE, _SIGN = 0x7F800000, 0x7FFFFFFF, -0x80000000
_NAN = 0x7FC00000
_DIGIT = 20  # bits of the quotient per step: such an estimate is off by one at most
_WHOLE = 30  # quotients below 2^30 are computed as integers


def remainder(b: Builder, x: Expr, y: Expr) -> Expr:
    """x - floor(x / y) y, rounded once (it is exact where x and y have one sign); its sign is y's,
    also of a zero. NaN for an infinite x or a zero y; x mod inf is x, or inf where the signs differ
    (Python's and NumPy's meaning of %). x and y are bound."""
    c = _Operands.of(b, x, y)
    rest, _ = _long_division(b, c)
    near = c.distance < 0
    size = b.let(k.select(near, c.x, _scaled(b, rest, c.exponent)), "size")
    other = k.bitcast(_float(c.y) - _float(size), dt.int32)
    turned = (c.sign < 0) & k.ne(size, 0)
    undefined = _endless(c.x) | _is_nan(c.y) | c.zero
    return _signed(k.select(turned, other, size), undefined, c.divisor)


def floor_divide(b: Builder, x: Expr, y: Expr) -> Expr:
    """Computes floor(x / y), rounded once (from 2^29 on, as accurate as the target's division).

    Follows NumPy's //: NaN for an infinite x (unless y is 0) and for 0 / 0; infinite for other zero
    divisors. A zero has the sign of x / y. Both x and y are bound.
    """
    c = _Operands.of(b, x, y)
    rest, quotient = _long_division(b, c)
    near = b.let(c.distance < 0, "near")
    inexact = k.ne(k.select(near, c.x, rest), 0)
    below = (c.sign < 0) & inexact
    whole = b.let(k.select(near, 0, quotient) + k.cast(below, dt.int32), "whole")
    size = k.bitcast(k.cast(whole, dt.float32), dt.int32)
    size = k.select(c.distance < _WHOLE, size, _ratio(b, c, whole))
    nothing = k.select(c.zero, k.eq(c.x, 0), _endless(c.x))
    undefined = _is_nan(c.x) | _is_nan(c.y) | nothing
    return _signed(k.select(c.zero, _INF, size), undefined, c.sign)


@dataclass(frozen=True)
class _Operands:
    """The parts of x and y; every field is bound.

    `x`, `y`: the bits of |x| and |y| (int32).
    `divisor`: the bits of y.
    `sign`: the exclusive or of the bits of x and y.
    `zero`: true where y is 0.
    `distance`: e - f (-1 where there is nothing to divide).
    `exponent`: f + 150.
    `left`, `right`: X and Y.
    """

    x: Expr
    y: Expr
    divisor: Expr
    sign: Expr
    zero: Expr
    distance: Expr
    exponent: Expr
    left: Expr
    right: Expr

    @staticmethod
    def of(b: Builder, x: Expr, y: Expr) -> _Operands:
        bx, by = b.let(k.bitcast(x, dt.int32), "bits"), b.let(k.bitcast(y, dt.int32), "bits")
        sign = b.let(bx ^ by, "sign")
        ax = b.let(bx & _MAGNITUDE, "size")
        ay = b.let(by & _MAGNITUDE, "size")
        zero = b.let(k.eq(ay, 0), "zero")
        (e, left), (f, right) = _parts(b, ax), _parts(b, ay)
        idle = _endless(ax) | _is_nan(ay) | zero
        distance = b.let(k.select(idle, -1, e - f), "distance")
        return _Operands(ax, ay, by, sign, zero, distance, f, left, right)


def _is_nan(size: Expr) -> Expr:
    """True where the bits of a magnitude encode a NaN."""
    return size > _INF


def _endless(size: Expr) -> Expr:
    """True where the bits of a magnitude encode an infinity or a NaN."""
    return size >= _INF


def _float(bits: Expr) -> Expr:
    return k.bitcast(bits, dt.float32)


def _power(exponent: Expr) -> Expr:
    """2^exponent, for -126..127."""
    return _float((exponent + 127) << 23)


def _parts(b: Builder, bits: Expr) -> tuple[Expr, Expr]:
    """(e, X) of the magnitude with these bits: X 2^(e - 150), X in [2^23, 2^24). A subnormal is its
    bits times 2^-149; converted, they are a normal float."""
    raised = k.bitcast(k.cast(bits, dt.float32), dt.int32)
    wide = b.let(k.select(bits < 1 << 23, raised - (149 << 23), bits), "wide")
    significand = (wide & 0x7FFFFF) | 0x800000
    return b.let(wide >> 23, "e"), b.let(significand, "significand")


def _long_division(b: Builder, c: _Operands) -> tuple[Expr, Expr]:
    """(X 2^distance mod Y, the quotient modulo 2^32), bound; neither means anything where the
    distance is negative. As many steps as the largest of the lanes needs."""
    inverse = b.let(1.0 / k.cast(c.right, dt.float32), "inverse")
    reaches = b.let(c.right <= c.left, "reaches")
    rest = b.var(k.select(reaches, c.left - c.right, c.left), "rest")
    quotient = b.var(k.cast(reaches, dt.int32), "quotient")
    steps = (_largest(b, c.distance) + (_DIGIT - 1)) / _DIGIT
    with b.loop(steps, name="step") as i:
        bits = b.let(k.minimum(k.maximum(c.distance - i * _DIGIT, 0), _DIGIT), "bits")
        guess = k.cast(rest, dt.float32) * inverse
        digit = b.let(k.cast(guess * _power(bits), dt.int32), "digit")
        left = b.let((rest << bits) - digit * c.right, "left")
        less, more = b.let(left < 0, "less"), b.let(c.right <= left, "more")
        down = k.select(more, left - c.right, left)
        b.assign(rest, k.select(less, left + c.right, down))
        off = k.cast(more, dt.int32) - k.cast(less, dt.int32)
        b.assign(quotient, (quotient << bits) + (digit + off))
    return b.let(rest, "rest"), b.let(quotient, "quotient")


def _largest(b: Builder, x: Expr) -> Expr:
    """The largest lane of x."""
    while x.type.lanes > 1:
        x, half = b.let(x, "x"), x.type.lanes // 2
        parts: tuple[Expr, Expr] = (k.extract(x, 0), k.extract(x, 1))
        if half > 1:
            parts = k.shuffle(range(half), x), k.shuffle(range(half, 2 * half), x)
        x = k.maximum(*parts)
    return x


def _scaled(b: Builder, n: Expr, exponent: Expr) -> Expr:
    """The bits of n 2^(exponent - 150), which is exact, for 0 <= n < 2^24 (bound)."""
    raised = b.let(k.bitcast(k.cast(n, dt.float32), dt.int32), "raised")
    shift = b.let(exponent - 150, "shift")
    normal = raised + (shift << 23)
    up = k.minimum(k.maximum(shift + 149, 0), 23)
    down = k.minimum(k.maximum(-149 - shift, 0), 31)
    subnormal = n << up >> down
    small = (raised >> 23) + shift < 1
    return k.select(small | k.eq(n, 0), subnormal, normal)


def _ratio(b: Builder, c: _Operands, whole: Expr) -> Expr:
    """Returns the bits of |x| / |y| where that is at least 2^29, or infinity beyond the largest
    float.

    `whole`, the integer quotient modulo 2^32, decides ties. If it lies midway between two floats,
    the exact |x| / |y| is close to the midpoint, and the even float is the result.
    """
    ratio = k.cast(c.left, dt.float32) / k.cast(c.right, dt.float32)
    parts = b.let(k.bitcast(ratio, dt.int32), "parts")
    fits = (parts >> 23) + c.distance < 255
    bits = b.let(parts + (c.distance << 23), "ratio")
    unit = b.let((bits >> 23) - 150, "unit")  # bits mean n 2^unit
    near = b.let(k.minimum(k.maximum(unit, 1), 31), "near")
    significand = (bits & 0x7FFFFF) | 0x800000
    away = b.let(whole - (significand << near), "away")
    half = k.const(1, near.type) << (near - 1)
    tie = k.eq(k.unary("abs", away), half) & k.eq(unit, near)
    odd = k.ne(bits & 1, 0)
    step = k.select(away < 0, k.const(-1, unit.type), 1)
    even = k.select(tie & odd, bits + step, bits)
    return k.select(fits, even, _INF)


def _signed(size: Expr, undefined: Expr, sign: Expr) -> Expr:
    """Returns the float with the given magnitude and sign bits, or NaN."""
    bits = size | (sign & _SIGN)
    return _float(k.select(undefined, _NAN, bits))


__all__ = ["floor_divide", "remainder"]
