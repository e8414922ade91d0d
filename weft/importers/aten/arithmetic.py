"""Elementwise arithmetic, comparison and logic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from weft.core import dtypes as dt
from weft.importers.aten.numbers import common, fitting, together
from weft.importers.aten.table import aten, rows
from weft.tensor import angles, elementwise as ew, signs, special
from weft.tensor.core import Tensor

Operand = Any  # a Tensor or a Python number

rows(__name__, {
    **{
        name: (getattr(signs if name in ("signbit", "trunc") else ew, name), "self")
        for name in ("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "isinf", "isfinite",
                     "isnan", "log", "log10", "log1p", "log2", "reciprocal", "round", "rsqrt",
                     "sigmoid", "signbit", "sin", "sqrt", "square", "tanh", "trunc")
    },
    "logical_not": (ew.logical_not, "self"),
    **{f"logical_{n}": (getattr(ew, f"logical_{n}"), "self other") for n in ("and", "or", "xor")},
    **{
        name: (getattr(angles, name), "self")
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
    },
    "neg": (ew.negative, "self"),
    "bitwise_not": (ew.bitwise_invert, "self"),
    "erfc": (special.erfc, "self"),
    "exp2": (special.exp2, "self"),
    "logit": (special.logit, "self eps"),
    "lerp.Scalar lerp.Tensor": (special.lerp, "self end weight"),
    "nan_to_num": (special.nan_to_num, "self nan posinf neginf"),
    "fmax": (special.fmax, "self other"),
    "fmin": (special.fmin, "self other"),
})  # fmt: skip


@aten("sign")
def sign(self: Tensor) -> Tensor:
    """The sign; that of NaN is 0, where NumPy and the array API have NaN."""
    signs = ew.sign(self)
    return (self != self).where(0.0, signs) if self.dtype.is_float else signs


def _two(fn: Callable[[Any, Any], Any], *names: str) -> None:
    @aten(*names)
    def binary(self: Operand, other: Operand) -> Tensor:
        x, y = together(self, other)
        out: Tensor = fn(x, y)
        return out


def _overloads(*names: str) -> list[str]:
    return [f"{n}.{o}" for n in names for o in ("Tensor", "Scalar")]


for _name, _compare in (
    ("eq", operator.eq), ("ne", operator.ne), ("lt", operator.lt), ("le", operator.le),
    ("gt", operator.gt), ("ge", operator.ge),
):  # fmt: skip
    _two(_compare, *_overloads(_name))
_two(operator.and_, *_overloads("bitwise_and", "__and__"))
_two(operator.or_, *_overloads("bitwise_or", "__or__"))
_two(operator.xor, *_overloads("bitwise_xor", "__xor__"))
_two(operator.lshift, "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar",
     *_overloads("__lshift__"))  # fmt: skip
_two(operator.rshift, "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar",
     *_overloads("__rshift__"))  # fmt: skip
_two(ew.maximum, "maximum", "max.other")
_two(ew.minimum, "minimum", "min.other")
_two(angles.atan2, "atan2")
_two(ew.hypot, "hypot")
_two(ew.logaddexp, "logaddexp")
_two(signs.fmod, *_overloads("fmod"))
_two(operator.mod, *_overloads("remainder"))
_two(signs.copysign, "copysign.Tensor")


def _scaled(other: Operand, alpha: float) -> Operand:
    return other if alpha == 1 else other * alpha


@aten(*_overloads("add"))
def add(self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    x, y = together(self, other)
    out: Tensor = x + _scaled(y, alpha)
    return out.cast(common(self, other))  # This is `or` for bools.


@aten(*_overloads("sub", "subtract"))
def sub(self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    x, y = together(self, other)
    out: Tensor = x - _scaled(y, alpha)
    return out


@aten(*_overloads("rsub"))
def rsub(self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    return sub(other, self, alpha)


@aten(*_overloads("mul", "multiply"))
def mul(self: Operand, other: Operand) -> Tensor:
    x, y = together(self, other)
    out: Tensor = x * y
    return out.cast(common(self, other))  # This is `and` for bools.


@aten(*_overloads("div", "divide", "true_divide"), "div.Tensor_mode", "div.Scalar_mode")
def div(self: Operand, other: Operand, rounding_mode: str | None = None) -> Tensor:
    x, y = together(self, other)
    if rounding_mode is None:
        out: Tensor = x / y
        return out
    dtype = common(self, other)
    if rounding_mode == "floor":
        out = x // y
    else:
        out = signs.divide_toward_zero(x, y)
    return out.cast(dtype)


@aten("floor_divide", "floor_divide.Scalar")
def floor_divide(self: Operand, other: Operand) -> Tensor:
    return div(self, other, "floor")


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(self: Operand, exponent: Operand) -> Tensor:
    x, y = together(self, exponent)
    out: Tensor = x**y
    return out


@aten("round.decimals")
def round_decimals(self: Tensor, decimals: int = 0) -> Tensor:
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return (self / scale).round() * scale
    return (self * scale).round() / scale


@aten("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    dtype = common(self, *(x for x in (min, max) if x is not None))
    bounds = (x.cast(dtype) if isinstance(x, Tensor) else x for x in (min, max))
    return self.cast(dtype).clip(*bounds)


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(self: Tensor, min: Operand) -> Tensor:
    return clamp(self, min)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(self: Tensor, max: Operand) -> Tensor:
    return clamp(self, None, max)


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(condition: Tensor, self: Operand, other: Operand) -> Tensor:
    x, y = together(self, other)
    return condition.cast(dt.bool_).where(x, y)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    if isinstance(value, Tensor):
        value = value.cast(self.dtype)
    else:
        value = fitting(value, self.dtype)
    return mask.where(value, self)


@aten("addcmul")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return add(self, mul(tensor1, tensor2), value)


@aten("addcdiv")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return add(self, div(tensor1, tensor2), value)


@aten("ldexp.Tensor")
def ldexp(self: Tensor, other: Tensor) -> Tensor:
    return self * special.exp2(other.cast(dt.float32))
