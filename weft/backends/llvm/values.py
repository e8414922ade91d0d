"""Expressions of arithmetic: each becomes a few lines of LLVM IR and an operand."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.lanes import shuffle, splat
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Expr, Type
from weft.kernel.linear import is_linear
from weft.kernel.rules import Table

_FLOAT_UNARY = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil"}
_FLOAT_UNARY |= {"trunc": "trunc", "rint": "rint"}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_INT_BINARY |= {"shl": "shl"}
_SIGNED = {"div": "sdiv", "rem": "srem", "shr": "ashr", "lt": "slt", "le": "sle"}
_UNSIGNED = {"div": "udiv", "rem": "urem", "shr": "lshr", "lt": "ult", "le": "ule"}


def is_literal(operand: str) -> bool:
    """Is this operand the text of an integer constant?"""
    return operand.lstrip("-").isdigit()


def _var(w: LlvmWriter, x: ir.Var) -> str:
    operand = w.env[x.name]
    if x.name in w.slots:
        return w.emit(f"load {text.register(x.type)}, {w.stack} {operand}")
    return operand


def _axis(w: LlvmWriter, x: ir.Axis) -> str:
    """The index of the group or thread."""
    if x.kind == "thread":
        return "0"
    w.axes.add(x.dim)
    return f"%group{x.dim}"


# -- arithmetic


def _unary(w: LlvmWriter, x: ir.Unary) -> str:
    operand, t, dtype = w.value(x.x), text.register(x.type), x.type.dtype
    if dtype.is_float:
        if dtype != dt.float32:
            raise w.fail(f"{x.op} on {dtype}: compute in float32")
        if x.op == "keep":
            return operand
        if x.op == "neg":
            return w.emit(f"fneg {t} {operand}")
        if x.op == "trunc" and x.type.lanes > 1 and not w.target.to_zero:
            return toward_zero(w, operand, x.type)
        if x.op in _FLOAT_UNARY:
            return w.intrinsic(f"llvm.{_FLOAT_UNARY[x.op]}", x.type, operand)
    elif x.op == "not":
        ones = "true" if dtype.kind == "bool" else "-1"
        full = ones if x.type.lanes == 1 else f"splat ({text.REGISTER[dtype]} {ones})"
        return w.emit(f"xor {t} {operand}, {full}")
    elif x.op == "neg" and dtype.is_int:
        return w.emit(f"sub {t} {text.constant(0, x.type)}, {operand}")
    elif x.op == "abs" and dtype.is_int:
        if dtype.kind == "uint":
            return operand
        name = f"llvm.abs.{text.mangle(text.REGISTER[dtype], x.type.lanes)}"
        return w.call(name, t, [(t, operand), ("i1", "false")])
    raise w.fail(f"no unary {x.op} on {dtype}")


def toward_zero(w: LlvmWriter, x: str, type_: Type) -> str:
    """The integers that floats round to toward zero, by the nearest ones; signs are kept."""
    t, mask = text.register(type_), text.vector("i1", type_.lanes)
    near = w.intrinsic("llvm.rint", type_, x)
    sizes = [w.intrinsic("llvm.fabs", type_, v) for v in (near, x)]
    beyond = w.emit(f"fcmp ogt {t} {sizes[0]}, {sizes[1]}")
    one = w.intrinsic("llvm.copysign", type_, text.constant(1.0, type_), x)
    less = w.emit(f"fsub {t} {near}, {one}")
    found = w.emit(f"select {mask} {beyond}, {t} {less}, {t} {near}")
    return w.intrinsic("llvm.copysign", type_, found, x)


def bitcast(w: LlvmWriter, operand: str, source: Type, goal: Type) -> str:
    """The same bits, the first lane in the lowest ones (of which a big-endian machine thinks
    otherwise)."""
    s, g = text.register(source), text.register(goal)
    if s == g:
        return operand
    n, m = source.lanes, goal.lanes
    if not w.target.swap or n == m:
        return w.emit(f"bitcast {s} {operand} to {g}")
    per = max(n, m) // min(n, m)
    turned = [i - i % per + per - 1 - i % per for i in range(max(n, m))]
    if n > m:
        return w.emit(f"bitcast {s} {shuffle(w, operand, 'poison', s, turned)} to {g}")
    return shuffle(w, w.emit(f"bitcast {s} {operand} to {g}"), "poison", g, turned)


def fused(w: LlvmWriter, type_: Type, a: str, b: str, c: str) -> str:
    """a * b + c, in one rounding where the target has it."""
    if w.target.fused:
        return w.intrinsic("llvm.fma", type_, a, b, c)
    if w.target.madd:
        return _madd(w, type_.lanes, a, b, c)
    product = w.emit(f"fmul {text.register(type_)} {a}, {b}")
    return w.emit(f"fadd {text.register(type_)} {product}, {c}")


def _madd(w: LlvmWriter, n: int, *operands: str) -> str:
    """Emits the target's instruction of four lanes, so that a lane has the bits of a scalar."""
    t, four = text.vector("float", n), "<4 x float>"
    if n == 4:
        return w.call(w.target.madd, four, [(four, x) for x in operands])
    if n < 4:
        if n == 1:
            wide = [splat(w, x, Type(dt.float32, 4)) for x in operands]
        else:
            wide = [shuffle(w, x, "poison", t, [*range(n), *[0] * (4 - n)]) for x in operands]
        found = _madd(w, 4, *wide)
        if n == 1:
            return w.emit(f"extractelement {four} {found}, i32 0")
        return shuffle(w, found, "poison", four, range(n))
    halves = [
        _madd(w, n // 2, *(shuffle(w, x, "poison", t, lanes) for x in operands))
        for lanes in (range(n // 2), range(n // 2, n))
    ]
    return shuffle(w, halves[0], halves[1], text.vector("float", n // 2), range(n))


def _min_max(w: LlvmWriter, op: str, type_: Type, a: str, b: str) -> str:
    """IEEE 754-2008 minNum or maxNum."""
    if w.target.min_max:
        return w.intrinsic(f"llvm.{op}num", type_, a, b)
    t, i1 = text.register(type_), text.vector("i1", type_.lanes)
    first = w.emit(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {a}, {b}")
    alone = w.emit(f"fcmp uno {t} {b}, {b}")
    chosen = w.emit(f"or {i1} {first}, {alone}")
    return w.emit(f"select {i1} {chosen}, {t} {a}, {t} {b}")


def _binary(w: LlvmWriter, x: ir.Binary) -> str:
    a, b = w.value(x.a), w.value(x.b)
    type_, op = x.a.type, x.op
    dtype, t = type_.dtype, text.register(x.a.type)
    if dtype.is_float:
        if dtype != dt.float32:
            raise w.fail(f"{op} on {dtype}: compute in float32")
        if op in ("min", "max"):
            return _min_max(w, op, type_, a, b)
        if op in _FLOAT_COMPARE:
            return w.emit(f"fcmp {_FLOAT_COMPARE[op]} {t} {a}, {b}")
        if op in _FLOAT_BINARY:
            return w.emit(f"{_FLOAT_BINARY[op]} {t} {a}, {b}")
        raise w.fail(f"no binary {op} on {dtype}")
    if dtype == dt.int32 and type_.lanes == 1:
        folded = _fold(op, a, b)
        if folded is not None:
            return folded
    if dtype.kind == "bool" and op in ("min", "max"):
        op = {"min": "and", "max": "or"}[op]
    signed = dtype.kind == "int"
    if op in ("min", "max"):
        return w.intrinsic(f"llvm.{'s' if signed else 'u'}{op}", type_, a, b)
    if op in ("eq", "ne"):
        return w.emit(f"icmp {op} {t} {a}, {b}")
    if op in _INT_BINARY:
        return w.emit(f"{_INT_BINARY[op]} {t} {a}, {b}")
    name = (_SIGNED if signed else _UNSIGNED).get(op)
    if name is None:
        raise w.fail(f"no binary {op} on {dtype}")
    if op in ("div", "rem") and not (isinstance(x.b, ir.Const) and x.b.value not in (0, -1)):
        b = _divisor(w, a, b, type_)
    return w.emit(f"{'icmp ' if op in ('lt', 'le') else ''}{name} {t} {a}, {b}")


def _divisor(w: LlvmWriter, a: str, b: str, type_: Type) -> str:
    """1 in place of a divisor that would stop the process: 0 (its quotient is undefined, but
    lanes that a mask leaves out may hold it), and -1 under the least integer (which wraps)."""
    t, i1 = text.register(type_), text.vector("i1", type_.lanes)
    one = text.constant(1, type_)
    bad = w.emit(f"icmp eq {t} {b}, {text.constant(0, type_)}")
    if type_.dtype.kind == "int":
        least = text.constant(-(1 << (type_.dtype.itemsize * 8 - 1)), type_)
        negative = w.emit(f"icmp eq {t} {b}, {text.constant(-1, type_)}")
        low = w.emit(f"icmp eq {t} {a}, {least}")
        wraps = w.emit(f"and {i1} {negative}, {low}")
        bad = w.emit(f"or {i1} {bad}, {wraps}")
    return w.emit(f"select {i1} {bad}, {t} {one}, {t} {b}")


def _select(w: LlvmWriter, x: ir.Select) -> str:
    cond, a, b = w.value(x.cond), w.value(x.a), w.value(x.b)
    if cond in ("true", "false"):
        return a if cond == "true" else b
    c, t = text.register(x.cond.type), text.register(x.type)
    return w.emit(f"select {c} {cond}, {t} {a}, {t} {b}")


# -- indices


def wide(w: LlvmWriter, x: Expr) -> str:
    """Emits the scalar int32 `x`, which forms an address, in the target's index type (64 bits
    on a CPU): such arithmetic does not overflow int32, so additions and products may be done
    in 64."""
    t = w.target.index
    if isinstance(x, ir.Var) and x.name in w.wides:
        return w.wides[x.name]
    if is_linear(x):
        assert isinstance(x, ir.Binary)
        a, b = wide(w, x.a), wide(w, x.b)
        return _fold(x.op, a, b) or w.emit(f"{_INT_BINARY[x.op]} nsw {t} {a}, {b}")
    return widened(w, w.value(x))


def widened(w: LlvmWriter, operand: str) -> str:
    """An int32 operand in the target's index type."""
    if w.target.index == "i32" or is_literal(operand):
        return operand
    return w.emit(f"sext i32 {operand} to i64")


def _fold(op: str, a: str, b: str) -> str | None:
    """int32 arithmetic on literals, and neutral elements, so that unrolled code has constant
    indices from the start."""
    if is_literal(a) and is_literal(b) and op in ("add", "sub", "mul"):
        x, y = int(a), int(b)
        result = {"add": x + y, "sub": x - y, "mul": x * y}[op]
        return str(result) if -(1 << 31) <= result < 1 << 31 else None
    if op == "add" and a == "0":
        return b
    if op in ("add", "sub") and b == "0":
        return a
    if op == "mul" and "0" in (a, b):
        return "0"
    if op == "mul" and "1" in (a, b):
        return b if a == "1" else a
    return None


RULES: Table = {
    ir.Const: lambda w, x: text.constant(x.value, x.type), ir.Var: _var,
    ir.Param: lambda w, x: w.params.setdefault(x.slot, f"%param{x.slot}"), ir.Axis: _axis,
    ir.Unary: _unary, ir.Binary: _binary, ir.Select: _select,
    ir.Fma: lambda w, x: fused(w, x.type, w.value(x.a), w.value(x.b), w.value(x.c)),
    ir.Bitcast: lambda w, x: bitcast(w, w.value(x.x), x.x.type, x.type),
}  # fmt: skip
