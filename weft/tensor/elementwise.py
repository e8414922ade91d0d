"""The array API's elementwise functions (Python array API standard 2024.12), as `weft.add`, ...

Operands are Tensors, NumPy arrays or Python numbers (one of two must not be a number). What has
no primitive is made of those that have, with the formula in its docstring; so it runs, compiles
and differentiates wherever they do.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import promote
from weft.core.errors import DTypeError
from weft.tensor.core import Tensor, tensor

Operand = Any  # a Tensor, a NumPy array or a Python number
_NUMBERS = (bool, int, float)


def as_tensor(x: Operand) -> Tensor:
    """The operand as a Tensor (itself where it is one)."""
    return x if isinstance(x, Tensor) else tensor(x)


def reals(x: Operand) -> Tensor:
    """The operand as floats: integers and bools as float32."""
    t = as_tensor(x)
    return t if t.dtype.is_float else t.cast(dt.float32)


def _two(x: Operand, y: Operand) -> tuple[Any, Any]:
    """Operands of which at least one is a Tensor, so that Python's operators mean weft's."""
    return (x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else (as_tensor(x), y)


def float_pair(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Both operands as floats of one dtype and shape."""
    a, b = _two(x, y)
    if not isinstance(a, Tensor):
        return float_pair(b, a)[::-1]
    left, right = a._reals("div", b)
    return left, right


def wide(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A formula computed in float32 for float16 and bfloat16, and rounded once."""

    @functools.wraps(fn)
    def function(*operands: Operand) -> Tensor:
        tensors = [x if isinstance(x, _NUMBERS) else as_tensor(x) for x in operands]
        dtypes = [t.dtype for t in tensors if isinstance(t, Tensor)] or [dt.float32]
        dtype = functools.reduce(promote, dtypes)
        if not dtype.is_float or dtype == dt.compute_dtype(dtype):
            return fn(*tensors)
        wide = (t.cast(dt.float32) if isinstance(t, Tensor) else t for t in tensors)
        return fn(*wide).cast(dtype)

    return function


def _operator(name: str, symbol: str, fn: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        out: Tensor = fn(*_two(x1, x2))
        return out

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"x1 {symbol} x2, element by element, broadcast and in the promoted dtype."
    return function


def _method(name: str, method: str = "") -> Callable[..., Tensor]:
    def function(x: Operand, /) -> Tensor:
        out: Tensor = getattr(as_tensor(x), method or name)()
        return out

    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Tensor, method or name).__doc__
    return function


add = _operator("add", "+", operator.add)
subtract = _operator("subtract", "-", operator.sub)
multiply = _operator("multiply", "*", operator.mul)
divide = _operator("divide", "/", operator.truediv)
floor_divide = _operator("floor_divide", "//", operator.floordiv)
remainder = _operator("remainder", "%", operator.mod)
pow = _operator("pow", "**", operator.pow)
equal = _operator("equal", "==", operator.eq)
not_equal = _operator("not_equal", "!=", operator.ne)
less = _operator("less", "<", operator.lt)
less_equal = _operator("less_equal", "<=", operator.le)
greater = _operator("greater", ">", operator.gt)
greater_equal = _operator("greater_equal", ">=", operator.ge)
bitwise_and = _operator("bitwise_and", "&", operator.and_)
bitwise_or = _operator("bitwise_or", "|", operator.or_)
bitwise_xor = _operator("bitwise_xor", "^", operator.xor)
bitwise_left_shift = _operator("bitwise_left_shift", "<<", operator.lshift)
bitwise_right_shift = _operator("bitwise_right_shift", ">>", operator.rshift)

abs = _method("abs")
ceil = _method("ceil")
cos = _method("cos")
exp = _method("exp")
floor = _method("floor")
isnan = _method("isnan")
log = _method("log")
reciprocal = _method("reciprocal")
round = _method("round")
rsqrt = _method("rsqrt")
sign = _method("sign")
sin = _method("sin")
sqrt = _method("sqrt")
square = _method("square")
tanh = _method("tanh")
bitwise_invert = _method("bitwise_invert", "__invert__")
negative = _method("negative", "__neg__")
positive = _method("positive", "__pos__")
erf = _method("erf")
sigmoid = _method("sigmoid")


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of two (NaN when either is)."""
    a, b = _two(x1, x2)
    return a.maximum(b) if isinstance(a, Tensor) else b.maximum(a)


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of two (NaN when either is)."""
    a, b = _two(x1, x2)
    return a.minimum(b) if isinstance(a, Tensor) else b.minimum(a)


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x held within [min, max]; None leaves that side open."""
    return as_tensor(x).clip(min, max)


# -- logic


def _logical(name: str, x: Operand) -> Tensor:
    t = as_tensor(x)
    if t.dtype != dt.bool_:
        raise DTypeError(f"{name}: got {t.dtype.name}, expected bool; compare it, or cast it")
    return t


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether both hold. Raises DTypeError unless both are bool."""
    return _logical("logical_and", x1) & _logical("logical_and", x2)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether one holds. Raises DTypeError unless both are bool."""
    return _logical("logical_or", x1) | _logical("logical_or", x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Whether exactly one holds. Raises DTypeError unless both are bool."""
    return _logical("logical_xor", x1) ^ _logical("logical_xor", x2)


def logical_not(x: Operand, /) -> Tensor:
    """Whether it does not hold. Raises DTypeError unless it is bool."""
    return ~_logical("logical_not", x)


def isfinite(x: Operand, /) -> Tensor:
    """Where the value is neither infinite nor NaN (bool)."""
    t = as_tensor(x)
    return t.abs() < math.inf if t.dtype.is_float else t == t


def isinf(x: Operand, /) -> Tensor:
    """Where the value is infinite (bool)."""
    t = as_tensor(x)
    return t.abs() == math.inf if t.dtype.is_float else t != t


def signbit(x: Operand, /) -> Tensor:
    """Where the sign is set (bool): below zero or -0.0; of a NaN False."""
    t = as_tensor(x)
    return (t < 0) | ((t == 0) & (1.0 / t < 0)) if t.dtype.is_float else t < 0


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """The magnitude of x1 with the sign of x2."""
    a, b = float_pair(x1, x2)
    return signbit(b).where(-a.abs(), a.abs())


def trunc(x: Operand, /) -> Tensor:
    """Rounded toward zero."""
    t = as_tensor(x)
    return (t < 0).where(t.ceil(), t.floor()) if t.dtype.is_float else t


# -- exponentials and logarithms


@wide
def expm1(x: Operand, /) -> Tensor:
    """exp(x) - 1, exact near 0: x / log(u) (u - 1) with u = exp(x) (Kahan; Higham, "Accuracy and
    Stability of Numerical Algorithms", section 1.14.1)."""
    t = reals(x)
    u = t.exp()
    less = u - 1.0
    near = (u == 1.0) | (t == 0)
    middle = t / near.where(1.0, u.log()) * less
    out = (less == -1.0).where(-1.0, (u == math.inf).where(u, middle))
    return near.where(t, out)


@wide
def log1p(x: Operand, /) -> Tensor:
    """log(1 + x), exact near 0: log(u) x / (u - 1) with u = 1 + x (Kahan; Higham, problem 1.5)."""
    t = reals(x)
    u = t + 1.0
    near = u == 1.0
    middle = u.log() * t / near.where(1.0, u - 1.0)
    return near.where(t, (u == math.inf).where(u, middle))


@wide
def log2(x: Operand, /) -> Tensor:
    """The logarithm to base 2."""
    return reals(x).log() * (1 / math.log(2))


@wide
def log10(x: Operand, /) -> Tensor:
    """The logarithm to base 10."""
    return reals(x).log() * (1 / math.log(10))


@wide
def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow."""
    a, b = float_pair(x1, x2)
    top, apart = a.maximum(b), (a - b).abs()
    return (a == b).where(a + math.log(2), top + log1p((-apart).exp()))


@wide
def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1² + x2²) without overflow."""
    a, b = float_pair(x1, x2)
    a, b = a.abs(), b.abs()
    top, low = a.maximum(b), a.minimum(b)
    ratio = (low == top).where(1.0, low / (top == 0).where(1.0, top))
    ratio = (top == 0).where(0.0, ratio)
    infinite = (a == math.inf) | (b == math.inf)
    return infinite.where(math.inf, top * (ratio * ratio + 1.0).sqrt())
