"""The collectives that a single thread can compute (dot2, dot4)."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.casts import Casts
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Type


class Dots(Casts):
    """Adds dot products of neighbouring lanes to the expression emitter."""

    features = ""  # LLVM's, of the function, beside the target's own

    def collective(self, x: ir.Collective) -> str:
        if x.op not in ("dot2", "dot4"):
            raise self.fail(f"{x.op} needs a subgroup, and this target runs one thread per group")
        acc, a, b = (self.value(arg) for arg in x.args)
        n, dtype = x.type.lanes, x.args[1].type.dtype
        return (
            self._dot2(n, acc, a, b) if x.op == "dot2" else self._dot4(n, acc, a, b, dtype, x.attr)
        )

    def _halves(self, n: int, *vectors: tuple[str, str, int]) -> tuple[list[str], list[str]]:
        """Both halves of vectors: (operand, element, elements per lane of n) each."""
        cut: tuple[list[str], list[str]] = ([], [])
        for operand, element, per in vectors:
            for half, found in enumerate(cut):
                lanes = range(half * n * per // 2, (half + 1) * n * per // 2)
                found.append(self.shuffle(operand, "poison", f"<{n * per} x {element}>", lanes))
        return cut

    def _whole(self, n: int, element: str, parts: list[str]) -> str:
        return self.shuffle(parts[0], parts[1], f"<{n // 2} x {element}>", range(n))

    # -- pairs of bf16

    def _dot2(self, n: int, acc: str, a: str, b: str) -> str:
        known = self.target.dot2
        if known and n > max(known):
            halves = self._halves(n, (acc, "float", 1), (a, "i16", 2), (b, "i16", 2))
            return self._whole(n, "float", [self._dot2(n // 2, c, x, y) for c, x, y in halves])
        if n in known:
            i16, bf16, f32 = f"<{2 * n} x i16>", f"<{2 * n} x bfloat>", f"<{n} x float>"
            left = self.emit(f"bitcast {i16} {a} to {bf16}")
            right = self.emit(f"bitcast {i16} {b} to {bf16}")
            return self.call(known[n], f32, [(f32, acc), (bf16, left), (bf16, right)])
        kind, u32 = Type(dt.float32, n), Type(dt.uint32, n)
        for high in (False, True):
            pair = []
            for v in (a, b):
                bits = self.bitcast(v, Type(dt.bfloat16, 2 * n), u32)
                op, by = ("and", 0xFFFF0000) if high else ("shl", 16)
                pair.append(self._bits_to_float(self._u32(op, bits, by, n), n))
            acc = self.fma(kind, pair[0], pair[1], acc)
        return acc

    # -- fours of bytes

    def _dot4(self, n: int, acc: str, a: str, b: str, a_dtype: dt.DType, small: int = 0) -> str:
        """The target's own instruction, two of its steps over 16 bits, or the portable expansion.
        `small`: see ir.Collective."""
        known = self.target.dot4 or self.target.dot4_signed or self.target.pairs
        if known and n > max(known):
            halves = self._halves(n, (acc, "i32", 1), (a, "i8", 4), (b, "i8", 4))
            parts = [self._dot4(n // 2, c, x, y, a_dtype, small) for c, x, y in halves]
            return self._whole(n, "i32", parts)
        i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
        fits = a_dtype == dt.int8 or small
        if n in self.target.dot4_signed and fits:
            name = self.target.dot4_signed[n]
            return self._dot4_call(name, n, acc, a, b)
        if n in self.target.dot4:
            return self._dot4_unsigned(self.target.dot4[n], n, acc, a, b, a_dtype)
        if n == 4 and self.target.seven and small and a_dtype == dt.uint8:
            two = self.call(self.target.seven, "<8 x i16>", [(i8, b), (i8, a)])
            pair = [("<8 x i16>", two), ("<8 x i16>", "splat (i16 1)")]
            return self.emit(f"add {i32} {acc}, {self.call(self.target.pairs[n][1], i32, pair)}")
        if n in self.target.pairs:
            return self._dot4_pairs(n, acc, a, b, a_dtype, small)
        return self._dot4_plain(n, acc, a, b, a_dtype)

    def _dot4_call(self, name: str, n: int, acc: str, a: str, b: str) -> str:
        i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
        if not self.target.dot4_features:
            return self.call(name, i32, [(i32, acc), (i8, a), (i8, b)])
        self.features = self.target.dot4_features
        words = [self.emit(f"bitcast {i8} {x} to {i32}") for x in (a, b)]
        return self.call(name, i32, [(i32, x) for x in (acc, *words)])

    def _dot4_unsigned(self, name: str, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
        """vpdpbusd takes unsigned x signed; a signed `a` is shifted by 128 and corrected."""
        i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
        if a_dtype == dt.uint8:
            return self._dot4_call(name, n, acc, a, b)
        offset = "splat (i8 -128)"
        shifted = self.emit(f"xor {i8} {a}, {offset}")
        total = self._dot4_call(name, n, acc, shifted, b)
        extra = self._dot4_call(name, n, "zeroinitializer", offset, b)
        return self.emit(f"sub {i32} {total}, {extra}")

    def _dot4_pairs(self, n: int, acc: str, a: str, b: str, a_dtype: dt.DType, small: int) -> str:
        """Sums pairs of products in 16 bits, then pairs of these sums. vpmaddubsw saturates, so it
        is used only for bytes promised to be small. Otherwise bytes are widened first, even and odd
        ones separately."""
        of_bytes, of_words, sign = self.target.pairs[n]
        i8, i16, i32 = f"<{4 * n} x i8>", f"<{2 * n} x i16>", f"<{n} x i32>"

        def total(first: str, second: str) -> str:
            return self.call(of_words, i32, [(i16, first), (i16, second)])

        if small and of_bytes:
            if a_dtype == dt.int8:
                b = self.call(sign, i8, [(i8, b), (i8, a)])
                name = f"llvm.abs.{text.mangle('i8', 4 * n)}"
                a = self.call(name, i8, [(i8, a), ("i1", "false")])
            two = self.call(of_bytes, i16, [(i8, a), (i8, b)])
            return self.emit(f"add {i32} {acc}, {total(two, 'splat (i16 1)')}")
        eight = "splat (i16 8)"
        words = [self.emit(f"bitcast {i8} {v} to {i16}") for v in (a, b)]
        high = ["lshr" if a_dtype == dt.uint8 else "ashr", "ashr"]
        even = [
            self.emit(f"{op} {i16} {self.emit(f'shl {i16} {v}, {eight}')}, {eight}")
            for op, v in zip(high, words)
        ]
        odd = [self.emit(f"{op} {i16} {v}, {eight}") for op, v in zip(high, words)]
        sums = self.emit(f"add {i32} {total(*even)}, {total(*odd)}")
        return self.emit(f"add {i32} {acc}, {sums}")

    def _dot4_plain(self, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
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
