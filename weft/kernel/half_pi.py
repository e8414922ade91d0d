"""Reduces an f32 modulo pi/2, for the sine and cosine of any argument.

Near zero it follows Cody and Waite ("Software Manual for the Elementary Functions", 1980): the
quotient times short parts of pi/2, each product exact. Beyond that it follows Payne and Hanek
("Radian reduction for trigonometric functions", 1983), in integers alone. It multiplies only the 96
bits of 2/pi that reach the quotient's last two bits and its fraction. Vectors without such a lane
skip it.
"""

from __future__ import annotations

import itertools

from weft.core import dtypes as dt
from weft.kernel import expr as k
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr

_LIMIT_BITS = 0x45C90800  # 6433.0: below, the quotient has 12 bits
# pi/2 in parts of 12, 12, 12 and 24 bits: the quotient times one of the first three is exact
_PARTS = (1.57080078125, -4.453584551811218e-06, -8.706138032721356e-10, 6.223371969669989e-14)
_HALF_PI, _TWO_OVER_PI = 1.5707963267948966, 0.6366197723675814
# A word of zeros, then the first 224 bits of 2/pi after its point.
_BITS = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)


def reduce_half_pi(b: Builder, x: Expr) -> tuple[Expr, Expr]:
    """Returns (quadrant, r) for a bound f32 x.

    Here |x| = n pi/2 + r with |r| <= pi/4, r within 2 ulp; the two low bits of the int32 `quadrant`
    are those of n. r is NaN where x is not finite. Both are bound, and the sine and the cosine of
    one x share them.
    """
    return b.once((reduce_half_pi, x), lambda: _reduce(b, x))


def _reduce(b: Builder, x: Expr) -> tuple[Expr, Expr]:
    a = b.let(k.unary("abs", x), "a")
    q = b.let(k.unary("rint", a * _TWO_OVER_PI), "q")
    r = a
    for part in _PARTS:
        r = k.unary("keep", k.fma(q, -part, r))
    near = k.bitcast(q + 8388608.0, dt.int32)  # 2^23: q's low bits are the sum's
    quadrant, rest = b.var(near, "quadrant"), b.var(r, "r")
    bits = b.let(k.bitcast(a, dt.uint32), "bits")
    beyond = b.let(bits >= _LIMIT_BITS, "beyond")
    with b.when(k.any_(beyond)):
        n, far = _far(b, bits)
        b.assign(quadrant, k.select(beyond, n, quadrant))
        b.assign(rest, k.select(beyond, far, rest))
    return b.let(quadrant, "n"), b.let(rest, "rest")


def _far(b: Builder, bits: Expr) -> tuple[Expr, Expr]:
    """The same two of the f32 with these bits, which is at least 2."""
    digits = b.let((bits & 0x7FFFFF) | 0x800000, "digits")
    high, middle, low = _window(b, b.let((bits >> 23) - 120, "first"))
    # digits * window mod 2^96 in units of 2^-62: n's two bits, then the fraction.
    carried = b.let(_multiply_high(b, digits, low), "carried")
    middle_sum = b.let(digits * middle + carried, "middle")
    carry = k.select(middle_sum < carried, k.const(1, bits.type), 0)
    top = b.let(digits * high + _multiply_high(b, digits, middle) + carry, "top")
    n = k.bitcast((top + 0x20000000) >> 30, dt.int32)
    # The fraction's first word, read as int32, belongs to the nearest n.
    first = k.cast(k.bitcast((top << 2) | (middle_sum >> 30), dt.int32), dt.float32)
    second = k.cast(middle_sum << 2, dt.float32)
    r = k.fma(second, 2.0**-32, first) * (_HALF_PI * 2.0**-32)
    return n, k.select(bits < 0x7F800000, r, float("nan"))


def _window(b: Builder, first: Expr) -> list[Expr]:
    """Three words of _BITS from bit `first` (0..134 where it counts), each bound."""
    words: list[Expr] = [k.const(w, first.type) for w in _BITS]
    for step, count in ((4, 7), (2, 5), (1, 4)):  # word i becomes the one at i + first // 32
        further = b.let(k.ne(first & 32 * step, 0), "further")
        words = [
            b.let(k.select(further, words[i + step], words[i]), "word")
            if i + step < len(words)
            else words[i]
            for i in range(count)
        ]
    shift = b.let(first & 31, "shift")
    back = b.let(31 - shift, "back")
    pairs = itertools.pairwise(words)
    return [b.let((w << shift) | ((after >> 1) >> back), "bits") for w, after in pairs]


def _multiply_high(b: Builder, x: Expr, y: Expr) -> Expr:
    """The upper 32 bits of a product of two uint32 (both bound), from products of 16 bits."""
    xl, xh = b.let(x & 0xFFFF, "xl"), b.let(x >> 16, "xh")
    yl, yh = b.let(y & 0xFFFF, "yl"), b.let(y >> 16, "yh")
    cross = b.let(xh * yl + ((xl * yl) >> 16), "cross")
    other = xl * yh + (cross & 0xFFFF)
    return xh * yh + (cross >> 16) + (other >> 16)
