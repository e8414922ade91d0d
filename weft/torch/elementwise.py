"""PyTorch's elementwise functions of weft.torch: promotion by its rules, then weft's formulas."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from weft.core import dtypes as dt
from weft.tensor import angles, elementwise as ew, signs, special
from weft.tensor.core import Tensor
from weft.torch.expected import want_divisor, want_floats
from weft.torch.tensor import as_tensor, floats, public, real, together

Operand = Any  # a tensor or a Python number


def of_reals(fn: Callable[..., Any], name: str = "") -> Callable[[Tensor], Tensor]:
    """A function of floats; integers are computed in float32."""

    def function(input: Tensor) -> Tensor:
        made: Tensor = fn(real(input))
        return made

    return named(function, fn, name)  # type: ignore[no-any-return]


def of_numbers(fn: Callable[..., Any], name: str = "") -> Callable[[Tensor], Tensor]:
    """A function of one tensor that leaves the dtype."""

    def function(input: Tensor) -> Tensor:
        made: Tensor = fn(as_tensor(input))
        return made

    return named(function, fn, name)  # type: ignore[no-any-return]


def of_two(fn: Callable[..., Any], name: str = "") -> Callable[[Operand, Operand], Tensor]:
    """A function of two operands in their common dtype."""

    def function(input: Operand, other: Operand) -> Tensor:
        made: Tensor = fn(*together(input, other))
        return made

    return named(function, fn, name)  # type: ignore[no-any-return]


def of_two_reals(fn: Callable[..., Any], name: str = "") -> Callable[[Operand, Operand], Tensor]:
    """A function of two operands in their common float dtype."""

    def function(input: Operand, other: Operand) -> Tensor:
        made: Tensor = fn(*floats(input, other))
        return made

    return named(function, fn, name)  # type: ignore[no-any-return]


def named(function: Any, fn: Any, name: str) -> Any:
    function.__name__ = function.__qualname__ = name or fn.__name__
    function.__doc__ = fn.__doc__
    return public(function)


acos, asin, atan = of_reals(angles.acos), of_reals(angles.asin), of_reals(angles.atan)
acosh, asinh, atanh = of_reals(angles.acosh), of_reals(angles.asinh), of_reals(angles.atanh)
cosh, sinh, tan = of_reals(angles.cosh), of_reals(angles.sinh), of_reals(angles.tan)
arccos, arcsin, arctan, arccosh, arcsinh, arctanh = acos, asin, atan, acosh, asinh, atanh
cos, sin, tanh = of_reals(ew.cos), of_reals(ew.sin), of_reals(ew.tanh)
exp, expm1, log = of_reals(ew.exp), of_reals(ew.expm1), of_reals(ew.log)
log1p, log2, log10 = of_reals(ew.log1p), of_reals(ew.log2), of_reals(ew.log10)
sqrt, rsqrt, reciprocal = of_reals(ew.sqrt), of_reals(ew.rsqrt), of_reals(ew.reciprocal)
sigmoid, erf, erfc = of_reals(ew.sigmoid), of_reals(ew.erf), of_reals(special.erfc)
exp2 = of_reals(special.exp2)
isinf, isfinite = of_numbers(ew.isinf), of_numbers(ew.isfinite)
signbit = of_numbers(signs.signbit)
bitwise_not = of_numbers(ew.bitwise_invert, "bitwise_not")
atan2 = arctan2 = of_two_reals(angles.atan2)
hypot, logaddexp = of_two_reals(ew.hypot), of_two_reals(ew.logaddexp)
copysign = of_two_reals(signs.copysign)


def _extreme(fn: Callable[..., Any], bools: Callable[[Any, Any], Any]) -> Any:
    def function(x: Any, y: Any) -> Any:
        return bools(x, y) if x.dtype == dt.bool_ else fn(x, y)

    function.__doc__ = fn.__doc__
    return of_two(function, fn.__name__)


maximum, minimum = _extreme(ew.maximum, operator.or_), _extreme(ew.minimum, operator.and_)


def _rest(fn: Callable[..., Any], name: str) -> Any:
    def function(input: Operand, other: Operand) -> Tensor:
        x, y = together(input, other)
        want_divisor(name, x, other)
        made: Tensor = fn(x, y)
        return made

    return named(function, fn, name)


fmod, remainder = _rest(signs.fmod, "fmod"), _rest(operator.mod, "remainder")
eq, ne = of_two(operator.eq, "eq"), of_two(operator.ne, "ne")
lt, le = of_two(operator.lt, "lt"), of_two(operator.le, "le")
gt, ge = of_two(operator.gt, "gt"), of_two(operator.ge, "ge")
not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge
bitwise_and = of_two(operator.and_, "bitwise_and")
bitwise_or = of_two(operator.or_, "bitwise_or")
bitwise_xor = of_two(operator.xor, "bitwise_xor")
bitwise_left_shift = of_two(operator.lshift, "bitwise_left_shift")
bitwise_right_shift = of_two(operator.rshift, "bitwise_right_shift")


def _same_integers(fn: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """Rounding: integers are whole already."""

    def function(input: Tensor) -> Tensor:
        x = as_tensor(input)
        made: Tensor = fn(x) if x.dtype.is_float else x.clone()
        return made

    return named(function, fn, "")  # type: ignore[no-any-return]


ceil, floor, trunc = _same_integers(ew.ceil), _same_integers(ew.floor), _same_integers(signs.trunc)
fix = trunc


@public
def frac(input: Tensor) -> Tensor:
    """The part behind the point, with its sign."""
    return input - signs.trunc(input)


@public
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounded to `decimals` digits behind the point, halves to even."""
    if not input.dtype.is_float:
        if decimals:
            want_floats("round", input, "call .float() on it to round to decimals")
        return input.clone()
    scale = 10.0 ** abs_(decimals)
    if not decimals:
        return input.round()
    return input.__mul__(scale).round() / scale if decimals > 0 else (input / scale).round() * scale


abs_ = abs


@public
def abs(input: Tensor) -> Tensor:
    """The magnitude; its slope at 0 is 0."""
    return ew.abs(input)


absolute = abs


@public
def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1; 0 for NaN."""
    if input.dtype == dt.bool_:
        return input.clone()
    signs = ew.sign(input)
    return (input != input).where(0.0, signs) if input.dtype.is_float else signs


sgn = sign


@public
def neg(input: Tensor) -> Tensor:
    """-input."""
    return -input


negative = neg


@public
def positive(input: Tensor) -> Tensor:
    """input itself."""
    return input


@public
def square(input: Tensor) -> Tensor:
    """input times itself."""
    x = together(input, 1)[0] if input.dtype == dt.bool_ else input
    return x * x


@public
def isnan(input: Tensor) -> Tensor:
    """True where the value is not a number."""
    return ew.isnan(input) if input.dtype.is_float else input != input


@public
def isneginf(input: Tensor) -> Tensor:
    """True where the value is -infinity."""
    return ew.isinf(input) & (input < 0)


@public
def isposinf(input: Tensor) -> Tensor:
    """True where the value is +infinity."""
    return ew.isinf(input) & (input > 0)


@public
def isreal(input: Tensor) -> Tensor:
    """True everywhere: weft lacks complex numbers."""
    return isnan(input) | True


@public
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)); input is first held within eps..1 - eps, if given."""
    return special.logit(real(input), eps)


@public
def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:  # fmt: skip
    """NaN replaced by `nan` (0), infinities by `posinf` and `neginf` (the dtype's extremes)."""
    return special.nan_to_num(input, nan, posinf, neginf).clone()
