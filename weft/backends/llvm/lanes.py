"""The lanes of vectors: splat, pack, shuffle and the like."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm import text
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Type
from weft.kernel.rules import Table


def _vec(w: LlvmWriter, x: ir.Vec) -> str:
    t = text.register(x.type)
    if x.op == "iota":
        element = text.REGISTER[x.type.dtype]
        return "<" + ", ".join(f"{element} {i}" for i in range(x.type.lanes)) + ">"
    args = [w.value(a) for a in x.args]
    source = text.register(x.args[0].type)
    if x.op == "splat":
        return splat(w, args[0], x.type)
    if x.op == "pack":
        result = "poison"
        for i, operand in enumerate(args):
            result = w.emit(f"insertelement {t} {result}, {source} {operand}, i32 {i}")
        return result
    if x.op == "any":
        name = f"llvm.vector.reduce.or.{text.mangle('i1', x.args[0].type.lanes)}"
        return w.call(name, "i1", [(source, args[0])])
    if x.op == "extract":
        return w.emit(f"extractelement {source} {args[0]}, i32 {x.lanes[0]}")
    if x.op == "shuffle":
        return shuffle(w, args[0], args[-1] if len(args) > 1 else "poison", source, x.lanes)
    if x.op == "lookup":
        return _lookup(w, args[0], x.args[0].type.lanes, args[1], x.type.lanes)
    raise w.fail(f"no Vec {x.op}")


def _lookup(w: LlvmWriter, table: str, size: int, index: str, n: int) -> str:
    """Emits the target's permutation; for a larger table, that of each half."""
    t, i32 = text.vector("float", n), text.vector("i32", n)
    if n not in w.target.permute:
        raise w.fail(f"no lookup in {n} lanes")
    if size <= n:
        whole = shuffle(
            w, table, "poison", text.vector("float", size), [i % size for i in range(n)]
        )
        return w.call(w.target.permute[n], t, [(t, whole), (i32, index)])
    half, source = size // 2, text.vector("float", size)
    low, high = (shuffle(w, table, "poison", source, range(h, h + half)) for h in (0, half))
    low, high = (_lookup(w, x, half, index, n) for x in (low, high))
    bit = w.emit(f"and {i32} {index}, splat (i32 {half})")
    upper = w.emit(f"icmp ne {i32} {bit}, zeroinitializer")
    return w.emit(f"select <{n} x i1> {upper}, {t} {high}, {t} {low}")


def splat(w: LlvmWriter, operand: str, type_: Type) -> str:
    element, t = text.REGISTER[type_.dtype], text.register(type_)
    if not operand.startswith("%"):
        return f"splat ({element} {operand})"
    first = w.emit(f"insertelement {t} poison, {element} {operand}, i32 0")
    return shuffle(w, first, "poison", t, (0,) * type_.lanes)


def shuffle(w: LlvmWriter, a: str, b: str, t: str, lanes: Sequence[int]) -> str:
    if (
        w.target.dot4_features
        and t == "<4 x i8>"
        and list(lanes) == [0, 1, 2, 3] * (len(lanes) // 4)
    ):
        return _splat_word(w, a, len(lanes) // 4)
    mask = ", ".join(f"i32 {i}" for i in lanes)
    return w.emit(f"shufflevector {t} {a}, {t} {b}, <{len(lanes)} x i32> <{mask}>")


def _splat_word(w: LlvmWriter, bytes_: str, n: int) -> str:
    """Four bytes n times, as the splat of a word: LLVM takes others apart on Hexagon."""
    word = w.emit(f"bitcast <4 x i8> {bytes_} to i32")
    return w.emit(f"bitcast <{n} x i32> {splat(w, word, Type(dt.int32, n))} to <{4 * n} x i8>")


RULES: Table = {ir.Vec: _vec}
