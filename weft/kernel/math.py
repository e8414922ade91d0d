"""f32 functions expanded in Kernel IR: branch-free, any lane count, the same on every target.

Each function takes the Builder and an f32 expression, binds what it uses twice, and returns an f32
expression of the same lanes (use it once, or bind it). NaN is tested on bits, never by comparison.
Polynomials were fitted for weft by reweighted least squares at Chebyshev nodes (Lawson's method);
the range reductions are Cody and Waite's ("Software Manual for the Elementary Functions", 1980).
The error bounds below hold where Fma rounds once; they were measured against NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.kernel import expr as k
from weft.kernel.builder import Builder
from weft.kernel.expr import Value
from weft.kernel.half_pi import reduce_half_pi
from weft.kernel.ir import Expr

INF, NAN = float("inf"), float("nan")
_INF_BITS, _ABS_MASK, _SIGN_BIT = 0x7F800000, 0x7FFFFFFF, -0x80000000
_LOG2E, _LN2_HI, _LN2_LO = 1.4426950408889634, 0.693359375, -2.1219444005471377e-4
_MAGIC = 12582912.0  # 1.5 * 2^23: adding it leaves an integer in the low bits of the sum
_MAGIC_BITS = 0x4B400000

# (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, relative error of exp 3e-9
_EXP = (0.499999934, 0.1666651997, 0.0416683958, 0.0083687969, 0.0013814431)
# (2^r - 1) / r on |r| <= 1 / 2, relative error of 2^r 3e-6
_EXP2 = (0.6931242, 0.24024099, 0.05590643, 0.00958285)
# (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) - 1 <= f <= sqrt(2) - 1, relative error 8e-10
_LOG = (
    0.3333331254, -0.2500000946, 0.2000212372, -0.1666800837, 0.1421945105,
    -0.1240527941, 0.1188864554, -0.1167787653, 0.0674830864,
)  # fmt: skip
_SIN = (-0.1666665493, 0.0083321775, -0.0001951721)  # (sin(x)/x - 1) / x^2, |x| <= pi/4
_COS = (4.1666646851e-02, -1.3887366711e-03, 2.4438356172e-05)  # (cos(x) - 1 + x^2/2) / x^4
# tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9.01, relative error 2e-8
_TANH_P = (1.0, 0.13380337391359567, 3.49477006453875e-3, 2.059559529348989e-5, 1.33359178557e-8)
_TANH_Q = (1.0, 0.4671365284792821, 0.02587387163461158, 3.284295892137614e-4, 7.7688994702881e-7)
# erf(x) = x P(x^2) / Q(x^2) on |x| <= 3.8325, relative error 2e-8; beyond it is within 6e-8 of 1
_ERF_P = (
    1.128379152185614, 0.1872999006830789, 0.05241732181073375, 0.00365237052290591,
    2.859308762643624e-4, 2.1231448015011e-6,
)  # fmt: skip
_ERF_Q = (
    1.0, 0.4993231208928623, 0.11289693209287101, 0.014741727393107872, 1.1416076921565333e-3,
    3.88977738602421e-5,
)  # fmt: skip
# e^(t^2 / 2) (1 - Phi(t)) = P(t) / Q(t) on 0 <= t <= 15, relative error 7e-9; Phi as in `ndtr`
_TAIL_P = (
    0.5000000031383505, 0.4392863777051636, 0.18397093685927082, 0.04088161681223333,
    0.0041532669298082695,
)  # fmt: skip
_TAIL_Q = (
    1.0, 1.676457761257359, 1.205556587965214, 0.4714133340460561, 0.10248113097839341,
    0.010410584705530943,
)  # fmt: skip


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """c0 + c1 x + c2 x^2 + ... by fused steps; `x` is bound."""
    result: Value = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = k.fma(result, x, c)
    assert isinstance(result, Expr)
    return result


def _const(value: float, x: Expr) -> Expr:
    return k.const(value, x.type)


def _bits(x: Expr) -> Expr:
    return k.bitcast(x, dt.int32)


def _float(x: Expr) -> Expr:
    return k.bitcast(x, dt.float32)


def _abs(x: Expr) -> Expr:
    return k.unary("abs", x)


def isnan(b: Builder, x: Expr) -> Expr:
    """True (bool lanes) where x is NaN, decided on bits."""
    return _abs_bits(x) > _INF_BITS


def _abs_bits(x: Expr) -> Expr:
    return _bits(x) & _ABS_MASK


def _nan_through(b: Builder, x: Expr, result: Expr) -> Expr:
    """`result`, but x itself where x is NaN."""
    return k.select(isnan(b, x), x, result)


def nan_max(b: Builder, x: Expr, y: Expr) -> Expr:
    """The larger of x and y (f32); NaN where either is NaN, as NumPy's maximum."""
    return _nan_pick(b, "max", x, y)


def nan_min(b: Builder, x: Expr, y: Expr) -> Expr:
    """The smaller of x and y (f32); NaN where either is NaN, as NumPy's minimum."""
    return _nan_pick(b, "min", x, y)


def _nan_pick(b: Builder, op: str, x: Expr, y: Expr) -> Expr:
    x, y = b.let(x, "x"), b.let(y, "y")
    return _nan_through(b, x, _nan_through(b, y, k.binary(op, x, y)))


def exp(b: Builder, x: Expr, nan: bool = True) -> Expr:
    """e^x within 2 ulp. Above 88.73 inf; below -87 zero (results under 1.7e-38 flush).

    With `nan=False` a NaN gives some finite value or 0 or inf: three operations fewer, for callers
    that have dealt with NaN.
    """
    x = b.let(x, "x")
    return _nan_through(b, x, _exp(b, x, None)) if nan else _exp(b, x, None)


def _exp(b: Builder, x: Expr, tail: Expr | None) -> Expr:
    """e^(x + tail), |tail| small, x not NaN. Half the scale goes into the polynomial, so that the
    largest finite results need no 2^128 and larger ones overflow by themselves."""
    c = b.let(k.minimum(k.maximum(x, -87.0), 89.0), "c")
    scale, r = _exp_parts(b, c, -1)
    r = b.let(r if tail is None else r + tail, "r")
    return _horner(r, (2.0, 2.0, *(2.0 * q for q in _EXP))) * scale


def _exp_parts(b: Builder, c: Expr, shift: int) -> tuple[Expr, Expr]:
    """(2^(n + shift), c - n ln 2) with n = c / ln 2 rounded, for c (bound) in -88..89. Adding
    _MAGIC rounds and leaves n in the low bits at once; n is read off the bits, because shader
    compilers take x + m - m for x."""
    bias = 127 + shift
    bits = b.let(_bits(k.fma(c, _LOG2E, _MAGIC + bias)), "bits")
    n = b.let(k.cast(bits - (_MAGIC_BITS + bias), dt.float32), "n")
    return _float(bits << 23), k.fma(n, -_LN2_LO, k.unary("keep", k.fma(n, -_LN2_HI, c)))


def exp_below(b: Builder, x: Expr) -> Expr:
    """e^x for x <= 0 within 2 ulp, exactly 0 below -87.7: `exp` without what only larger arguments
    and NaN need. A NaN gives some finite value."""
    c = b.let(k.maximum(x, -88.0), "c")  # there n is -127 and 2^n is 0
    scale, r = _exp_parts(b, c, 0)
    return _horner(b.let(r, "r"), (1.0, 1.0, *_EXP)) * scale


def exp_below_plain(b: Builder, x: Expr) -> Expr:
    """The bits of `exp_below`, and NaN for NaN, in an operation less: for CPUs, which keep sums as
    written and choose by a comparison as fast as they take a maximum."""
    x = b.let(x, "x")
    c = b.let(k.select(x < -88.0, _const(-88.0, x), x), "c")
    shifted = b.let(k.fma(c, _LOG2E, _MAGIC + 127), "shifted")
    n = b.let(shifted - (_MAGIC + 127), "n")
    r = k.fma(n, -_LN2_LO, k.fma(n, -_LN2_HI, c))
    scale = _float(_bits(shifted) << 23)
    return _horner(b.let(r, "r"), (1.0, 1.0, *_EXP)) * scale


def exp2_below(b: Builder, x: Expr) -> Expr:
    """2^x for x <= 0 with a relative error of 3e-6, exactly 0 below -127: the cheapest that a
    weight rounded to f16 or bf16 needs, for targets that keep sums as written (LLVM's). A NaN gives
    some finite value."""
    c = b.let(k.maximum(x, -127.0), "c")
    shifted = b.let(c + (_MAGIC + 127), "shifted")
    r = c - (shifted - (_MAGIC + 127))
    scale = _float(_bits(shifted) << 23)
    return _horner(b.let(r, "r"), (1.0, *_EXP2)) * scale


def _log_parts(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(e, f, tail): x = 2^e (1 + f) for finite positive x (bound), log(1 + f) = f - f^2/2 + tail;
    all three bound. Denormals are scaled up first."""
    tiny = b.let(_bits(x) < 0x00800000, "tiny")
    scaled = k.select(tiny, x * 8388608.0, x)
    # Bits relative to sqrt(1/2): the exponent field is then e, the rest 1 + f.
    w = b.let(_bits(scaled) - 0x3F3504F3, "w")
    m = _float((w & 0x007FFFFF) + 0x3F3504F3)
    f = b.let(m - 1.0, "f")
    e = b.let(k.cast(w >> 23, dt.float32) - k.select(tiny, _const(23.0, x), 0.0), "e")
    return e, f, b.let(f * f * f * _horner(f, _LOG), "tail")


def log(b: Builder, x: Expr) -> Expr:
    """The natural logarithm within 2 ulp, denormals included (where the target keeps them).
    log(0) = -inf; x < 0 gives NaN; inf and NaN stay."""
    x = b.let(x, "x")
    e, f, tail = _log_parts(b, x)
    small = k.fma(f * -0.5, f, k.fma(e, _LN2_LO, tail))
    result = k.fma(e, _LN2_HI, f + small)
    bits = b.let(_bits(x), "bits")
    zero = k.eq(bits & _ABS_MASK, 0)
    # Handles other inputs: zeros, then negative ones, then inf and NaN.
    result = k.select(bits < _INF_BITS, result, x)
    result = k.select(bits < 0, _const(NAN, x), result)
    return k.select(zero, _const(-INF, x), result)


def _sin_cos(b: Builder, x: Expr, shift: int) -> Expr:
    """sin(|x| + shift * pi/2), NaN where x is not finite; x bound."""
    quadrant, r = reduce_half_pi(b, x)
    if shift:
        quadrant = b.let(quadrant + shift, "quadrant")
    z = b.let(r * r, "z")
    sine = k.fma(z * _horner(z, _SIN), r, r)
    cosine = k.fma(z * z, _horner(z, _COS), k.fma(z, -0.5, 1.0))
    odd = k.ne(quadrant & 1, 0)
    sign = (quadrant & 2) << 30
    return _float(_bits(k.select(odd, cosine, sine)) ^ sign)


def sin(b: Builder, x: Expr) -> Expr:
    """sin(x) within 3 ulp for every x. Infinities and NaN give NaN."""
    x = b.let(x, "x")
    sign = _bits(x) & _SIGN_BIT
    return _float(_bits(_sin_cos(b, x, 0)) ^ sign)


def cos(b: Builder, x: Expr) -> Expr:
    """cos(x): domain and errors as for `sin`."""
    return _sin_cos(b, b.let(x, "x"), 1)


def tanh(b: Builder, x: Expr) -> Expr:
    """tanh(x) within 4e-7 relative error everywhere; exactly 1 or -1 from 9.01 on."""
    return _odd_ratio(b, x, 9.01, _TANH_P, _TANH_Q)


def erf(b: Builder, x: Expr) -> Expr:
    """The error function within 4e-7 relative error everywhere; exactly 1 or -1 from 3.83 on."""
    return _odd_ratio(b, x, 3.832506, _ERF_P, _ERF_Q)


def ndtr(b: Builder, x: Expr) -> Expr:
    """The normal distribution function Phi within 7 ulp (flushing below 1e-37): its lower tail has
    no 1 + erf in it, of which only the last bits of 1 would be left."""
    x = b.let(x, "x")
    t = b.let(k.minimum(_abs(x), 15.0), "t")
    high, low = _halves(b, t)
    half = low * -0.5
    main = b.let(k.maximum(high * -0.5 * high, -88.0), "main")
    scale, r = _exp_parts(b, main, 0)  # at -88 the scale is 0
    r = b.let(k.fma(half, t + high, r), "r")
    bell = _horner(r, (1.0, 1.0, *_EXP)) * scale
    tail = b.let(bell * _horner(t, _TAIL_P) / _horner(t, _TAIL_Q))
    return _nan_through(b, x, k.select(x < 0.0, tail, 1.0 - tail))


def _odd_ratio(b: Builder, x: Expr, edge: float, p: Sequence[float], q: Sequence[float]) -> Expr:
    """x P(x^2) / Q(x^2), exactly 1 or -1 from `edge` on; NaN passes."""
    x = b.let(x, "x")
    size = b.let(_abs(x), "size")
    c = b.let(k.minimum(size, edge), "c")
    z = b.let(c * c, "z")
    ratio = c * _horner(z, p) / _horner(z, q)
    value = k.select(size < edge, k.minimum(ratio, 1.0), _const(1.0, x))
    sign = _bits(x) & _SIGN_BIT
    return _nan_through(b, x, _float(_bits(value) | sign))


def sigmoid(b: Builder, x: Expr) -> Expr:
    """1 / (1 + e^-x) within 3 ulp (flushing below 1.7e-38)."""
    return 1.0 / (exp(b, -x) + 1.0)


def pow_(b: Builder, x: Expr, y: Expr) -> Expr:
    """x^y with C99's and NumPy's special cases: pow(x, 0) = pow(1, y) = 1 even for NaN; x < 0 with
    an integral y has y's parity as its sign and is NaN otherwise. Within 16 ulp; results below
    1.7e-38 flush to 0. The logarithm is carried in two floats, without a fused Fma."""
    x, y = b.let(x, "x"), b.let(y, "y")
    a = b.let(_abs(x), "a")
    magnitude = b.let(_pow_magnitude(b, a, y), "magnitude")
    half = b.let(y * 0.5, "half")
    odd = k.not_(k.eq(k.unary("floor", half), half))
    negative = b.let(_bits(x) < 0, "negative")
    integral = b.let(k.eq(k.unary("floor", y), y), "integral")
    value = k.select(negative & (integral & odd), -magnitude, magnitude)
    finite = _abs_bits(x) < _INF_BITS  # pow(-inf, 0.5) is inf
    invalid = negative & (_abs_bits(x) > 0) & finite & k.not_(integral)
    value = k.select(invalid, _const(NAN, x), value)
    value = _nan_through(b, x, _nan_through(b, y, value))
    one_bits = 0x3F800000
    minus_unit = k.eq(_abs_bits(x), one_bits) & k.eq(_abs_bits(y), _INF_BITS)
    unit = k.eq(_bits(x), one_bits) | (minus_unit | k.eq(_abs_bits(y), 0))
    return k.select(unit, _const(1.0, x), value)


def _kept(b: Builder, x: Expr, name: str) -> Expr:
    """x, bound, as it was rounded: what its rounding lost is looked for next."""
    return b.let(k.unary("keep", x), name)


def _halves(b: Builder, x: Expr) -> tuple[Expr, Expr]:
    """(high, low), x = high + low (bound): high has 12 bits, so that a product of two is exact
    without a fused Fma, which shaders may not have."""
    high = b.let(_float(_bits(x) & -4096), "high")
    return high, b.let(x - high, "low")


def _two_sum(b: Builder, x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """(s, x + y - s) with s = x + y rounded, whichever of them is larger (Knuth); x and y bound."""
    total = _kept(b, x + y, "total")
    back = _kept(b, total - x, "back")
    rest = x - _kept(b, total - back, "front")
    return total, rest + (y - back)


def _two_log(b: Builder, a: Expr) -> tuple[Expr, Expr]:
    """log a for finite a > 0 as an unevaluated sum (high, low), both bound."""
    e, f, tail = _log_parts(b, a)
    fh, fl = _halves(b, f)
    square = b.let(fh * 0.5 * fh, "square")  # exact
    square_low = fl * 0.5 * (f + fh)
    main = _kept(b, f - square, "main")
    main_low = _kept(b, f - main, "rest") - square
    low = main_low - square_low + k.fma(e, _LN2_LO, tail)
    head = b.let(e * _LN2_HI, "head")  # exact: 9 bits times 8 bits
    total, rest = _two_sum(b, head, main)
    return _two_sum(b, total, b.let(low + rest, "low"))


def _pow_magnitude(b: Builder, a: Expr, y: Expr) -> Expr:
    """a^y for a >= 0: e^(y log a), the logarithm in two floats and both factors in halves."""
    log_a, low = _two_log(b, a)
    high, more = _halves(b, log_a)
    low = b.let(low + more, "low")
    bits = b.let(_bits(a), "bits")
    high = k.select(bits < _INF_BITS, high, _const(INF, a))
    high = b.let(k.select(k.eq(bits, 0), _const(-INF, a), high), "high")
    yh, yl = _halves(b, y)
    main = b.let(yh * high, "main")  # exact
    rest = b.let(k.fma(yl, high, y * low), "rest")
    product, error = _two_sum(b, main, rest)
    # Far from zero (and where main is 0 inf) the result is 0 or inf, by the signs.
    near = b.let(_abs_bits(main) < 0x43000000, "near")  # |main| < 128
    sign = (_bits(y) ^ _bits(high)) & _SIGN_BIT
    beyond = _float(sign | _INF_BITS)
    product = b.let(k.select(near, product, beyond), "product")
    return _exp(b, product, b.let(k.select(near, error, _const(0.0, a)), "error"))


__all__ = [
    "cos", "erf", "exp", "exp2_below", "exp_below", "exp_below_plain",
    "isnan", "log", "nan_max", "nan_min", "ndtr",
    "pow_", "sigmoid", "sin", "tanh",
]  # fmt: skip
