"""Typing rules of Kernel IR expressions: what each node asks of its operands and gives back."""

from __future__ import annotations

from collections.abc import Callable

from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Expr, Type

_BITS32 = (dt.float32, dt.int32, dt.uint32)
_FLOAT_UNARY = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "keep")
_INT_UNARY = ("neg", "abs", "not")
_FLOAT_BINARY = ("add", "sub", "mul", "div", "min", "max", *ir.COMPARE)
_BOOL_BINARY = ("and", "or", "xor", "eq", "ne")


def expr_problem(e: Expr) -> str | None:
    """Returns the fault in the types of one node (leaving out its operands), or None."""
    rule = _RULES.get(type(e))
    if rule is None:
        return f"{type(e).__name__} is not an expression"
    lanes = e.type.lanes
    if lanes < 1 or lanes & (lanes - 1):
        return f"{lanes} lanes; a lane count is a power of two"
    return rule(e)


def _expect(given: Type, expected: Type) -> str | None:
    return None if given == expected else f"has type {given}, but it must be {expected}"


def _const(e: ir.Const) -> str | None:
    dtype = e.type.dtype
    if dtype not in dt.DEVICE:
        return f"no device holds {dtype}"
    if dtype.is_int:
        bits = 8 * dtype.itemsize
        low, high = (0, 1 << bits) if dtype.kind == "uint" else (-(1 << bits - 1), 1 << bits - 1)
        if not isinstance(e.value, int) or not low <= e.value < high:
            return f"{e.value!r} is not a value of {dtype}"
    return None


def _leaf(e: Expr) -> str | None:
    if isinstance(e, ir.Param) and e.slot < 0:
        return f"scalar slot {e.slot}"
    if isinstance(e, ir.Axis) and (e.dim not in (0, 1, 2) or e.kind not in ("group", "thread")):
        return "an axis is group or thread 0, 1 or 2"
    return _expect(e.type, ir.I32)


def _narrow(dtype: dt.DType) -> str | None:
    if dtype in (dt.float16, dt.bfloat16):
        return f"arithmetic on {dtype}: cast to float32 first, it is a storage type"
    return None


def _unary(e: ir.Unary) -> str | None:
    dtype = e.x.type.dtype
    if dtype.is_float:
        allowed: tuple[str, ...] = _FLOAT_UNARY
    else:
        allowed = ("not",) if dtype.kind == "bool" else _INT_UNARY
    if e.op not in allowed:
        return f"no {e.op} on {dtype}"
    return _narrow(dtype) or _expect(e.type, e.x.type)


def _binary(e: ir.Binary) -> str | None:
    if e.a.type != e.b.type:
        return f"operands differ: {e.a.type} and {e.b.type}"
    dtype = e.a.type.dtype
    if dtype.is_float:
        allowed: tuple[str, ...] = _FLOAT_BINARY
    else:
        allowed = _BOOL_BINARY if dtype.kind == "bool" else ir.BINARY
    if e.op not in allowed:
        return f"no {e.op} on {dtype}"
    expected = Type(dt.bool_, e.a.type.lanes) if e.op in ir.COMPARE else e.a.type
    return _narrow(dtype) or _expect(e.type, expected)


def _fma(e: ir.Fma) -> str | None:
    if e.type.dtype != dt.float32:
        return f"fma is for float32, not {e.type.dtype}"
    return next((p for x in (e.a, e.b, e.c) if (p := _expect(x.type, e.type))), None)


def _select(e: ir.Select) -> str | None:
    if e.cond.type != Type(dt.bool_, e.type.lanes):
        return f"the condition is {e.cond.type} for values of {e.type}"
    return _expect(e.a.type, e.type) or _expect(e.b.type, e.type)


def _cast(e: ir.Cast) -> str | None:
    if e.type.dtype not in dt.DEVICE:
        return f"no device holds {e.type.dtype}"
    return None if e.x.type.lanes == e.type.lanes else f"a cast of {e.x.type} to {e.type}"


def _bitcast(e: ir.Bitcast) -> str | None:
    x, y = e.x.type, e.type
    if x.dtype in _BITS32 and y.dtype in _BITS32 and x.lanes == y.lanes:
        return None
    whole = dt.bool_ not in (x.dtype, y.dtype) and max(x.lanes, y.lanes) > 1
    same = x.lanes * x.dtype.itemsize == y.lanes * y.dtype.itemsize
    return (
        None
        if whole and same
        else f"a bitcast of {x} to {y}: neither 32-bit lanes nor vectors of as many bits"
    )


def _load(e: ir.Load) -> str | None:
    return _expect(e.type, Type(e.source.dtype, e.type.lanes))


def _vec(e: ir.Vec) -> str | None:
    kinds = [a.type for a in e.args]
    if e.op == "lookup":
        whole = len(kinds) == 2 and min(t.lanes for t in kinds) > 1
        same = whole and kinds[0].dtype == e.type.dtype == dt.float32
        goal = Type(dt.int32, e.type.lanes)
        return _expect(kinds[1], goal) if same else f"lookup of {kinds} for {e.type}"
    if any(t.dtype != e.type.dtype for t in kinds):
        return f"lanes of {kinds} for {e.type}"
    count = {"splat": (1,), "iota": (0,), "extract": (1,), "shuffle": (1, 2), "any": (1,)}
    if e.op == "pack":
        if len(kinds) != e.type.lanes or any(t.lanes != 1 for t in kinds):
            return f"pack of {len(kinds)} values into {e.type}"
        return None
    if len(kinds) not in count.get(e.op, ()):
        return f"no {e.op} of {len(kinds)} values"
    if e.op == "splat":
        return None if kinds[0].lanes == 1 else f"splat of {kinds[0]}"
    if e.op == "any":
        return _expect(e.type, ir.BOOL)
    if e.op == "iota":
        return _expect(e.type, Type(dt.int32, e.type.lanes))
    if len({t.lanes for t in kinds}) != 1:
        return f"shuffle of {kinds}"
    total = kinds[0].lanes * len(kinds)
    if len(e.lanes) != e.type.lanes or any(not 0 <= i < total for i in e.lanes):
        return f"lanes {e.lanes} of {total} for {e.type}"
    return None


_DOTS = {
    # op: accumulator, products per lane, dtypes of a, dtype of b
    "dot2": (dt.float32, 2, (dt.bfloat16,), dt.bfloat16),
    "dot4": (dt.int32, 4, (dt.uint8, dt.int8), dt.int8),
    "dot2_int16": (dt.int32, 1, (dt.int32,), dt.int32),  # whose lanes are pairs
}


def _collective(e: ir.Collective) -> str | None:
    if e.op in _DOTS:
        if len(e.args) != 3:
            return f"{e.op} of {len(e.args)} values"
        acc, per, of_a, of_b = _DOTS[e.op]
        a, b = e.args[1].type, e.args[2].type
        lanes = e.type.lanes * per
        if a.dtype not in of_a or b.dtype != of_b or (a.lanes, b.lanes) != (lanes, lanes):
            return f"{e.op} of {a} and {b} for {e.type}"
        return _expect(e.type, Type(acc, e.type.lanes)) or _expect(e.args[0].type, e.type)
    if e.op not in ir.COLLECTIVE or len(e.args) != 1:
        return f"no collective {e.op} of {len(e.args)} values"
    if e.type.dtype not in _BITS32:
        return f"{e.op} of {e.type}; it takes 32-bit types"
    if e.op == "subgroup_xor" and e.attr < 0:
        return f"subgroup_xor with {e.attr}"
    return _expect(e.args[0].type, e.type)


_RULES: dict[type, Callable[..., str | None]] = {
    ir.Const: _const, ir.Param: _leaf, ir.Axis: _leaf, ir.Var: lambda e: None, ir.Unary: _unary,
    ir.Binary: _binary, ir.Fma: _fma, ir.Select: _select, ir.Cast: _cast, ir.Bitcast: _bitcast,
    ir.Load: _load, ir.Vec: _vec, ir.Collective: _collective,
}  # fmt: skip
