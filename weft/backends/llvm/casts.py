"""Casts between dtypes."""

from __future__ import annotations

import numpy as np

from weft.backends.llvm import text
from weft.backends.llvm.values import toward_zero
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Type
from weft.kernel.rules import Table


def cast(w: LlvmWriter, operand: str, source: Type, goal: Type) -> str:
    a, b, n = source.dtype, goal.dtype, source.lanes
    if a == b:
        return operand
    f32 = Type(dt.float32, n)
    if a in (dt.float16, dt.bfloat16) and b != dt.float32:
        return cast(w, cast(w, operand, source, f32), f32, goal)
    if b in (dt.float16, dt.bfloat16) and a != dt.float32:
        return cast(w, cast(w, operand, source, f32), f32, goal)
    s, g = text.register(source), text.register(goal)
    if a == dt.float16:
        if not w.target.f16_convert:
            return _widen_f16(w, operand, n)
        return w.emit(f"fpext {s} {operand} to {g}")
    if a == dt.bfloat16:
        wide = w.emit(f"zext {s} {operand} to {text.vector('i32', n)}")
        return bits_to_float(w, unsigned(w, "shl", wide, 16, n), n)
    if b == dt.float16:
        if not w.target.f16_convert:
            return _round_f16(w, operand, n)
        return w.emit(f"fptrunc {s} {operand} to {g}")
    if b == dt.bfloat16:
        return _round_bf16(w, operand, n)
    if b.kind == "bool":
        if a.is_float:
            return w.emit(f"fcmp une {s} {operand}, {text.constant(0.0, source)}")
        return w.emit(f"icmp ne {s} {operand}, {text.constant(0, source)}")
    if a.is_float and (n > 4 or (n > 1 and not w.target.to_zero)):
        return _saturated(w, operand, source, goal)
    if a.is_float:
        name = f"llvm.fpto{'s' if b.kind == 'int' else 'u'}i.sat"
        name += f".{text.mangle(text.REGISTER[b], n)}.{text.mangle('float', n)}"
        return w.call(name, g, [(s, operand)])
    signed = a.kind == "int"
    if b.is_float:
        return w.emit(f"{'sitofp' if signed else 'uitofp'} {s} {operand} to {g}")
    if a.kind != "bool" and a.itemsize == b.itemsize:
        return operand
    if a.kind == "bool" or a.itemsize < b.itemsize:
        return w.emit(f"{'sext' if signed else 'zext'} {s} {operand} to {g}")
    return w.emit(f"trunc {s} {operand} to {g}")


def _saturated(w: LlvmWriter, x: str, source: Type, goal: Type) -> str:
    """Floats as integers, as `fpto*i.sat`, which LLVM 22 takes apart on x86."""
    info, signed = np.iinfo(goal.dtype.numpy), goal.dtype.kind == "int"
    narrow = goal.dtype.itemsize < 4
    top = float(info.max) if narrow else float(2 ** (31 + (not signed)) - 2 ** (7 + (not signed)))
    s, found = text.register(source), x
    for order, limit in (("olt", top), ("ogt", float(info.min))):
        bound = text.constant(limit, source)
        inside = w.emit(f"fcmp {order} {s} {found}, {bound}")
        found = _chosen(w, inside, source, found, bound)
    wide = Type(dt.int32 if signed or narrow else dt.uint32, source.lanes)
    found = _integer(w, found, source, wide)
    if not narrow:
        above = w.emit(f"fcmp oge {s} {x}, {text.constant(float(info.max + 1), source)}")
        found = _chosen(w, above, wide, text.constant(int(info.max), wide), found)
    number = w.emit(f"fcmp ord {s} {x}, {x}")
    found = _chosen(w, number, wide, found, "zeroinitializer")
    if not narrow:
        return found
    return w.emit(f"trunc {text.register(wide)} {found} to {text.register(goal)}")


def _integer(w: LlvmWriter, x: str, source: Type, wide: Type) -> str:
    """Floats within the range of int32 or uint32 as such, toward zero."""
    s, t = text.register(source), text.register(wide)
    if w.target.to_zero:
        return w.emit(f"fpto{'s' if wide.dtype.kind == 'int' else 'u'}i {s} {x} to {t}")
    whole, high = toward_zero(w, x, source), text.constant(2.0**31, source)
    if wide.dtype.kind == "int":
        return _nearest(w, whole, source, wide)
    upper = w.emit(f"fcmp oge {s} {whole}, {high}")
    less = _chosen(w, upper, source, w.emit(f"fsub {s} {whole}, {high}"), whole)
    low = _nearest(w, less, source, wide)
    return _chosen(w, upper, wide, unsigned(w, "or", low, 1 << 31, wide.lanes), low)


def _nearest(w: LlvmWriter, x: str, source: Type, wide: Type) -> str:
    n, t = wide.lanes, text.register(wide)
    name = f"llvm.lrint.{text.mangle('i32', n)}.{text.mangle('float', n)}"
    return w.call(name, t, [(text.register(source), x)])


def _chosen(w: LlvmWriter, mask: str, kind: Type, a: str, b: str) -> str:
    t = text.register(kind)
    return w.emit(f"select {text.vector('i1', kind.lanes)} {mask}, {t} {a}, {t} {b}")


def bits_to_float(w: LlvmWriter, operand: str, lanes: int) -> str:
    i32, f32 = text.vector("i32", lanes), text.vector("float", lanes)
    return w.emit(f"bitcast {i32} {operand} to {f32}")


def _round_bf16(w: LlvmWriter, operand: str, lanes: int) -> str:
    """float → the 16 bits of the nearest bfloat (ties to even); a NaN stays a NaN."""
    f32, i16 = text.vector("float", lanes), text.vector("i16", lanes)
    if w.target.bf16_round:
        bf16 = text.vector("bfloat", lanes)
        rounded = w.emit(f"fptrunc {f32} {operand} to {bf16}")
        return w.emit(f"bitcast {bf16} {rounded} to {i16}")
    bits = w.emit(f"bitcast {f32} {operand} to {text.vector('i32', lanes)}")
    high = unsigned(w, "lshr", bits, 16, lanes)
    bias = unsigned(w, "add", unsigned(w, "and", high, 1, lanes), 0x7FFF, lanes)
    up = unsigned(w, "lshr", unsigned(w, "add", bits, bias, lanes), 16, lanes)
    quiet = unsigned(w, "or", high, 0x40, lanes)
    nan = w.emit(f"fcmp uno {f32} {operand}, {operand}")
    chosen = _chosen(w, nan, Type(dt.uint32, lanes), quiet, up)
    return w.emit(f"trunc {text.vector('i32', lanes)} {chosen} to {i16}")


def unsigned(w: LlvmWriter, op: str, a: str, b: int | str, lanes: int) -> str:
    """One uint32 operation; an int `b` is a constant."""
    u32 = Type(dt.uint32, lanes)
    right = text.constant(b, u32) if isinstance(b, int) else b
    return w.emit(f"{op} {text.register(u32)} {a}, {right}")


def _widen_f16(w: LlvmWriter, operand: str, n: int) -> str:
    """Widens half to float on the bits. Multiplying by 2^112 rebiases the exponent. It also
    normalises denormals, and takes infinities and NaN to 2^16 and above."""
    half, i16, i32, f32 = (text.vector(t, n) for t in ("half", "i16", "i32", "float"))
    bits = w.emit(f"bitcast {half} {operand} to {i16}")
    placed = unsigned(w, "shl", w.emit(f"sext {i16} {bits} to {i32}"), 13, n)
    small = bits_to_float(w, unsigned(w, "and", placed, 0x8FFFE000, n), n)
    f32_type = Type(dt.float32, n)
    wide = w.emit(f"fmul {f32} {small}, {text.constant(2.0**112, f32_type)}")
    size = w.intrinsic("llvm.fabs", f32_type, wide)
    special = w.emit(f"fcmp oge {f32} {size}, {text.constant(65536.0, f32_type)}")
    mask = w.emit(f"sext {text.vector('i1', n)} {special} to {i32}")
    infinite = unsigned(w, "and", mask, 0x7F800000, n)
    wide = w.emit(f"bitcast {f32} {wide} to {i32}")
    return bits_to_float(w, unsigned(w, "or", wide, infinite, n), n)


def _round_f16(w: LlvmWriter, operand: str, n: int) -> str:
    """float → half on the bits, ties to even. Small values are rounded by adding 0.5, whose
    last place is that of half's denormals."""
    f32, i32 = text.vector("float", n), text.vector("i32", n)
    bits = w.emit(f"bitcast {f32} {operand} to {i32}")
    sign = unsigned(w, "lshr", unsigned(w, "and", bits, 0x80000000, n), 16, n)
    magnitude = unsigned(w, "and", bits, 0x7FFFFFFF, n)
    odd = unsigned(w, "and", unsigned(w, "lshr", magnitude, 13, n), 1, n)
    # Rebias the exponent by 15 - 127 and add just under half of the last place kept.
    rebiased = unsigned(w, "add", unsigned(w, "add", magnitude, 0xC8000FFF, n), odd, n)
    normal = unsigned(w, "lshr", rebiased, 13, n)
    half = text.constant(0.5, Type(dt.float32, n))
    shifted = w.emit(f"fadd {f32} {bits_to_float(w, magnitude, n)}, {half}")
    shifted_bits = w.emit(f"bitcast {f32} {shifted} to {i32}")
    denormal = unsigned(w, "sub", shifted_bits, 0x3F000000, n)
    is_small = unsigned(w, "icmp ult", magnitude, 0x38800000, n)
    u32 = Type(dt.uint32, n)
    result = _chosen(w, is_small, u32, denormal, normal)
    is_large = unsigned(w, "icmp uge", magnitude, 0x47800000, n)
    is_nan = unsigned(w, "icmp ugt", magnitude, 0x7F800000, n)
    special = _chosen(w, is_nan, u32, text.constant(0x7E00, u32), text.constant(0x7C00, u32))
    result = _chosen(w, is_large, u32, special, result)
    i16 = text.vector("i16", n)
    low = w.emit(f"trunc {i32} {unsigned(w, 'or', result, sign, n)} to {i16}")
    return w.emit(f"bitcast {i16} {low} to {text.vector('half', n)}")


RULES: Table = {ir.Cast: lambda w, x: cast(w, w.value(x.x), x.x.type, x.type)}
