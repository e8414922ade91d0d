"""Expressions of Kernel IR as WGSL text.

Narrow floats are held as f32 (already rounded), i8 as i32, u8 as u32, so that only memory knows
about packing. A `let`, emitted before the statement, binds every text that is needed twice.
"""

from __future__ import annotations

import functools

import numpy as np

from weft.backends.wgsl import constants, memory
from weft.backends.wgsl.analysis import REGISTER
from weft.backends.wgsl.constants import literal
from weft.backends.wgsl.prelude import vec
from weft.backends.wgsl.writer import WgslWriter, chunk, wtype
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.rules import Table

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip
_UNARY = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "round",
          "abs": "abs"}  # fmt: skip
_WRAPS = ("add", "sub", "mul", "shl", "div")


def _const(w: WgslWriter, e: ir.Const) -> list[str]:
    text, n = w.literal(e.value, e.type.dtype), chunk(e.type.lanes)
    return [text if n == 1 else f"{wtype(e.type)}({text})"] * (e.type.lanes // n)


def names(var: ir.Var) -> list[str]:
    """The WGSL names of a variable's chunks."""
    count = var.type.lanes // chunk(var.type.lanes)
    return [f"{var.name}_"] if count == 1 else [f"{var.name}_c{i}" for i in range(count)]


def _axis(w: WgslWriter, e: ir.Axis) -> list[str]:
    w.used.add(f"{e.kind}{e.dim}")
    return [f"w_{e.kind}{e.dim}"]


def _unary(w: WgslWriter, e: ir.Unary) -> list[str]:
    w_no_half(w, e.type)
    if e.op == "neg" and e.type.dtype.kind == "uint":
        zero = f"{wtype(e.type)}(0u)"
        return w.map(e, lambda x: w.wrap(f"({zero} - {x})", e.type), e.x)
    if e.op == "neg":
        return w.map(e, lambda x: w.wrap(f"(-{x})", e.type), e.x)
    if e.op == "not":
        sign = "!" if e.type.dtype is dt.bool_ else "~"
        return w.map(e, lambda x: w.wrap(f"({sign}{x})", e.type), e.x)
    if e.op == "keep":
        return w.map(e, functools.partial(_keep, chunk(e.type.lanes)), e.x)
    return w.map(e, lambda x: w.wrap(f"{_UNARY[e.op]}({x})", e.type), e.x)


def _keep(n: int, x: str) -> str:
    """The same float through an integer operation that changes none of them (the word beyond is a
    NaN's), since compilers of WGSL may move arithmetic about but not across it."""
    words = vec("u32", n)
    return f"bitcast<{vec('f32', n)}>(min(bitcast<{words}>({x}), {words}(0xfffffffeu)))"


def w_no_half(w: WgslWriter, type_: ir.Type) -> None:
    if type_.dtype in (dt.float16, dt.bfloat16):
        raise w.fail(f"arithmetic on {type_}: cast to float32 first")


def _binary(w: WgslWriter, e: ir.Binary) -> list[str]:
    operand, n = e.a.type, chunk(e.a.type.lanes)
    w_no_half(w, operand)
    if e.op in ("min", "max"):
        if operand.dtype.is_float:
            bound = constants.fold(e.b, w.known)
            if bound is not None and not np.isnan(bound).any():
                return _clip(w, e.op, e.a, e.b, n)
            name = w.helper(f"w_{e.op}", n)
            return w.map(e, lambda a, b: f"{name}({a}, {b})", e.a, e.b)
        if operand.dtype is not dt.bool_:
            return w.map(e, lambda a, b: f"{e.op}({a}, {b})", e.a, e.b)
    if e.op in ("shl", "shr"):
        return _shift(w, e, n)
    sign = _INFIX[{"min": "and", "max": "or"}.get(e.op, e.op)]
    if operand.dtype is dt.bool_ and e.op == "xor":
        sign = "!="
    fix = operand if e.op in _WRAPS else ir.F32
    a, b = w.value(e.a), _divisor(w, e) if e.op in ("div", "rem") else w.value(e.b)
    return [w.wrap(f"({x} {sign} {y})", fix) for x, y in zip(a, b, strict=True)]


def _shift(w: WgslWriter, e: ir.Binary, n: int) -> list[str]:
    """A count that is known is printed within the width, one that is not WGSL keeps within."""
    known, count = constants.fold(e.b, w.known), vec("u32", n)
    if known is None:
        counts = [f"{count}({b})" for b in w.value(e.b)]
    else:
        bits = 8 * e.b.type.dtype.itemsize
        counts = w.constant(known.astype(np.uint32) % bits, ir.Type(dt.uint32, e.b.type.lanes))
    pairs = zip(w.value(e.a), counts, strict=True)
    return [w.wrap(f"({a} {_INFIX[e.op]} {b})", e.type) for a, b in pairs]


def _divisor(w: WgslWriter, e: ir.Binary) -> list[str]:
    """The divisor, an integer zero (of a branch that is not taken) kept from the compiler."""
    known, kind = constants.fold(e.b, w.known), REGISTER[e.b.type.dtype.kind]
    if known is None or known.all() or e.b.type.dtype.is_float:
        return w.value(e.b)
    w.used.add("w_one")
    one = f"{vec(kind, chunk(e.b.type.lanes))}({kind}(w_one))"
    return [f"({b} * {one})" for b in w.constant(known, e.b.type)]


def _clip(w: WgslWriter, op: str, a: ir.Expr, b: ir.Expr, n: int) -> list[str]:
    """min or max with a constant: only the other side can be NaN."""
    nan, out = w.helper("w_nan", n), []
    for x, y in zip(w.value(a), w.value(b), strict=True):
        x = w.temp(x)
        out.append(f"select({op}({x}, {y}), {y}, {nan}({x}))")
    return out


def _select(w: WgslWriter, e: ir.Select) -> list[str]:
    known = constants.fold(e.cond, w.known)
    if known is not None and (known.all() or not known.any()):
        return w.value(e.a if known.all() else e.b)
    return w.map(e, lambda c, a, b: f"select({b}, {a}, {c})", e.cond, e.a, e.b)


def _cast(w: WgslWriter, e: ir.Cast) -> list[str]:
    to, n = e.type.dtype, chunk(e.type.lanes)
    return [w.wrap(cast(w, x, e.x.type.dtype, to, n), e.type) for x in w.value(e.x)]


def cast(w: WgslWriter, x: str, of: DType, to: DType, n: int) -> str:
    """Text of the value conversion of one chunk (results in i8, u8 range are the caller's)."""
    target = vec(REGISTER[to.kind], n)
    if to is dt.bool_:
        if of.is_float:  # on bits: NaN is true, -0.0 is false
            mask = vec("u32", n)
            return f"((bitcast<{mask}>({x}) & {mask}(0x7fffffffu)) != {mask}(0u))"
        return f"({x} != {vec(REGISTER[of.kind], n)}(0))" if of is not dt.bool_ else x
    if to.is_float:
        if not of.is_float:
            x = f"{target}({x})"
        if to is of or to is dt.float32:
            return x
        short = "f16" if to is dt.float16 else "bf16"
        bits, back = w.helper(f"w_{short}_bits", n), w.helper(f"w_{short}_value", n)
        return f"{back}({bits}({x}))"
    if of.is_float:
        short = {dt.int32: "w_f2i", dt.uint32: "w_f2u", dt.int8: "w_f2i8_", dt.uint8: "w_f2u8_"}[to]
        return f"{w.helper(short, n)}({x})"
    return x if REGISTER[of.kind] == REGISTER[to.kind] else f"{target}({x})"


def _bitcast(w: WgslWriter, e: ir.Bitcast) -> list[str]:
    if e.x.type.lanes != e.type.lanes:
        return _recut(w, e)
    if isinstance(e.x, ir.Const) and e.type.dtype is dt.float32:
        bits = np.asarray(int(e.x.value) & 0xFFFFFFFF, np.uint32)
        return _const(w, ir.Const(float(bits.view(np.float32)), e.type))
    return w.map(e, lambda x: f"bitcast<{wtype(e.type)}>({x})", e.x)


def _recut(w: WgslWriter, e: ir.Bitcast) -> list[str]:
    """Bytes as words, or words as bytes."""
    sizes = e.x.type.dtype.itemsize, e.type.dtype.itemsize
    if sizes == (4, 1):
        return [memory.unpack(w, e.type.dtype, [word]) for word in memory.words(w, e)]
    if sizes != (1, 4):
        raise w.fail(f"a bitcast of {e.x.type} to {e.type}")
    kind = REGISTER[e.type.dtype.kind]
    return w.join([f"bitcast<{kind}>({x})" for x in memory.words(w, e.x)], e.type.dtype)


def _vec(w: WgslWriter, e: ir.Vec) -> list[str]:
    lanes, n, kind = e.type.lanes, chunk(e.type.lanes), wtype(e.type)
    if e.op == "splat":
        if n == 1:
            return w.value(e.args[0])
        x = w.scalar(e.args[0])
        x = w.temp(x) if lanes > 4 else x
        return [f"{kind}({x})"] * (lanes // n)
    if e.op == "iota":
        return w.join([literal(i, e.type.dtype) for i in range(lanes)], e.type.dtype)
    if e.op == "pack":
        return w.join([w.scalar(a) for a in e.args], e.type.dtype)
    if e.op == "any":
        holds = [f"any({c})" for c in w.value(e.args[0])]
        return [f"({' || '.join(holds)})"]
    texts = [t for a in e.args for t in w.spread(a)]
    return w.join([texts[i] for i in e.lanes], e.type.dtype)


def _collective(w: WgslWriter, e: ir.Collective) -> list[str]:
    if e.op.startswith("subgroup"):
        if not w.caps.subgroup:
            raise w.fail(f"{e.op}, but {w.caps.name} promises no subgroup width")
        name = {"subgroup_add": "subgroupAdd", "subgroup_max": "subgroupMax"}.get(e.op)
        w.used.add("subgroups")
        if name is None:
            return w.map(e, lambda x: f"subgroupShuffleXor({x}, {e.attr}u)", e.args[0])
        return w.map(e, lambda x: f"{name}({x})", e.args[0])
    acc = w.spread(e.args[0])
    if e.op == "dot4":
        return w.join(_dot4(w, e, acc), e.type.dtype)
    a, b = (w.spread(x) for x in e.args[1:])
    if e.op == "dot2_int16":
        low = [f"(({x} << 16u) >> 16u) * (({y} << 16u) >> 16u)" for x, y in zip(a, b)]
        high = [f"({x} >> 16u) * ({y} >> 16u)" for x, y in zip(a, b)]
        return w.join([f"({' + '.join(each)})" for each in zip(acc, low, high)], e.type.dtype)
    texts = [
        f"({s} + {a[2 * i]} * {b[2 * i]} + {a[2 * i + 1]} * {b[2 * i + 1]})"
        for i, s in enumerate(acc)
    ]
    return w.join(texts, e.type.dtype)


def _dot4(w: WgslWriter, e: ir.Collective, acc: list[str]) -> list[str]:
    left, right = e.args[1:]
    if left.type.dtype is dt.int8 and "dot4" in w.caps.features:
        pairs = zip(acc, memory.words(w, left), memory.words(w, right), strict=True)
        return [f"({s} + dot4I8Packed({a}, {b}))" for s, a, b in pairs]
    chunks = zip(acc, w.value(left), w.value(right), strict=True)
    return [f"({s} + dot(vec4<i32>({a}), vec4<i32>({b})))" for s, a, b in chunks]


RULES: Table = {
    ir.Const: _const, ir.Param: lambda w, e: [f"w_scalars[{e.slot // 4}][{e.slot % 4}]"],
    ir.Var: lambda w, e: names(e), ir.Axis: _axis, ir.Unary: _unary, ir.Binary: _binary,
    ir.Fma: lambda w, e: w.map(e, lambda a, b, c: f"fma({a}, {b}, {c})", e.a, e.b, e.c),
    ir.Select: _select, ir.Cast: _cast, ir.Bitcast: _bitcast, ir.Vec: _vec,
    ir.Collective: _collective,
}  # fmt: skip
