"""The maths of the kernel language: the formulas that weft's own kernels use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core import dtypes as dt
from weft.core.errors import DTypeError
from weft.kernel import expr as kb, math as maths
from weft.kernel.ir import F32, I32, Expr, Type
from weft.kernel.places import condition
from weft.kernel.values import Operand, Value, operand, pair

if TYPE_CHECKING:
    from weft.kernel.builder import Builder


class Formulas:
    """The functions of values; a KernelWriter has them."""

    if TYPE_CHECKING:

        @property
        def builder(self) -> Builder: ...

        def value(self, expr: Expr) -> Value: ...

    def where(self, cond: Operand, a: Operand, b: Operand) -> Value:
        """`a` where the condition holds, else `b`."""
        x, y = pair("where", a, b)
        return self.value(kb.select(condition(cond), x, y))

    def maximum(self, a: Operand, b: Operand) -> Value:
        """The larger of two; NaN where either is."""
        return self._extreme("max", maths.nan_max, a, b)

    def minimum(self, a: Operand, b: Operand) -> Value:
        """The smaller of two; NaN where either is."""
        return self._extreme("min", maths.nan_min, a, b)

    def _extreme(self, op: str, of_floats: Callable[..., Expr], a: Operand, b: Operand) -> Value:
        x, y = pair(f"{op}imum", a, b)
        if not x.type.dtype.is_float:
            return self.value(kb.binary(op, x, y))
        return self.value(of_floats(self.builder, x, y))

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """a * b + c of float32, rounded once where the target can."""
        return self.value(kb.fma(*(self._float("fma", x) for x in (a, b, c))))

    def pow(self, a: Operand, b: Operand) -> Value:
        """a to the power of b (float32)."""
        x, y = (self.builder.let(self._float("pow", v)) for v in (a, b))
        lanes = max(x.type.lanes, y.type.lanes)
        return self.value(maths.pow_(self.builder, kb.splat(x, lanes), kb.splat(y, lanes)))

    def exp(self, x: Operand) -> Value:
        """e^x (float32), as are the functions below."""
        return self._math("exp", maths.exp, x)

    def log(self, x: Operand) -> Value:
        """The natural logarithm."""
        return self._math("log", maths.log, x)

    def sin(self, x: Operand) -> Value:
        """The sine of an angle in radians."""
        return self._math("sin", maths.sin, x)

    def cos(self, x: Operand) -> Value:
        """The cosine of an angle in radians."""
        return self._math("cos", maths.cos, x)

    def tanh(self, x: Operand) -> Value:
        """The hyperbolic tangent."""
        return self._math("tanh", maths.tanh, x)

    def erf(self, x: Operand) -> Value:
        """The error function."""
        return self._math("erf", maths.erf, x)

    def sigmoid(self, x: Operand) -> Value:
        """1 / (1 + e^-x)."""
        return self._math("sigmoid", maths.sigmoid, x)

    def sqrt(self, x: Operand) -> Value:
        """The square root."""
        return self.value(kb.unary("sqrt", self._float("sqrt", x)))

    def floor(self, x: Operand) -> Value:
        """The largest whole number that is not above x."""
        return self.value(kb.unary("floor", self._float("floor", x)))

    def ceil(self, x: Operand) -> Value:
        """The smallest whole number that is not below x."""
        return self.value(kb.unary("ceil", self._float("ceil", x)))

    def round(self, x: Operand) -> Value:
        """The nearest whole number; halves go to the even one."""
        return self.value(kb.unary("rint", self._float("round", x)))

    def abs(self, x: Operand) -> Value:
        """The absolute value, of float32 or int32."""
        found = operand(x, natural(x))
        if found.type.dtype.kind not in ("float", "int"):
            raise DTypeError(f"abs of {found.type.dtype.name}; it is for float32 and int32")
        return self.value(kb.unary("abs", found))

    def _math(self, name: str, formula: Callable[[Builder, Expr], Expr], x: Operand) -> Value:
        return self.value(formula(self.builder, self.builder.let(self._float(name, x))))

    def _float(self, name: str, x: Operand) -> Expr:
        found = operand(x, F32)
        if not found.type.dtype.is_float:
            raise DTypeError(f"{name} of {found.type.dtype.name}; cast it: x.cast(weft.float32)")
        return found


def natural(value: Operand) -> Type:
    """The type of a value; of a Python number float32, or int32 for integers."""
    if isinstance(value, Value):
        return Type(value.dtype, value.lanes)
    if isinstance(value, bool):
        return Type(dt.bool_)
    return I32 if isinstance(value, int) else F32
