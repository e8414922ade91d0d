"""The collectives that a single thread can compute: dot products within lanes."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.casts import bits_to_float, unsigned
from weft.backends.llvm.lanes import shuffle
from weft.backends.llvm.values import bitcast, fused
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Type
from weft.kernel.rules import Table


def collective(w: LlvmWriter, x: ir.Collective) -> str:
    if not x.op.startswith("dot"):
        raise w.fail(f"{x.op} needs a subgroup, and this target runs one thread per group")
    acc, a, b = (w.value(arg) for arg in x.args)
    n, dtype = x.type.lanes, x.args[1].type.dtype
    if x.op == "dot4":
        return dot4(w, n, acc, a, b, dtype, x.attr)
    return (_dot2 if x.op == "dot2" else _dot2_int16)(w, n, acc, a, b)


def _halves(w: LlvmWriter, n: int, *vectors: tuple[str, str, int]) -> tuple[list[str], list[str]]:
    """Both halves of vectors: (operand, element, elements per lane of n) each."""
    cut: tuple[list[str], list[str]] = ([], [])
    for operand, element, per in vectors:
        for half, found in enumerate(cut):
            lanes = range(half * n * per // 2, (half + 1) * n * per // 2)
            found.append(shuffle(w, operand, "poison", f"<{n * per} x {element}>", lanes))
    return cut


def _whole(w: LlvmWriter, n: int, element: str, parts: list[str]) -> str:
    return shuffle(w, parts[0], parts[1], f"<{n // 2} x {element}>", range(n))


# -- pairs of bf16


def _dot2(w: LlvmWriter, n: int, acc: str, a: str, b: str) -> str:
    known = w.target.dot2
    if known and n > max(known):
        halves = _halves(w, n, (acc, "float", 1), (a, "i16", 2), (b, "i16", 2))
        return _whole(w, n, "float", [_dot2(w, n // 2, c, x, y) for c, x, y in halves])
    if n in known:
        i16, bf16, f32 = f"<{2 * n} x i16>", f"<{2 * n} x bfloat>", f"<{n} x float>"
        left = w.emit(f"bitcast {i16} {a} to {bf16}")
        right = w.emit(f"bitcast {i16} {b} to {bf16}")
        return w.call(known[n], f32, [(f32, acc), (bf16, left), (bf16, right)])
    kind, u32 = Type(dt.float32, n), Type(dt.uint32, n)
    for high in (False, True):
        pair = []
        for v in (a, b):
            bits = bitcast(w, v, Type(dt.bfloat16, 2 * n), u32)
            op, by = ("and", 0xFFFF0000) if high else ("shl", 16)
            pair.append(bits_to_float(w, unsigned(w, op, bits, by, n), n))
        acc = fused(w, kind, pair[0], pair[1], acc)
    return acc


# -- pairs of 16-bit integers


def _dot2_int16(w: LlvmWriter, n: int, acc: str, a: str, b: str) -> str:
    known, i32, i16 = w.target.pairs, text.vector("i32", n), f"<{2 * n} x i16>"
    if known and n > max(known):
        halves = _halves(w, n, *((x, "i32", 1) for x in (acc, a, b)))
        return _whole(w, n, "i32", [_dot2_int16(w, n // 2, *parts) for parts in halves])
    if n in known:
        pairs = [(i16, w.emit(f"bitcast {i32} {x} to {i16}")) for x in (a, b)]
        return w.emit(f"add {i32} {acc}, {w.call(known[n][1], i32, pairs)}")
    by = "16" if n == 1 else "splat (i32 16)"
    for high in (False, True):
        cut = [x if high else w.emit(f"shl {i32} {x}, {by}") for x in (a, b)]
        x, y = (w.emit(f"ashr {i32} {v}, {by}") for v in cut)
        acc = w.emit(f"add {i32} {acc}, {w.emit(f'mul {i32} {x}, {y}')}")
    return acc


# -- fours of bytes


def dot4(w: LlvmWriter, n: int, acc: str, a: str, b: str, a_dtype: dt.DType, small: int = 0) -> str:
    """The target's own instruction, two of its steps over 16 bits, or the portable expansion.
    `small`: see ir.Collective."""
    known = w.target.dot4 or w.target.dot4_signed or w.target.pairs
    if known and n > max(known):
        halves = _halves(w, n, (acc, "i32", 1), (a, "i8", 4), (b, "i8", 4))
        parts = [dot4(w, n // 2, c, x, y, a_dtype, small) for c, x, y in halves]
        return _whole(w, n, "i32", parts)
    i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
    fits = a_dtype == dt.int8 or small
    if n in w.target.dot4_signed and fits:
        name = w.target.dot4_signed[n]
        return _dot4_call(w, name, n, acc, a, b)
    if n in w.target.dot4:
        return _dot4_unsigned(w, w.target.dot4[n], n, acc, a, b, a_dtype)
    if n == 4 and w.target.seven and small and a_dtype == dt.uint8:
        two = w.call(w.target.seven, "<8 x i16>", [(i8, b), (i8, a)])
        pair = [("<8 x i16>", two), ("<8 x i16>", "splat (i16 1)")]
        return w.emit(f"add {i32} {acc}, {w.call(w.target.pairs[n][1], i32, pair)}")
    if n in w.target.pairs:
        return _dot4_pairs(w, n, acc, a, b, a_dtype, small)
    return _dot4_plain(w, n, acc, a, b, a_dtype)


def _dot4_call(w: LlvmWriter, name: str, n: int, acc: str, a: str, b: str) -> str:
    i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
    if not w.target.dot4_features:
        return w.call(name, i32, [(i32, acc), (i8, a), (i8, b)])
    w.features = w.target.dot4_features
    words = [w.emit(f"bitcast {i8} {x} to {i32}") for x in (a, b)]
    return w.call(name, i32, [(i32, x) for x in (acc, *words)])


def _dot4_unsigned(
    w: LlvmWriter, name: str, n: int, acc: str, a: str, b: str, a_dtype: dt.DType
) -> str:
    """vpdpbusd takes unsigned x signed; a signed `a` is shifted by 128 and corrected."""
    i32, i8 = f"<{n} x i32>", f"<{4 * n} x i8>"
    if a_dtype == dt.uint8:
        return _dot4_call(w, name, n, acc, a, b)
    offset = "splat (i8 -128)"
    shifted = w.emit(f"xor {i8} {a}, {offset}")
    total = _dot4_call(w, name, n, acc, shifted, b)
    extra = _dot4_call(w, name, n, "zeroinitializer", offset, b)
    return w.emit(f"sub {i32} {total}, {extra}")


def _dot4_pairs(
    w: LlvmWriter, n: int, acc: str, a: str, b: str, a_dtype: dt.DType, small: int
) -> str:
    """Sums pairs of products in 16 bits, then pairs of the sums. vpmaddubsw saturates, so it is
    used only for bytes promised to be small. Otherwise bytes are widened first, even and odd ones
    separately."""
    of_bytes, of_words, sign = w.target.pairs[n]
    i8, i16, i32 = f"<{4 * n} x i8>", f"<{2 * n} x i16>", f"<{n} x i32>"

    def total(first: str, second: str) -> str:
        return w.call(of_words, i32, [(i16, first), (i16, second)])

    if small and of_bytes:
        if a_dtype == dt.int8:
            b = w.call(sign, i8, [(i8, b), (i8, a)])
            name = f"llvm.abs.{text.mangle('i8', 4 * n)}"
            a = w.call(name, i8, [(i8, a), ("i1", "false")])
        two = w.call(of_bytes, i16, [(i8, a), (i8, b)])
        return w.emit(f"add {i32} {acc}, {total(two, 'splat (i16 1)')}")
    eight = "splat (i16 8)"
    words = [w.emit(f"bitcast {i8} {v} to {i16}") for v in (a, b)]
    high = ["lshr" if a_dtype == dt.uint8 else "ashr", "ashr"]
    even = [
        w.emit(f"{op} {i16} {w.emit(f'shl {i16} {v}, {eight}')}, {eight}")
        for op, v in zip(high, words)
    ]
    odd = [w.emit(f"{op} {i16} {v}, {eight}") for op, v in zip(high, words)]
    sums = w.emit(f"add {i32} {total(*even)}, {total(*odd)}")
    return w.emit(f"add {i32} {acc}, {sums}")


def _dot4_plain(w: LlvmWriter, n: int, acc: str, a: str, b: str, a_dtype: dt.DType) -> str:
    i32, i8, part = text.vector("i32", n), f"<{4 * n} x i8>", text.vector("i8", n)
    grow = "sext" if a_dtype == dt.int8 else "zext"
    for k in range(4):
        lanes = range(k, 4 * n, 4)
        if n == 1:
            x, y = (w.emit(f"extractelement {i8} {v}, i32 {k}") for v in (a, b))
        else:
            x, y = (shuffle(w, v, "poison", i8, lanes) for v in (a, b))
        x = w.emit(f"{grow} {part} {x} to {i32}")
        y = w.emit(f"sext {part} {y} to {i32}")
        product = w.emit(f"mul {i32} {x}, {y}")
        acc = w.emit(f"add {i32} {acc}, {product}")
    return acc


RULES: Table = {ir.Collective: collective}
