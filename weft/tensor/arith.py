"""Elementwise methods and operators of Tensor, with broadcasting and promotion.

Promotion is the array API's (core.dtypes.promote); Python scalars are weak: they take the tensor's
dtype unless they are of a higher kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype, promote
from weft.core.errors import DTypeError
from weft.host.foreign import is_foreign, shared_array
from weft.tensor import quick
from weft.tensor.base import (
    Number,
    TensorBase,
    broadcast_shapes,
    default_float,
    run,
    scalar_dtype,
    values,
)
from weft.tensor.played import played

Operand = Any  # a Tensor, a Python number or a NumPy array
T = TypeVar("T", bound=TensorBase)


def _operator(way: Callable[..., T], op: str, swap: bool = False) -> Callable[[T, Operand], T]:
    """Returns a method that passes `op` to `way`, which combines the operands."""

    @played
    def combined(self: T, other: Operand) -> T:
        return way(self, op, other, swap)

    return quick.operator(op, combined, swap)


class Arithmetic(TensorBase):
    """Elementwise operators and functions."""

    __slots__ = ()

    def _coerce(self, op: str, other: Operand) -> Self | Number:
        if isinstance(other, TensorBase):
            return other if isinstance(other, Arithmetic) else self._wrap(other)  # type: ignore
        if isinstance(other, bool | int | float):
            return other
        if isinstance(other, np.ndarray | np.generic):
            return self._wrap(np.asarray(other))
        if is_foreign(other):
            return self._wrap(np.array(shared_array(op, other)))
        raise DTypeError(
            f"{op}: cannot combine a tensor with {type(other).__name__}; use a tensor, a number or "
            "a NumPy array"
        )

    def _full(self, number: Number, dtype: DType, shape: tuple[int, ...]) -> Self:
        """A Python number as a tensor that may meet tensors of any device."""
        out = self._wrap(ops.broadcast(ops.const(number, dtype), shape))
        out._weak = True
        return out

    def _pair(self, op: str, other: Operand, dtype: DType | None = None) -> tuple[Self, Self]:
        """Both operands in one dtype (by default the promoted one) and one shape."""
        y = self._coerce(op, other)
        if not isinstance(y, TensorBase):
            d = dtype or scalar_dtype(op, y, self.dtype)
            return self._as(d), self._full(y, d, self.shape)
        d = dtype or promote(self.dtype, y.dtype)
        shape = broadcast_shapes(op, self.shape, y.shape)
        return self._as(d)._to_shape(shape), y._as(d)._to_shape(shape)

    def _as(self, dtype: DType) -> Self:
        if dtype == self.dtype:
            return self
        return run(self, "cast", self, dtype=dtype)

    def _to_shape(self, shape: tuple[int, ...]) -> Self:
        if shape == self.shape:
            return self
        out = self._wrap(ops.broadcast(self.value, shape))
        out._weak = self._weak
        return out

    def _binary(self, op: str, other: Operand, swap: bool = False) -> Self:
        x, y = self._pair(op, other)
        return run(self, op, y, x) if swap else run(self, op, x, y)

    def _unary(self, op: str) -> Self:
        made: Self | None = quick.one(op, self)
        return run(self, op, self) if made is None else made

    def _real(self, op: str) -> Self:
        """A function of reals: integers and bools are computed as float32."""
        return self._as(default_float(self.dtype))._unary(op)

    # -- arithmetic

    def _arith(self, op: str, other: Operand, swap: bool = False) -> Self:
        if self.dtype == dt.bool_:
            y = self._coerce(op, other)
            if isinstance(y, bool) or (isinstance(y, TensorBase) and y.dtype == dt.bool_):
                return self._as(dt.int32)._binary(op, y, swap)
        return self._binary(op, other, swap)

    __add__, __radd__ = _operator(_arith, "add"), _operator(_arith, "add", swap=True)
    __sub__, __rsub__ = _operator(_arith, "sub"), _operator(_arith, "sub", swap=True)
    __mul__, __rmul__ = _operator(_arith, "mul"), _operator(_arith, "mul", swap=True)
    # the remainder has the divisor's sign, the quotient is rounded down; by 0 integers give 0
    __mod__, __rmod__ = _operator(_arith, "remainder"), _operator(_arith, "remainder", swap=True)
    __floordiv__ = _operator(_arith, "floor_divide")
    __rfloordiv__ = _operator(_arith, "floor_divide", swap=True)
    __rpow__ = _operator(_arith, "pow", swap=True)

    def _divide(self, op: str, other: Operand, swap: bool = False) -> Self:
        """True division: integers give float32."""
        x, y = self._reals(op, other)
        return run(self, op, y, x) if swap else run(self, op, x, y)

    __truediv__, __rtruediv__ = _operator(_divide, "div"), _operator(_divide, "div", swap=True)

    def _reals(self, op: str, other: Operand) -> tuple[Self, Self]:
        y = self._coerce(op, other)
        if isinstance(y, TensorBase):
            return self._pair(op, y, default_float(promote(self.dtype, y.dtype)))
        return self._pair(op, y, default_float(scalar_dtype(op, y, self.dtype)))

    def __pow__(self, other: Operand) -> Self:
        if isinstance(other, int | float) and not isinstance(other, bool):
            if other == 2:
                return self._arith("mul", self)
            if other == 0.5 and self.dtype.is_float:
                return self.sqrt()
        return self._arith("pow", other)

    def __neg__(self) -> Self:
        """-x; unsigned integers wrap around."""
        return self._unary("neg")

    def __pos__(self) -> Self:
        """x itself."""
        return self

    def __abs__(self) -> Self:
        return self.abs()

    # -- comparison: bool results

    def _compare(self, op: str, other: Operand, swap: bool = False) -> Self:
        x, y = self._pair(op, other)
        if x.dtype == dt.bool_:
            x, y = x._as(dt.int32), y._as(dt.int32)
        return run(self, op, y, x) if swap else run(self, op, x, y)

    __lt__, __gt__ = _operator(_compare, "less"), _operator(_compare, "less", swap=True)
    __le__, __ge__ = _operator(_compare, "less_equal"), _operator(_compare, "less_equal", swap=True)

    def _equal(self, other: object) -> Self:
        return self._binary("equal", other) if _comparable(other) else NotImplemented

    if TYPE_CHECKING:

        def __eq__(self, other: object) -> Self: ...  # type: ignore[override]
    else:
        __eq__ = quick.operator("equal", _equal)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return ~self._binary("equal", other) if _comparable(other) else NotImplemented

    __hash__ = object.__hash__  # a tensor is a key by identity, as == answers element by element

    # -- bits and bools

    __and__ = __rand__ = _operator(_binary, "bitwise_and")
    __or__ = __ror__ = _operator(_binary, "bitwise_or")
    __xor__ = __rxor__ = _operator(_binary, "bitwise_xor")
    __lshift__ = _operator(_binary, "shift_left")
    __rlshift__ = _operator(_binary, "shift_left", swap=True)
    __rshift__ = _operator(_binary, "shift_right")
    __rrshift__ = _operator(_binary, "shift_right", swap=True)

    def __invert__(self) -> Self:
        """Every bit flipped; for bool, not."""
        if self.dtype == dt.bool_:
            return self._binary("bitwise_xor", True)
        ones = (1 << self.dtype.itemsize * 8) - 1 if self.dtype.kind == "uint" else -1
        return self._binary("bitwise_xor", ones)

    # -- functions

    def abs(self) -> Self:
        """The magnitude."""
        return self._unary("abs")

    def floor(self) -> Self:
        """Rounded down."""
        return self._unary("floor")

    def ceil(self) -> Self:
        """Rounded up."""
        return -((-self).floor()) if self.dtype.is_float else self._fresh()

    def round(self) -> Self:
        """Rounded to the nearest integer, halves to even."""
        return self._unary("round")

    def sign(self) -> Self:
        """-1, 0 or 1 (NaN for NaN)."""
        if self.dtype.kind == "uint":
            return (self > 0)._as(self.dtype)
        signs = (self > 0)._as(self.dtype) - (self < 0)._as(self.dtype)
        # NaN has the derivative of other values; a shader's compiler may replace x * 0 by 0.
        return self.isnan().where(self * 0.0 + math.nan, signs) if self.dtype.is_float else signs

    def sqrt(self) -> Self:
        """The square root (NaN for negatives)."""
        return self._real("sqrt")

    def _length(self) -> Self:
        """The square root of a sum of squares. Its slope at 0 is 0 instead of infinite: multiplied
        by the slope of the sum, which is 0 there, it gives no NaN."""
        none = self._binary("equal", 0)
        return none.where(0.0, none.where(1.0, self).sqrt())

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return 1.0 / self.sqrt()

    def square(self) -> Self:
        """x * x."""
        return self * self

    def reciprocal(self) -> Self:
        """1 / x."""
        return 1.0 / self

    def exp(self) -> Self:
        """e to the x."""
        return self._real("exp")

    def log(self) -> Self:
        """The natural logarithm."""
        return self._real("log")

    def sin(self) -> Self:
        """The sine of radians."""
        return self._real("sin")

    def cos(self) -> Self:
        """The cosine of radians."""
        return self._real("cos")

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._real("tanh")

    def erf(self) -> Self:
        """The error function."""
        return self._real("erf")

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._as(default_float(self.dtype))._call("sigmoid")

    def relu(self) -> Self:
        """max(x, 0)."""
        return self._call("relu") if self.dtype.is_float else self.maximum(0)

    def gelu(self, approximate: str = "none") -> Self:
        """x Phi(x), Phi the normal distribution function, or approximate="tanh"."""
        return self._call("gelu", approximate=approximate)

    def silu(self) -> Self:
        """x sigmoid(x)."""
        return self._call("silu")

    def _call(self, name: str, *others: TensorBase, **params: Any) -> Self:
        out = self._wrap(ops.call(name, *values(name, (self, *others)), **params))
        out._weak = self._weak and all(t._weak for t in others)
        return out

    def isnan(self) -> Self:
        """True where the value is not a number (bool)."""
        return self._unary("isnan")

    def maximum(self, other: Operand) -> Self:
        """The larger of two (NaN when either is)."""
        return self._binary("maximum", other)

    def minimum(self, other: Operand) -> Self:
        """The smaller of two (NaN when either is)."""
        return self._binary("minimum", other)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Self:
        """Held within [min, max]; None leaves that side open. The gradient is whole on a bound."""
        out = self if min is None else self._bounded("clip_low", "maximum", min)
        return out if max is None else out._bounded("clip_high", "minimum", max)

    def _bounded(self, name: str, op: str, bound: Operand) -> Self:
        x, y = self._pair("clip", bound)
        return x._call(name, y) if x.dtype.is_float else run(self, op, x, y)

    def where(self, a: Operand, b: Operand) -> Self:
        """a where this (bool) tensor holds, else b."""
        if self.dtype != dt.bool_:
            raise DTypeError(
                f"where: the condition is {self.dtype.name}, expected bool; make it bool by a "
                f"comparison, like x > 0"
            )
        x, y = self._coerce("where", a), self._coerce("where", b)
        if not isinstance(x, TensorBase) and not isinstance(y, TensorBase):
            number = float if isinstance(x, float) or isinstance(y, float) else type(x)
            d = dt.float32 if number is float else dt.int32 if number is int else dt.bool_
            x, y = self._full(x, d, self.shape), self._full(y, d, self.shape)
        elif isinstance(x, TensorBase):
            x, y = x._pair("where", y)
        else:
            assert isinstance(y, TensorBase)
            y, x = y._pair("where", x)
        shape = broadcast_shapes("where", self.shape, x.shape)
        parts = (self._to_shape(shape), x._to_shape(shape), y._to_shape(shape))
        return run(self, "where", *parts)

    # -- dtype

    def cast(self, dtype: DType | str | None) -> Self:
        """The values as another dtype (None leaves theirs): floats truncate and saturate to
        integers (NaN gives 0), integers wrap, to bool is != 0. This tensor where it has that dtype.
        """
        return self if dtype is None else self._as(as_dtype(dtype))

    def astype(self, dtype: DType | str | None) -> Self:
        """Converts as `cast` does, but always returns a new tensor, as NumPy's astype does."""
        return self.cast(dtype)._fresh()


def _comparable(other: object) -> bool:
    """True if == compares with `other` element by element; it is False for any other object (None,
    a string)."""
    known = isinstance(other, TensorBase | bool | int | float | np.ndarray | np.generic)
    return known or is_foreign(other)
