"""Operators on each element: arithmetic, comparison, logic, bits, functions of reals."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from weft.core.errors import DTypeError
from weft.importers.onnx.table import NodeCall, Value, is_host, lib, op, rows, scalar
from weft.importers.onnx.values import cast, is_float, is_int, numpy_dtype, numpy_type, widened
from weft.tensor.core import Tensor
from weft.tensor.signs import divide_toward_zero, fmod

# -- arithmetic


@op("Div", either=True)
def divide(call: NodeCall, a: Value, b: Value) -> Value:
    """Divides; integers are rounded toward zero."""
    if not is_int(a):
        return a / b
    if not is_host(a):
        return divide_toward_zero(a, b)
    quotient = a // b
    if a.dtype.kind == "u":
        return quotient
    inexact = (quotient * b != a) & ((a < 0) != (b < 0))
    return np.where(inexact, quotient + 1, quotient).astype(a.dtype)  # NumPy widens small ones


@op("Mod", either=True)
def mod(call: NodeCall, a: Value, b: Value) -> Value:
    """The remainder with the divisor's sign, or (fmod) the dividend's."""
    if not call.get("fmod", 0):
        return a % b
    return np.fmod(a, b) if is_host(a) else fmod(a, b)


@op("Pow", either=True)
def power(call: NodeCall, a: Value, b: Value) -> Value:
    if is_host(a):
        return (a.astype(np.result_type(a, b)) ** b).astype(a.dtype)
    if is_int(a) and is_float(b):
        return (a.cast(b.dtype) ** b).cast(a.dtype)
    return a ** b.cast(a.dtype)


@op("Abs", either=True)
def absolute(call: NodeCall, x: Value) -> Value:
    return x if numpy_dtype(x).kind == "u" else abs(x)


def _fold(name: str, join: Callable[[Any, Value, Value], Value]) -> None:
    def fn(call: NodeCall, *values: Value) -> Value:
        xp = lib(*values)
        return functools.reduce(lambda a, b: join(xp, a, b), values)

    op(name, either=True)(fn)


_fold("Max", lambda xp, a, b: xp.maximum(a, b))
_fold("Min", lambda xp, a, b: xp.minimum(a, b))


@op("Sum", either=True)
def total(call: NodeCall, *values: Value) -> Value:
    """The sum of all operands, narrow floats in float32 and rounded once."""
    return functools.reduce(operator.add, map(widened, values)).astype(values[0].dtype)


@op("Mean", either=True)
def mean(call: NodeCall, *values: Value) -> Value:
    whole = functools.reduce(operator.add, map(widened, values))
    return (whole * _number(whole, 1 / len(values))).astype(values[0].dtype)


def _number(like: Value, number: float) -> Any:
    return np.asarray(number, like.dtype) if is_host(like) else number


@op("Clip", either=True)
def clip(call: NodeCall, x: Value, low: Value = None, high: Value = None) -> Value:
    xp = lib(x)
    if call.version < 11:
        low, high = call.get("min"), call.get("max")
        low, high = (None if v is None else _number(x, v) for v in (low, high))
    x = x if low is None else xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


# -- comparison, logic, bits


_OPERATORS = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Neg": operator.neg,
    "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le,
    "Greater": operator.gt, "GreaterOrEqual": operator.ge,
    "And": operator.and_, "Or": operator.or_, "Xor": operator.xor, "Not": operator.invert,
    "BitwiseAnd": operator.and_, "BitwiseOr": operator.or_, "BitwiseXor": operator.xor,
    "BitwiseNot": operator.invert,
}  # fmt: skip
for _name, _fn in _OPERATORS.items():
    op(_name, either=True)(lambda call, *xs, fn=_fn: fn(*xs))


@op("BitShift", either=True)
def bit_shift(call: NodeCall, a: Value, b: Value) -> Value:
    return a << b if call.need("direction") == "LEFT" else a >> b


@op("Where", either=True)
def where(call: NodeCall, condition: Value, a: Value, b: Value) -> Value:
    return lib(condition, a, b).where(condition, a, b)


@op("IsInf", either=True)
def is_inf(call: NodeCall, x: Value) -> Value:
    found = []
    if call.get("detect_negative", 1):
        found.append(x == -math.inf)
    if call.get("detect_positive", 1):
        found.append(x == math.inf)
    return functools.reduce(lambda a, b: a | b, found) if found else x != x


# -- functions of reals


def _reals(name: str, fn: str) -> None:
    op(name, either=True)(lambda call, x: getattr(lib(x), fn)(x))


for _name in ("Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Sin", "Cos", "Tanh",
              "IsNaN", "Sign"):  # fmt: skip
    _reals(_name, _name.lower())
for _name in ["Tan", "Acos", "Asin", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf"]:
    rows({_name: (getattr(weft, _name.lower()), {})})


# -- element types


@op("Cast", either=True)
def cast_to(call: NodeCall, x: Value) -> Value:
    return cast(call, x, numpy_type(call.need("to"), "to"))


@op("CastLike")
def cast_like(call: NodeCall, x: Value, like: Value) -> Value:
    return cast(call, x, numpy_dtype(like))


@op("BitCast", either=True)
def bit_cast(call: NodeCall, x: Value) -> Value:
    """The same bits as another type of the same size: a view of host memory."""
    wanted = numpy_type(call.need("to"), "to")
    host = call.host(x, "the operand")
    if host.dtype.itemsize != wanted.itemsize:
        raise DTypeError(f"BitCast: {host.dtype} and {wanted} differ in size")
    made: np.ndarray = np.ascontiguousarray(host).reshape(host.shape).view(wanted)
    return made if host.ndim else made.reshape(())


@op("Identity", raw=True)
def identity(call: NodeCall, x: Value) -> Value:
    return x


@op("Dropout", host=(1, 2))
def dropout(call: NodeCall, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    """Drops elements in training only, which the third operand turns on."""
    mask = weft.full(x.shape, True, device=None) if call.wants(1) else None
    share = call.get("ratio", 0.5) if call.version < 12 else 0.5 if ratio is None else scalar(ratio)
    if training is None or not scalar(training) or not share:
        return (x, mask)
    if call.get("seed") is None:
        call.run.alone("random numbers")
    kept = weft.rand(x.shape, key=call.get("seed")) >= share
    return kept.where(x * (1 / (1 - share)) if share < 1 else x, 0.0), kept
