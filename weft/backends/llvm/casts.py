"""Casts between dtypes, and the collectives that a single thread can compute (dot2, dot4)."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.values import Values
from weft.core import dtypes as dt
from weft.kernel import ir
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
        """half → float on the bits: the exponent is rebiased by a multiplication by 2^112, which
        also normalises denormals."""
        half, i16, f32 = (text.vector(t, n) for t in ("half", "i16", "float"))
        wide = self.emit(
            f"zext {i16} {self.emit(f'bitcast {half} {operand} to {i16}')} to "
            f"{text.vector('i32', n)}"
        )
        sign = self._u32("shl", self._u32("and", wide, 0x8000, n), 16, n)
        magnitude = self._u32("and", wide, 0x7FFF, n)
        small = self._bits_to_float(self._u32("shl", magnitude, 13, n), n)
        scale = text.constant(2.0**112, Type(dt.float32, n))
        scaled = self.emit(f"fmul {f32} {small}, {scale}")
        bits = self.emit(f"bitcast {f32} {scaled} to {text.vector('i32', n)}")
        special = self._u32("icmp uge", magnitude, 0x7C00, n)
        infinite = self._u32("or", bits, 0x7F800000, n)
        bits = self._choose(special, infinite, bits, n)
        return self._bits_to_float(self._u32("or", bits, sign, n), n)

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

    # -- collectives

    def collective(self, x: ir.Collective) -> str:
        if x.op not in ("dot2", "dot4"):
            raise self.fail(f"{x.op} needs a subgroup, and this target runs one thread per group")
        acc, a, b = (self.value(arg) for arg in x.args)
        return self._dot(x.op, x.type.lanes, acc, a, b, x.args[1].type.dtype)

    def _dot(self, op: str, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
        table = self.target.dot2 if op == "dot2" else self.target.dot4
        widest = max(table, default=0)
        if widest and n > widest:
            return self._dot_halves(op, n, acc, a, b, a_dtype)
        if n in table and op == "dot2":
            i16, bf16, f32 = f"<{2 * n} x i16>", f"<{2 * n} x bfloat>", f"<{n} x float>"
            left = self.emit(f"bitcast {i16} {a} to {bf16}")
            right = self.emit(f"bitcast {i16} {b} to {bf16}")
            return self.call(table[n], f32, [(f32, acc), (bf16, left), (bf16, right)])
        if n in table:
            return self._dot4_x86(table[n], n, acc, a, b, a_dtype)
        return self._dot2(n, acc, a, b) if op == "dot2" else self._dot4(n, acc, a, b, a_dtype)

    def _dot_halves(self, op: str, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
        half, k = n // 2, 2 if op == "dot2" else 4
        t = f"<{n} x {'float' if op == 'dot2' else 'i32'}>"
        s = f"<{n * k} x {'i16' if op == 'dot2' else 'i8'}>"
        parts = []
        for i in (0, 1):
            lanes, wide = range(i * half, i * half + half), range(i * half * k, (i + 1) * half * k)
            cut = [self.shuffle(v, "poison", s, wide) for v in (a, b)]
            start = self.shuffle(acc, "poison", t, lanes)
            parts.append(self._dot(op, half, start, cut[0], cut[1], a_dtype))
        return self.shuffle(parts[0], parts[1], t.replace(str(n), str(half), 1), range(n))

    def _dot4_x86(self, name: str, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
        """vpdpbusd takes unsigned x signed; a signed `a` is shifted by 128 and corrected."""
        i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
        if a_dtype == dt.uint8:
            return self.call(name, i32, [(i32, acc), (i8, a), (i8, b)])
        offset = "splat (i8 -128)"
        shifted = self.emit(f"xor {i8} {a}, {offset}")
        total = self.call(name, i32, [(i32, acc), (i8, shifted), (i8, b)])
        extra = self.call(name, i32, [(i32, "zeroinitializer"), (i8, offset), (i8, b)])
        return self.emit(f"sub {i32} {total}, {extra}")

    def _dot2(self, n: int, acc: str, a: str, b: str) -> str:
        f32, u32 = Type(dt.float32, n), Type(dt.uint32, n)
        t, s = text.register(u32), f"<{2 * n} x i16>"
        for high in (False, True):
            pair = []
            for v in (a, b):
                bits = self.emit(f"bitcast {s} {v} to {t}")
                op, by = ("and", 0xFFFF0000) if high else ("shl", 16)
                part = self._u32(op, bits, by, n)
                pair.append(self._bits_to_float(part, n))
            acc = self.intrinsic("llvm.fma", f32, pair[0], pair[1], acc)
        return acc

    def _dot4(self, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
        i32, i8, part = text.vector("i32", n), f"<{4 * n} x i8>", text.vector("i8", n)
        grow = "sext" if a_dtype == dt.int8 else "zext"
        for k in range(4):
            lanes = range(k, 4 * n, 4)
            if n == 1:
                x, y = (self.emit(f"extractelement {i8} {v}, i32 {k}") for v in (a, b))
            else:
                x, y = (self.shuffle(v, "poison", i8, lanes) for v in (a, b))
            x = self.emit(f"{grow} {part} {x} to {i32}")
            y = self.emit(f"sext {part} {y} to {i32}")
            product = self.emit(f"mul {i32} {x}, {y}")
            acc = self.emit(f"add {i32} {acc}, {product}")
        return acc
