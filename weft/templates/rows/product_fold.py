"""The product of many numbers as a fold, of which no part leaves the range of floats."""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr
from weft.templates.rows.folds import Fold, State, accumulator

_INF_BITS, _ONE_BITS = 0x7F800000, 0x3F800000
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 * 2^23: adding it leaves an integer below


def prod_fold(dtype: DType) -> Fold:
    """Returns the fold for a product of values of a compute dtype. A product of floats is kept as a
    mantissa of 1 to 2 and an exponent. A part then overflows or vanishes only if the whole does.
    The exponent is f32, since an unlimited sum must not wrap."""
    acc = accumulator(dtype)
    if acc.is_float:
        parts = (acc, acc)
        return Fold("prod", parts, (1.0, 0.0), _halves, _scaled_product, _rejoined, _product)
    return Fold(
        "prod", (acc,), (1,),
        lambda b, x, i: (kb.cast(x, acc),),
        lambda b, s, t: (s[0] * t[0],),
        lambda b, s: kb.cast(s[0], dtype),
    )  # fmt: skip


def _halves(b: Builder, x: Expr, i: Expr | None) -> State:
    """x as mantissa and exponent; zeros, infinities and NaN are mantissas."""
    small = b.let(kb.unary("abs", x) < 2.0**-126, "small")
    mantissa, exponent = _normal(b, kb.select(small, x * 2.0**64, x))
    return (mantissa, kb.select(small & kb.ne(exponent, 0.0), exponent - 64.0, exponent))


def _normal(b: Builder, x: Expr) -> State:
    """x as a mantissa of 1 to 2 and an exponent; itself and 0 where it has none."""
    bits = b.let(kb.bitcast(x, dt.int32), "bits")
    field = b.let(bits & _INF_BITS, "field")
    plain = kb.ne(field, 0) & kb.ne(field, _INF_BITS)
    shift = b.let(kb.select(plain, field - _ONE_BITS, 0), "shift")
    return (kb.bitcast(bits - shift, dt.float32), b.let(kb.cast(shift >> 23, dt.float32), "e"))


def _product(b: Builder, s: State, t: State) -> State:
    return (s[0] * t[0], s[1] + t[1])


def _scaled_product(b: Builder, s: State, t: State) -> State:
    product, exponent = _product(b, s, t)
    mantissa, more = _normal(b, product)
    return (mantissa, exponent + more)


def _rejoined(b: Builder, s: State) -> Expr:
    """Returns the mantissa times 2^exponent, in two factors, as one may be out of range. A
    vanishing result is multiplied by zero: underflow would take a CPU a hundred times as long."""
    bounded = kb.minimum(kb.maximum(s[1], -252.0), 252.0)
    exponent = b.let(kb.bitcast(bounded + MAGIC, dt.int32) - MAGIC_BITS, "exponent")
    half = b.let(exponent >> 1, "half")
    first, second = (kb.bitcast((e + 127) << 23, dt.float32) for e in (half, exponent - half))
    scaled = b.let(s[0] * first, "scaled")
    vanishes = (exponent < -200) & (kb.unary("abs", scaled) < float("inf"))
    return scaled * kb.select(vanishes, 0.0, second)
