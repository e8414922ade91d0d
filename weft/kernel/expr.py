"""Expressions of kernels: operators with constant folding.

Python numbers become constants of the other side's type; a scalar meets a vector by splatting. An
expression used twice must be bound with `Builder.let` first: the verifier insists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import KernelError, LimitError
from weft.kernel import ir
from weft.kernel.ir import BOOL, F32, I32, Expr, Type

Value = Expr | int | float | bool
_I32 = (-(1 << 31), (1 << 31) - 1)


def const(value: float | int | bool, type_: Type = I32) -> ir.Const:
    """A literal of the given type (every lane the same). Raises LimitError for an extent or index
    that int32 does not hold."""
    if type_.dtype == dt.int32 and not _I32[0] <= value <= _I32[1]:
        raise LimitError(
            f"an index over {value:,}; 32 bits count at most {_I32[1]:,}: split the array"
        )
    return ir.Const(value, type_)


def as_expr(value: Value, like: Type = I32) -> Expr:
    """A Python number as a constant of `like`; expressions pass through."""
    return value if isinstance(value, Expr) else const(value, like)


def is_const(x: Expr, value: float | int | None = None) -> bool:
    return isinstance(x, ir.Const) and (value is None or x.value == value)


def splat(x: Expr, lanes: int) -> Expr:
    """A scalar in every lane."""
    if x.type.lanes == lanes:
        return x
    if x.type.lanes != 1:
        raise KernelError(f"cannot splat {x.type} to {lanes} lanes")
    type_ = Type(x.type.dtype, lanes)
    return ir.Const(x.value, type_) if isinstance(x, ir.Const) else ir.Vec("splat", (x,), type_)


def _match(a: Value, b: Value) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        b = as_expr(b, a.type)
    elif isinstance(b, Expr):
        a = as_expr(a, b.type)
    else:
        raise KernelError(f"no expression among {a!r}, {b!r}")
    assert isinstance(a, Expr) and isinstance(b, Expr)
    lanes = max(a.type.lanes, b.type.lanes)
    a, b = splat(a, lanes), splat(b, lanes)
    if a.type != b.type:
        raise KernelError(f"operands differ: {a.type} and {b.type}; cast one")
    return a, b


def _wrap(value: int, dtype: DType) -> int:
    if dtype.kind == "bool":
        return int(bool(value))
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value


def _fold_int(op: str, a: int, b: int, dtype: DType) -> int | None:
    if op in ("div", "rem") and b == 0:
        return None
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if op in ("div", "rem") else 0
    table: dict[str, Callable[[], int]] = {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b,
        "div": lambda: quotient, "rem": lambda: a - quotient * b,
        "min": lambda: min(a, b), "max": lambda: max(a, b),
        "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b,
        "shl": lambda: a << b, "shr": lambda: a >> b,
        "lt": lambda: a < b, "le": lambda: a <= b, "eq": lambda: a == b, "ne": lambda: a != b,
    }  # fmt: skip
    result = int(table[op]())
    return result if op in ir.COMPARE else _wrap(result, dtype)


def binary(op: str, a: Value, b: Value) -> Expr:
    """`a op b` lane by lane, folding integer constants and neutral elements."""
    x, y = _match(a, b)
    type_ = Type(dt.bool_, x.type.lanes) if op in ir.COMPARE else x.type
    if not x.type.dtype.is_float:
        if isinstance(x, ir.Const) and isinstance(y, ir.Const):
            folded = _fold_int(op, int(x.value), int(y.value), x.type.dtype)
            if folded is not None:
                return ir.Const(folded if type_.dtype != dt.bool_ else bool(folded), type_)
        if op in ("add", "mul") and isinstance(x, ir.Const):
            x, y = y, x
        if is_const(y, 0) and op in ("add", "sub", "or", "xor", "shl", "shr"):
            return x
        if is_const(y, 0) and op in ("mul", "and"):
            return y
        if is_const(y, 1) and op in ("mul", "div"):
            return x
        if is_const(y, 1) and op == "rem":
            return ir.Const(0, type_)
    return ir.Binary(op, x, y, type_)


def unary(op: str, x: Expr) -> Expr:
    return ir.Unary(op, x, x.type)


def fma(a: Value, b: Value, c: Value) -> Expr:
    """a * b + c with one rounding (f32; a, b, c may mix scalars and vectors)."""
    lanes = max(v.type.lanes for v in (a, b, c) if isinstance(v, Expr))
    a, b, c = (splat(as_expr(v, F32), lanes) for v in (a, b, c))
    return ir.Fma(a, b, c, c.type)


def minimum(a: Value, b: Value) -> Expr:
    return binary("min", a, b)


def maximum(a: Value, b: Value) -> Expr:
    return binary("max", a, b)


def eq(a: Value, b: Value) -> Expr:
    return binary("eq", a, b)


def ne(a: Value, b: Value) -> Expr:
    return binary("ne", a, b)


def not_(x: Expr) -> Expr:
    return ir.Unary("not", x, x.type)


def select(cond: Expr, a: Value, b: Value) -> Expr:
    """a where cond, else b; scalars are splatted to the widest of the three."""
    x, y = _match(a, b)
    lanes = max(cond.type.lanes, x.type.lanes)
    if is_const(cond):
        return splat(x if cond.value else y, lanes)  # type: ignore[attr-defined]
    x, y = splat(x, lanes), splat(y, lanes)
    return ir.Select(splat(cond, lanes), x, y, x.type)


def cast(x: Value, dtype: DType) -> Expr:
    """The value as another dtype, lanes kept (see ir.Cast for the rounding)."""
    if not isinstance(x, Expr):
        return ir.Const(x, Type(dtype))
    if x.type.dtype == dtype:
        return x
    return ir.Cast(x, Type(dtype, x.type.lanes))


def bitcast(x: Expr, dtype: DType) -> Expr:
    """The same bits as lanes of `dtype` (see ir.Bitcast)."""
    lanes = x.type.lanes * x.type.dtype.itemsize // dtype.itemsize
    return x if x.type.dtype == dtype else ir.Bitcast(x, Type(dtype, lanes))


def load(
    source: ir.Buffer | ir.Array,
    index: Value,
    lanes: int = 1,
    mask: Expr | None = None,
) -> Expr:
    """`lanes` consecutive elements from `index`; a vector index gathers."""
    index = as_expr(index)
    type_ = Type(source.dtype, max(lanes, index.type.lanes))
    return ir.Load(source, index, type_, mask)


def iota(lanes: int) -> Expr:
    """0, 1, 2, ... as int32 lanes (a plain 0 for one lane)."""
    return ir.Vec("iota", (), Type(dt.int32, lanes)) if lanes > 1 else ir.Const(0, I32)


def pack(*xs: Expr) -> Expr:
    if len(xs) == 1:
        return xs[0]
    return ir.Vec("pack", xs, Type(xs[0].type.dtype, len(xs)))


def extract(v: Expr, lane: int) -> Expr:
    return v if v.type.lanes == 1 else ir.Vec("extract", (v,), Type(v.type.dtype), (lane,))


def shuffle(lanes: Sequence[int], a: Expr, b: Expr | None = None) -> Expr:
    args = (a,) if b is None else (a, b)
    return ir.Vec("shuffle", args, Type(a.type.dtype, len(lanes)), tuple(lanes))


def lookup(table: Expr, index: Expr) -> Expr:
    """Returns, for each lane of `index` (int32), the lane of `table` (f32) that its lowest bits
    name."""
    return ir.Vec("lookup", (table, index), Type(dt.float32, index.type.lanes))


def any_(v: Expr) -> Expr:
    """Returns a scalar that is true if any lane of v (bool) is, for use as a branch's condition."""
    return v if v.type.lanes == 1 else ir.Vec("any", (v,), BOOL)


def ceil_div(a: Value, b: int) -> Expr | int:
    """(a + b - 1) // b for a non-negative `a`; stays a Python int when `a` is one."""
    if isinstance(a, int):
        return -(-a // b)
    assert isinstance(a, Expr)
    return (a + (b - 1)) // b


def _operator(op: str, swap: bool = False):  # type: ignore[no-untyped-def]
    if swap:
        return lambda self, other: binary(op, other, self)
    return lambda self, other: binary(op, self, other)


for _name, _op in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "div", "mod": "rem",
    "and": "and", "or": "or", "xor": "xor", "lshift": "shl", "rshift": "shr",
}.items():  # fmt: skip
    setattr(Expr, f"__{_name}__", _operator(_op))
    setattr(Expr, f"__r{_name}__", _operator(_op, swap=True))
for _op in ("lt", "le"):
    setattr(Expr, f"__{_op}__", _operator(_op))
    setattr(Expr, f"__{_op.replace('l', 'g')}__", _operator(_op, swap=True))
setattr(Expr, "__neg__", lambda self: unary("neg", self))  # noqa: B010 (as the others)
