"""Casts between dtypes."""

from __future__ import annotations

import numpy as np

from weft.backends.llvm import text
from weft.backends.llvm.values import Values
from weft.core import dtypes as dt
from weft.kernel.ir import Type


class Casts(Values):
    """Adds the conversions to the expression emitter."""

    def cast(self, operand: str, source: Type, goal: Type) -> str:
        a, b, n = source.dtype, goal.dtype, source.lanes
        if a == b:
            return operand
        f32 = Type(dt.float32, n)
        if a in (dt.float16, dt.bfloat16) and b != dt.float32:
            return self.cast(self.cast(operand, source, f32), f32, goal)
        if b in (dt.float16, dt.bfloat16) and a != dt.float32:
            return self.cast(self.cast(operand, source, f32), f32, goal)
        s, g = text.register(source), text.register(goal)
        if a == dt.float16:
            if not self.target.f16_convert:
                return self._widen_f16(operand, n)
            return self.emit(f"fpext {s} {operand} to {g}")
        if a == dt.bfloat16:
            wide = self.emit(f"zext {s} {operand} to {text.vector('i32', n)}")
            return self._bits_to_float(self._u32("shl", wide, 16, n), n)
        if b == dt.float16:
            if not self.target.f16_convert:
                return self._round_f16(operand, n)
            return self.emit(f"fptrunc {s} {operand} to {g}")
        if b == dt.bfloat16:
            return self._round_bf16(operand, n)
        if b.kind == "bool":
            if a.is_float:
                return self.emit(f"fcmp une {s} {operand}, {text.constant(0.0, source)}")
            return self.emit(f"icmp ne {s} {operand}, {text.constant(0, source)}")
        if a.is_float and (n > 4 or (n > 1 and not self.target.to_zero)):
            return self._saturated(operand, source, goal)
        if a.is_float:
            name = f"llvm.fpto{'s' if b.kind == 'int' else 'u'}i.sat"
            name += f".{text.mangle(text.REGISTER[b], n)}.{text.mangle('float', n)}"
            return self.call(name, g, [(s, operand)])
        signed = a.kind == "int"
        if b.is_float:
            return self.emit(f"{'sitofp' if signed else 'uitofp'} {s} {operand} to {g}")
        if a.kind != "bool" and a.itemsize == b.itemsize:
            return operand
        if a.kind == "bool" or a.itemsize < b.itemsize:
            return self.emit(f"{'sext' if signed else 'zext'} {s} {operand} to {g}")
        return self.emit(f"trunc {s} {operand} to {g}")

    def _saturated(self, x: str, source: Type, goal: Type) -> str:
        """Floats as integers, as `fpto*i.sat`, which LLVM 22 takes apart on x86."""
        info, signed = np.iinfo(goal.dtype.numpy), goal.dtype.kind == "int"
        narrow = goal.dtype.itemsize < 4
        top = (
            float(info.max) if narrow else float(2 ** (31 + (not signed)) - 2 ** (7 + (not signed)))
        )
        s, found = text.register(source), x
        for order, limit in (("olt", top), ("ogt", float(info.min))):
            bound = text.constant(limit, source)
            inside = self.emit(f"fcmp {order} {s} {found}, {bound}")
            found = self._chosen(inside, source, found, bound)
        wide = Type(dt.int32 if signed or narrow else dt.uint32, source.lanes)
        w = text.register(wide)
        found = self._integer(found, source, wide)
        if not narrow:
            above = self.emit(f"fcmp oge {s} {x}, {text.constant(float(info.max + 1), source)}")
            found = self._chosen(above, wide, text.constant(int(info.max), wide), found)
        number = self.emit(f"fcmp ord {s} {x}, {x}")
        found = self._chosen(number, wide, found, "zeroinitializer")
        return self.emit(f"trunc {w} {found} to {text.register(goal)}") if narrow else found

    def _integer(self, x: str, source: Type, wide: Type) -> str:
        """Floats within the range of int32 or uint32 as such, toward zero."""
        s, w = text.register(source), text.register(wide)
        if self.target.to_zero:
            return self.emit(f"fpto{'s' if wide.dtype.kind == 'int' else 'u'}i {s} {x} to {w}")
        whole, high = self.toward_zero(x, source), text.constant(2.0**31, source)
        if wide.dtype.kind == "int":
            return self._nearest(whole, source, wide)
        upper = self.emit(f"fcmp oge {s} {whole}, {high}")
        less = self._chosen(upper, source, self.emit(f"fsub {s} {whole}, {high}"), whole)
        low = self._nearest(less, source, wide)
        return self._chosen(upper, wide, self._u32("or", low, 1 << 31, wide.lanes), low)

    def _nearest(self, x: str, source: Type, wide: Type) -> str:
        n, w = wide.lanes, text.register(wide)
        name = f"llvm.lrint.{text.mangle('i32', n)}.{text.mangle('float', n)}"
        return self.call(name, w, [(text.register(source), x)])

    def _chosen(self, mask: str, kind: Type, a: str, b: str) -> str:
        t = text.register(kind)
        return self.emit(f"select <{kind.lanes} x i1> {mask}, {t} {a}, {t} {b}")

    def _bits_to_float(self, operand: str, lanes: int) -> str:
        i32, f32 = text.vector("i32", lanes), text.vector("float", lanes)
        return self.emit(f"bitcast {i32} {operand} to {f32}")

    def _round_bf16(self, operand: str, lanes: int) -> str:
        """float → the 16 bits of the nearest bfloat (ties to even); a NaN stays a NaN."""
        f32, i16 = text.vector("float", lanes), text.vector("i16", lanes)
        if self.target.bf16_round:
            bf16 = text.vector("bfloat", lanes)
            rounded = self.emit(f"fptrunc {f32} {operand} to {bf16}")
            return self.emit(f"bitcast {bf16} {rounded} to {i16}")
        bits = self.emit(f"bitcast {f32} {operand} to {text.vector('i32', lanes)}")
        high = self._u32("lshr", bits, 16, lanes)
        bias = self._u32("add", self._u32("and", high, 1, lanes), 0x7FFF, lanes)
        up = self._u32("lshr", self._u32("add", bits, bias, lanes), 16, lanes)
        quiet = self._u32("or", high, 0x40, lanes)
        nan = self.emit(f"fcmp uno {f32} {operand}, {operand}")
        chosen = self._choose(nan, quiet, up, lanes)
        return self.emit(f"trunc {text.vector('i32', lanes)} {chosen} to {i16}")

    def _u32(self, op: str, a: str, b: int | str, lanes: int) -> str:
        """One uint32 operation; an int `b` is a constant."""
        u32 = Type(dt.uint32, lanes)
        right = text.constant(b, u32) if isinstance(b, int) else b
        return self.emit(f"{op} {text.register(u32)} {a}, {right}")

    def _choose(self, cond: str, a: str, b: int | str, lanes: int) -> str:
        u32 = Type(dt.uint32, lanes)
        t, right = text.register(u32), text.constant(b, u32) if isinstance(b, int) else b
        return self.emit(f"select {text.vector('i1', lanes)} {cond}, {t} {a}, {t} {right}")

    def _widen_f16(self, operand: str, n: int) -> str:
        """Widens half to float on the bits. Multiplying by 2^112 rebiases the exponent. It also
        normalises denormals, and takes infinities and NaN to 2^16 and above."""
        half, i16, i32, f32 = (text.vector(t, n) for t in ("half", "i16", "i32", "float"))
        bits = self.emit(f"bitcast {half} {operand} to {i16}")
        placed = self._u32("shl", self.emit(f"sext {i16} {bits} to {i32}"), 13, n)
        small = self._bits_to_float(self._u32("and", placed, 0x8FFFE000, n), n)
        f32_type = Type(dt.float32, n)
        wide = self.emit(f"fmul {f32} {small}, {text.constant(2.0**112, f32_type)}")
        size = self.intrinsic("llvm.fabs", f32_type, wide)
        special = self.emit(f"fcmp oge {f32} {size}, {text.constant(65536.0, f32_type)}")
        mask = self.emit(f"sext {text.vector('i1', n)} {special} to {i32}")
        infinite = self._u32("and", mask, 0x7F800000, n)
        wide = self.emit(f"bitcast {f32} {wide} to {i32}")
        return self._bits_to_float(self._u32("or", wide, infinite, n), n)

    def _round_f16(self, operand: str, n: int) -> str:
        """float → half on the bits, ties to even. Small values are rounded by adding 0.5, whose
        last place is that of half's denormals."""
        f32, i32 = text.vector("float", n), text.vector("i32", n)
        bits = self.emit(f"bitcast {f32} {operand} to {i32}")
        sign = self._u32("lshr", self._u32("and", bits, 0x80000000, n), 16, n)
        magnitude = self._u32("and", bits, 0x7FFFFFFF, n)
        odd = self._u32("and", self._u32("lshr", magnitude, 13, n), 1, n)
        # Rebias the exponent by 15 - 127 and add just under half of the last place kept.
        rebiased = self._u32("add", self._u32("add", magnitude, 0xC8000FFF, n), odd, n)
        normal = self._u32("lshr", rebiased, 13, n)
        half = text.constant(0.5, Type(dt.float32, n))
        shifted = self.emit(f"fadd {f32} {self._bits_to_float(magnitude, n)}, {half}")
        shifted_bits = self.emit(f"bitcast {f32} {shifted} to {i32}")
        denormal = self._u32("sub", shifted_bits, 0x3F000000, n)
        is_small = self._u32("icmp ult", magnitude, 0x38800000, n)
        result = self._choose(is_small, denormal, normal, n)
        is_large = self._u32("icmp uge", magnitude, 0x47800000, n)
        is_nan = self._u32("icmp ugt", magnitude, 0x7F800000, n)
        quiet = text.constant(0x7E00, Type(dt.uint32, n))
        result = self._choose(is_large, self._choose(is_nan, quiet, 0x7C00, n), result, n)
        i16 = text.vector("i16", n)
        low = self.emit(f"trunc {i32} {self._u32('or', result, sign, n)} to {i16}")
        return self.emit(f"bitcast {i16} {low} to {text.vector('half', n)}")
