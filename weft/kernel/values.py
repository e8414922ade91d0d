"""Values of the kernel language: what a thread computes, with Python's operators.

Each operation is bound to a name as it is written (Let), so a value may be used many times and
always means what it was. Conditions stay expressions over such names: where they are used, guards
and dialects see the comparison itself.
"""

from __future__ import annotations

import numbers
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, TraceError, UsageError
from weft.kernel import expr as kb, ir
from weft.kernel.ir import Expr, Type

if TYPE_CHECKING:
    from weft.kernel.language import KernelWriter

Operand = Any  # a Value or a Python number
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "min": "minimum",
    "max": "maximum",
}  # fmt: skip
_BITS = ("and", "or", "xor")
_INTEGERS = ("rem", "shl", "shr")


def fresh(e: Expr) -> Expr:
    """A copy of a condition: no expression object may be used in two places."""
    if isinstance(e, ir.Binary):
        return replace(e, a=fresh(e.a), b=fresh(e.b))
    return replace(e, x=fresh(e.x)) if isinstance(e, ir.Unary) else e


class Value:
    """A number that each thread has for itself, or several in lanes.

    Operators: + - * / // % & | ^ ~ << >> < <= > >= == != and unary -. A Python number takes the
    dtype of the other side. // and % are of integers and truncate toward zero; / is of floats.
    """

    __slots__ = ("_expr", "writer")
    __array_ufunc__ = None  # NumPy numbers leave mixed expressions to Value

    def __init__(self, writer: KernelWriter, expr: Expr) -> None:
        self._expr, self.writer = expr, writer

    @property
    def expr(self) -> Expr:
        """The expression, for one use."""
        return fresh(self._expr)

    @property
    def dtype(self) -> DType:
        """The dtype of each lane: float32, int32, uint32 or bool."""
        return self._expr.type.dtype

    @property
    def lanes(self) -> int:
        """The number of lanes; 1 for a plain value."""
        return self._expr.type.lanes

    def cast(self, dtype: Any) -> Value:
        """The value as float32, int32, uint32 or bool. Floats truncate and saturate to integers.
        Narrower dtypes are for memory only: what is stored there is cast by the store."""
        wanted = as_dtype(dtype)
        if wanted not in COMPUTED:
            names = ", ".join(d.name for d in COMPUTED)
            raise DTypeError(f"cast to {wanted.name}: a kernel computes in {names}")
        return self.writer.value(kb.cast(self.expr, wanted))

    def lane(self, number: int) -> Value:
        """One lane as a plain value."""
        if not 0 <= number < self.lanes:
            raise UsageError(f"lane({number}) of a value of {self.lanes} lanes")
        return self.writer.value(kb.extract(self.expr, number))

    def __neg__(self) -> Value:
        if self.dtype.kind in ("bool", "uint"):
            raise DTypeError(f"- of {self!r}; cast it first")
        return self.writer.value(kb.unary("neg", self.expr))

    def __invert__(self) -> Value:
        if self.dtype.is_float:
            raise DTypeError(f"~ of {self!r}; it is for integers and conditions")
        return self.writer.value(kb.not_(self.expr))

    def __floordiv__(self, other: Operand) -> Value:
        return _divided(self.writer, self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return _divided(self.writer, other, self)

    def __eq__(self, other: Operand) -> Value:  # type: ignore[override]
        return arithmetic(self.writer, "eq", self, other)

    def __ne__(self, other: Operand) -> Value:  # type: ignore[override]
        return arithmetic(self.writer, "ne", self, other)

    __hash__ = object.__hash__

    if TYPE_CHECKING:

        def _with(self, other: Operand) -> Value: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _with
        __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __lt__ = __le__ = __gt__ = __ge__ = _with
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _with
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _with

    def __bool__(self) -> NoReturn:
        raise TraceError(
            "a condition of a kernel is known only while it runs: use `with k.when(condition):`, "
            "k.where(condition, a, b), and & | ~ for and, or, not"
        )

    def __index__(self) -> NoReturn:
        raise TraceError(
            f"{self!r} is known only while the kernel runs: use `with k.loop(n) as i:` for "
            "range(n); shapes and numbers of threads are Python numbers"
        )

    __int__ = __float__ = __index__

    def __iter__(self) -> NoReturn:
        raise TraceError(f"{self!r} is one value of a kernel: it has lanes, which .lane(i) gives")

    def __repr__(self) -> str:
        return f"<kernel value: {self._expr.type!r}>"


class Variable(Value):
    """A value that can be set again: `total.set(x)` or `total += x`."""

    __slots__ = ()

    def set(self, value: Operand) -> None:
        """Gives the variable another value, of its own dtype."""
        b, var = self.writer.builder, self._expr
        expr = operand(value, var.type)
        if expr.type.dtype is not var.type.dtype:
            raise DTypeError(
                f"a {self.dtype.name} variable was given {value!r}; use .cast({self.dtype.name!r})"
            )
        b.assign(var, expr)

    def __iadd__(self, other: Operand) -> Variable:  # type: ignore[misc]
        return self._moved("add", other)

    def __isub__(self, other: Operand) -> Variable:  # type: ignore[misc]
        return self._moved("sub", other)

    def __imul__(self, other: Operand) -> Variable:  # type: ignore[misc]
        return self._moved("mul", other)

    def _moved(self, op: str, other: Operand) -> Variable:
        self.set(arithmetic(self.writer, op, self, other))
        return self


COMPUTED = (dt.float32, dt.int32, dt.uint32, dt.bool_)


def operand(value: Operand, like: Type) -> Expr:
    """The expression of a value, or of a number as a constant of `like`. Raises DTypeError for a
    number that is none."""
    if isinstance(value, Value):
        return value.expr
    if isinstance(value, np.generic):
        value = value.item()
    dtype = like.dtype
    if not isinstance(value, numbers.Real):
        raise DTypeError(f"a kernel computes with its values and numbers, not {_shown(value)}")
    if isinstance(value, bool) != (dtype is dt.bool_):
        raise DTypeError(f"{value!r} with {dtype.name}; expected a {dtype.name}")
    if dtype.is_float:
        return kb.const(float(value), Type(dtype))
    if not isinstance(value, int):
        raise DTypeError(f"{value!r} with {dtype.name}; cast the value first: .cast(weft.float32)")
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            raise DTypeError(f"{value:,} does not fit {dtype.name} ({info.min:,}..{info.max:,})")
    return kb.const(value, Type(dtype))


def _shown(value: object) -> str:
    kind = type(value).__name__
    return f"a {kind} from outside (make it an argument)" if hasattr(value, "shape") else kind


def pair(what: str, a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Two operands of one dtype. Raises DTypeError."""
    if isinstance(a, Value):
        x = a.expr
        y = operand(b, x.type)
    else:
        like = ir.I32 if isinstance(a, int) and isinstance(b, int) else ir.F32
        y = operand(b, like)
        x = operand(a, y.type)
    if x.type.dtype is not y.type.dtype:
        raise DTypeError(f"{what}: {x.type.dtype.name} with {y.type.dtype.name}; cast one first")
    if x.type.lanes != y.type.lanes and 1 not in (x.type.lanes, y.type.lanes):
        raise UsageError(f"{what}: {x.type.lanes} lanes with {y.type.lanes}")
    return x, y


def arithmetic(writer: KernelWriter, op: str, a: Operand, b: Operand) -> Value:
    """`a op b`, checked. Raises DTypeError for dtypes that the operation is not for."""
    sign = _SIGNS[op]
    x, y = pair(sign, a, b)
    dtype = x.type.dtype
    if op in _INTEGERS and not dtype.is_int:
        raise DTypeError(f"{sign} of {dtype.name}: it is for integers")
    if op in _BITS and dtype.is_float:
        raise DTypeError(f"{sign} of {dtype.name}: it is for integers and conditions")
    if dtype is dt.bool_ and op not in (*_BITS, "eq", "ne"):
        raise DTypeError(f"{sign} of conditions; cast them or use & | ^ ~")
    if op == "div" and dtype.is_int:
        raise DTypeError(f"/ of {dtype.name}: use // for integers, or cast to float32")
    if op == "rem":
        _not_zero(sign, y)
    if op in ir.COMPARE:  # it is written where it is used: a variable may have changed by then
        x, y = writer.builder.let(x), writer.builder.let(y)
    return writer.value(kb.binary(op, x, y))


def _divided(writer: KernelWriter, a: Operand, b: Operand) -> Value:
    x, y = pair("//", a, b)
    if not x.type.dtype.is_int:
        raise DTypeError(f"// of {x.type.dtype.name}: it is for integers; use k.floor(a / b)")
    _not_zero("//", y)
    return writer.value(kb.binary("div", x, y))


def _not_zero(sign: str, divisor: Expr) -> None:
    if kb.is_const(divisor, 0):
        raise UsageError(f"{sign} by zero")


def _operator(op: str, swap: bool = False) -> Any:
    if swap:
        return lambda self, other: arithmetic(self.writer, op, other, self)
    return lambda self, other: arithmetic(self.writer, op, self, other)


for _name, _op in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "mod": "rem", "and": "and",
    "or": "or", "xor": "xor", "lshift": "shl", "rshift": "shr",
}.items():  # fmt: skip
    setattr(Value, f"__{_name}__", _operator(_op))
    setattr(Value, f"__r{_name}__", _operator(_op, swap=True))
for _op in ("lt", "le"):
    setattr(Value, f"__{_op}__", _operator(_op))
    setattr(Value, f"__{_op.replace('l', 'g')}__", _operator(_op, swap=True))
