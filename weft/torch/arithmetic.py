"""PyTorch's arithmetic, comparison and logic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import CallError, DTypeError, UsageError
from weft.tensor import elementwise as ew, signs, special
from weft.tensor.core import Tensor
from weft.torch.elementwise import eq, maximum, minimum, named, of_two
from weft.torch.expected import fitted, want, want_divisor, want_dtype, want_floats
from weft.torch.tensor import (
    as_tensor,
    common,
    floats,
    function_only,
    public,
    real,
    together,
    typed,
)

Operand = Any  # a tensor or a Python number


def _scaled(x: Tensor, alpha: float) -> Tensor:
    whole = x.dtype.is_float or not isinstance(alpha, float)
    want(whole, "alpha", f"{alpha} for {x.dtype.name}", "an integer where the tensors are integers")
    return x if alpha == 1 else x * typed(alpha, x.dtype)


def _plain(sum: Any, dtype: dt.DType) -> Tensor:
    """A result in the operands' dtype: bools are joined by or, and."""
    made: Tensor = sum
    return made.cast(dtype)


@public
def add(input: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
    """input + alpha * other."""
    x, y = together(input, other)
    return _plain(x + _scaled(y, alpha), x.dtype)


@public
def sub(input: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
    """input - alpha * other."""
    _no_bools(input, other)
    x, y = together(input, other)
    return x - _scaled(y, alpha)


subtract = sub


def _no_bools(*operands: Operand) -> None:
    for x in operands:
        if isinstance(x, bool) or getattr(x, "dtype", None) == dt.bool_:
            raise UsageError("sub: bools cannot be subtracted; use logical_xor or ^")


@function_only
def rsub(input: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
    """other - alpha * input."""
    _no_bools(input, other)
    x, y = together(input, other)
    return y - _scaled(x, alpha)


@public
def mul(input: Operand, other: Operand) -> Tensor:
    """input * other."""
    x, y = together(input, other)
    return _plain(x * y, x.dtype)


multiply = mul


@public
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, rounded as `rounding_mode` says: None, "trunc" or "floor"."""
    if rounding_mode is None:
        x, y = floats(input, other)
        return x / y
    x, y = together(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise UsageError(f'div: rounding_mode {rounding_mode!r}; None, "trunc" or "floor"')
    want_divisor("div", x, other)
    made = x // y if rounding_mode == "floor" else signs.divide_toward_zero(x, y)
    return made.cast(common(input, other))


divide = true_divide = div


@public
def floor_divide(input: Operand, other: Operand) -> Tensor:
    """input / other, rounded down."""
    x, y = together(input, other)
    want_divisor("floor_divide", x, other)
    return (x // y).cast(x.dtype)


@public
def pow(input: Operand, exponent: Operand) -> Tensor:
    """input to the power of exponent, in the common dtype."""
    x, y = together(input, exponent)
    below = isinstance(exponent, int) and exponent < 0
    want(x.dtype.is_float or not below, "pow", f"integers to the power {exponent}",
         "a power of 0 or more, or floats")  # fmt: skip
    want(x.dtype != dt.bool_, "pow", "bools", "numbers: call .int() on one first")
    if isinstance(exponent, int | float) and x.dtype.is_float:
        return x**exponent
    return (x**y).cast(x.dtype)


@public
def float_power(input: Operand, exponent: Operand) -> Tensor:
    """input to the power of exponent, in float64."""
    x, y = as_tensor(input), as_tensor(exponent)
    return x.cast(dt.float64) ** y.cast(dt.float64)


@public
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    x, a, b = together(input, tensor1, tensor2)
    want(x.dtype != dt.bool_, "addcmul", "bools", "numbers: call .int() on one first")
    whole = int(value) if x.dtype.is_int else value  # PyTorch rounds it so
    return x + _scaled(a * b, whole)


@public
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    if not tensor1.dtype.is_float:
        want_floats("addcdiv", tensor2, "PyTorch divides no integers here")
    x, a, b = floats(input, tensor1, tensor2)
    return x + _scaled(a / b, value)


@public
def lerp(input: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """input + weight (end - input)."""
    want_dtype("lerp", input, end)
    x, y = together(input, end)
    return special.lerp(x, y, weight if isinstance(weight, int | float) else weight.cast(x.dtype))


@public
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input times 2 to the power of other."""
    x, y = floats(input, real(other))
    return x * special.exp2(y)


def _bound(x: Tensor, bound: Operand) -> Any:
    return bound.cast(x.dtype) if isinstance(bound, Tensor) else bound


@public
def clamp(input: Tensor, min: Operand = None, max: Operand = None) -> Tensor:
    """Held within [min, max]; None leaves that side open."""
    given = [b for b in (min, max) if b is not None]
    if not given:
        raise UsageError("clamp: give min or max")
    x = input.cast(common(input, *given))
    if isinstance(min, Tensor) or isinstance(max, Tensor) or not x.dtype.is_float:
        out = x if min is None else maximum(x, _bound(x, min))
        return out if max is None else minimum(out, _bound(out, max))
    return x.clip(min, max)


clip = clamp


@public
def clamp_min(input: Tensor, min: Operand) -> Tensor:
    """At least `min`."""
    return clamp(input, min)


@public
def clamp_max(input: Tensor, max: Operand) -> Tensor:
    """At most `max`."""
    return clamp(input, None, max)


def _number_wins(fn: Callable[..., Any], whole: Callable[..., Any]) -> Any:
    def function(x: Any, y: Any) -> Any:
        return fn(x, y) if x.dtype.is_float else whole(x, y)

    function.__doc__ = fn.__doc__
    return of_two(function, fn.__name__)


fmax, fmin = _number_wins(special.fmax, maximum), _number_wins(special.fmin, minimum)


def _logical(name: str, fn: Callable[[Any, Any], Any]) -> Callable[[Operand, Operand], Tensor]:
    def function(input: Operand, other: Operand) -> Tensor:
        made: Tensor = fn(as_tensor(input).cast(dt.bool_), as_tensor(other).cast(dt.bool_))
        return made

    function.__doc__ = f"{name} of both operands' truth."
    return named(function, function, name)  # type: ignore[no-any-return]


logical_and = _logical("logical_and", operator.and_)
logical_or = _logical("logical_or", operator.or_)
logical_xor = _logical("logical_xor", operator.xor)


@public
def logical_not(input: Tensor) -> Tensor:
    """True where the value is 0 or False."""
    return ~input.cast(dt.bool_)


@function_only
def where(condition: Tensor, input: Operand = None, other: Operand = None) -> Any:
    """input where the condition holds, else other; without them the places where it holds."""
    if input is None and other is None:
        from weft.torch.picking import nonzero

        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise CallError("where: one of the two values is missing; give both, or neither")
    if condition.dtype not in (dt.bool_, dt.uint8):
        raise DTypeError(f"where: the condition is {condition.dtype}; expected bool")
    x, y = together(input, other)
    for number in (input, other):
        if not isinstance(number, Tensor):
            fitted("where", number, x.dtype)
    return condition.cast(dt.bool_).where(x, y)


@public
def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """True where |input - other| <= atol + rtol |other|, or both are the same infinity."""
    want(rtol >= 0 and atol >= 0, "isclose", f"rtol {rtol}, atol {atol}", "0 or more each")
    x, y = together(input, other)
    if x.dtype == dt.bool_:
        return x == y
    if not x.dtype.is_float:
        x, y = x.cast(dt.float64), y.cast(dt.float64)
    near = ew.abs(x - y) <= atol + ew.abs(y) * rtol
    close = (x == y) | (near & ew.isfinite(x) & ew.isfinite(y))
    return close | (ew.isnan(x) & ew.isnan(y)) if equal_nan else close


@public
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """True if `isclose` holds everywhere."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


@public
def equal(input: Tensor, other: Tensor) -> bool:
    """True if both have one shape and equal elements."""
    return input.shape == other.shape and bool((eq(input, other)).all())
