"""Loads and stores: units, words and their narrow elements (see analysis.StorageWords)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from weft.backends.wgsl import constants
from weft.backends.wgsl.analysis import REGISTER, StorageWords
from weft.backends.wgsl.indices import inside, number, offset, over, within
from weft.backends.wgsl.prelude import vec
from weft.backends.wgsl.writer import WgslWriter
from weft.core import dtypes as dt
from weft.kernel import align, ir
from weft.kernel.rules import Table

ZERO = {"f32": "0.0f", "i32": "0i", "u32": "0u", "bool": "false"}

# -- units and words ----------------------------------------------------------------------------


def unit(s: StorageWords, index: str) -> str:
    """The unit at a unit index."""
    if len(s.parts) > 1:
        return f"{s.name}get({index})"
    index = inside(s, index)
    return f"atomicLoad(&{s.name}[{index}])" if s.atomic else f"{s.name}[{index}]"


def _put(s: StorageWords, index: str, value: str) -> str:
    if len(s.parts) > 1:
        return f"{s.name}set({index}, {value});"
    index = inside(s, index)
    if s.atomic:
        return f"atomicStore(&{s.name}[{index}], {value});"
    return f"{s.name}[{index}] = {value};"


def word(s: StorageWords, index: str) -> str:
    """The word at a word index."""
    if s.k == 1:
        return unit(s, index)
    at = number(index)
    if at is not None:
        return f"{unit(s, over(index, s.k))}.{'xyzw'[at % s.k]}"
    return f"{unit(s, over(index, s.k))}[{within(index, s.k)}]"


def _run(w: WgslWriter, s: StorageWords, first: str, count: int) -> list[str]:
    """`count` words from element index `first`, which starts a unit if count >= k."""
    if s.k == 1 or count < s.k:
        at = over(first, s.per)
        at = w.temp(at) if count > 1 else at
        return [word(s, offset(at, i)) for i in range(count)]
    at = w.temp(over(first, s.unit)) if count > s.k else over(first, s.unit)
    units = [w.temp(unit(s, offset(at, i))) for i in range(count // s.k)]
    return [f"{u}.{'xyzw'[i]}" for u in units for i in range(s.k)]


def _element(w: WgslWriter, s: StorageWords, index: str) -> str:
    """One element at an element index, in register form."""
    if s.per == 1:
        text = word(s, index)
        return f"f32({text})" if s.word == "f16" else text
    index = w.temp(index)
    text, bits = word(s, over(index, s.per)), 32 // s.per
    shift = f"({within(index, s.per)} * {bits}u)"
    if s.dtype is dt.float16:
        return f"unpack2x16float({text} >> {shift}).x"
    if s.dtype is dt.bfloat16:
        return f"bitcast<f32>(({text} >> {shift}) << 16u)"
    if s.dtype is dt.int8:
        return f"extractBits(bitcast<i32>({text}), {shift}, 8u)"
    text = f"extractBits({text}, {shift}, 8u)"
    return f"({text} != 0u)" if s.dtype is dt.bool_ else text


# -- loads --------------------------------------------------------------------------------------


def load(w: WgslWriter, e: ir.Load) -> list[str]:
    """The chunks of a load. A masked lane may read anywhere (WGSL keeps reads inside the array)
    and is then replaced by zero."""
    s, lanes = w.sources[id(e.source)], e.type.lanes
    known = None if e.mask is None else constants.fold(e.mask, w.known)
    if known is not None and not known.any():
        return w.constant(np.zeros(lanes, s.dtype.numpy), e.type)
    if e.index.type.lanes > 1:
        at = w.spread(e.index)
        chunks = w.join([_element(w, s, i) for i in at], e.type.dtype)
    elif lanes == 1:
        chunks = [_element(w, s, w.scalar(e.index))]
    else:
        chunks = _vector(w, s, w.scalar(e.index), lanes, w.aligned[id(e)])
    if e.mask is None or (known is not None and known.all()):
        return chunks
    n = min(lanes, 4)
    masks = w.value(e.mask)
    if e.mask.type.lanes == 1 and n > 1:
        masks = [w.temp(masks[0])] * len(chunks)
    zero = ZERO[REGISTER[s.dtype.kind]]
    zero = zero if n == 1 else f"{vec(REGISTER[s.dtype.kind], n)}({zero})"
    return [f"select({zero}, {c}, {m})" for c, m in zip(chunks, masks, strict=True)]


def _vector(w: WgslWriter, s: StorageWords, index: str, lanes: int, aligned: int) -> list[str]:
    n = min(lanes, 4)
    if lanes % s.unit or aligned % s.unit or s.unit == 1:
        index = w.temp(index)
        return w.join([_element(w, s, offset(index, i)) for i in range(lanes)], s.dtype)
    if s.per == 1:
        return _from_units(w, s, index, lanes)
    words = _run(w, s, index, lanes // s.per)
    step = n // s.per
    return [unpack(w, s.dtype, words[i : i + step]) for i in range(0, len(words), step)]


def _from_units(w: WgslWriter, s: StorageWords, index: str, lanes: int) -> list[str]:
    """The chunks of whole units whose words are elements."""
    n = min(lanes, 4)
    at = over(index, s.k)
    at = w.temp(at) if lanes > s.k else at
    units = [unit(s, offset(at, i)) for i in range(lanes // s.k)]
    if s.word == "f16":
        units = [f"{vec('f32', s.k)}({u})" for u in units]
    if s.k == n:
        return units
    kind = vec(REGISTER[s.dtype.kind], n)
    pairs = zip(units[::2], units[1::2], strict=True)
    return [f"{kind}({a}, {b})" for a, b in pairs]


def unpack(w: WgslWriter, dtype: dt.DType, words: list[str]) -> str:
    """The lanes held in one or two words, in register form."""
    if dtype is dt.float16:
        parts = [f"unpack2x16float({x})" for x in words]
        return parts[0] if len(parts) == 1 else f"vec4<f32>({', '.join(parts)})"
    if dtype is dt.bfloat16:
        names = [w.temp(x) for x in words]
        halves = ", ".join(f"{x} << 16u, {x} & 0xffff0000u" for x in names)
        n = 2 * len(words)
        return f"bitcast<vec{n}<f32>>(vec{n}<u32>({halves}))"
    if dtype is dt.int8:
        high = f"vec4<i32>(bitcast<i32>({words[0]})) << vec4<u32>(24u, 16u, 8u, 0u)"
        return f"(({high}) >> vec4<u32>(24u))"
    low = f"((vec4<u32>({words[0]}) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u))"
    return f"({low} != vec4<u32>(0u))" if dtype is dt.bool_ else low


def words(w: WgslWriter, e: ir.Expr) -> list[str]:
    """Returns the u32 words with the bytes of a value: straight from memory, where it is loaded
    whole words at a time, or as they were before the split."""
    if isinstance(e, ir.Bitcast) and e.x.type.dtype.itemsize == 4:
        return [f"bitcast<u32>({x})" for x in w.spread(e.x)]
    if isinstance(e, ir.Load) and e.mask is None and e.index.type.lanes == 1:
        s = w.sources[id(e.source)]
        if s.per == 4 and w.aligned[id(e)] % max(s.unit, 4) == 0 and e.type.lanes % s.unit == 0:
            return _run(w, s, w.scalar(e.index), e.type.lanes // 4)
    bytes_ = [f"(bitcast<u32>({x}) & 255u)" for x in w.spread(e)]
    cuts = [
        [f"{x} << {8 * i}u" for i, x in enumerate(bytes_[n : n + 4])]
        for n in range(0, len(bytes_), 4)
    ]
    return [" | ".join(f"({x})" for x in cut) for cut in cuts]


# -- stores -------------------------------------------------------------------------------------


def store(w: WgslWriter, e: ir.Store) -> None:
    """Emits a store. Whole words are written at once; parts of a word by two atomic operations on
    disjoint bits, so that neighbouring threads never disturb each other."""
    s = w.sources[id(e.target)]
    lanes = max(e.value.type.lanes, e.index.type.lanes)
    value = _bits_source(e.value, s)
    chunks = w.value(value)
    if align.lanes_uniform(e.mask):
        with _when(w, "true" if e.mask is None else w.spread(e.mask)[0]):
            _store(w, s, e, chunks, lanes)
        return
    assert e.mask is not None
    masks = w.spread(e.mask)
    items = _lanes_of(w, s, chunks, lanes)
    where = _indices(w, e, lanes)
    for condition, at, item in zip(masks, where, items, strict=True):
        if condition != "false":
            with _when(w, condition):
                _put_element(w, s, at, item)


@contextlib.contextmanager
def _when(w: WgslWriter, condition: str) -> Iterator[None]:
    """Emits the block's statements under the condition."""
    if condition == "true":
        yield
        return
    w.emit(f"if ({condition}) {{")
    w.depth += 1
    yield
    w.depth -= 1
    w.emit("}")


def _bits_source(value: ir.Expr, s: StorageWords) -> ir.Expr:
    """Returns the value to round when storing: the f32 inside a cast to the stored type (rounding
    once more would change nothing)."""
    inner = isinstance(value, ir.Cast) and value.x.type.dtype is dt.float32
    return value.x if inner and s.per > 1 and s.dtype.is_float else value  # type: ignore[attr-defined]


def _indices(w: WgslWriter, e: ir.Store, lanes: int) -> list[str]:
    if e.index.type.lanes > 1:
        return w.spread(e.index)
    first = w.temp(w.scalar(e.index))
    return [offset(first, i) for i in range(lanes)]


def _store(w: WgslWriter, s: StorageWords, e: ir.Store, chunks: list[str], lanes: int) -> None:
    aligned = w.aligned[id(e)]
    if e.index.type.lanes == 1 and lanes > 1 and lanes % s.unit == 0 and aligned % s.unit == 0:
        _store_units(w, s, w.scalar(e.index), chunks, lanes)
        return
    where = _indices(w, e, lanes)
    for at, item in zip(where, _lanes_of(w, s, chunks, lanes), strict=True):
        _put_element(w, s, at, item)


def _store_units(w: WgslWriter, s: StorageWords, index: str, chunks: list[str], lanes: int) -> None:
    words = chunks if s.per == 1 and s.k == min(lanes, 4) else _words_of(w, s, chunks, lanes)
    if s.word == "f16" and words is chunks:
        words = [_f16(c, s.k) for c in chunks]
    elif s.k > 1 and words is not chunks:
        kind = vec(s.word, s.k)
        words = [f"{kind}({', '.join(words[i : i + s.k])})" for i in range(0, len(words), s.k)]
    at = over(index, s.unit)
    at = w.temp(at) if len(words) > 1 else at
    for i, text in enumerate(words):
        w.emit(_put(s, offset(at, i), text))


def _words_of(w: WgslWriter, s: StorageWords, chunks: list[str], lanes: int) -> list[str]:
    if s.per == 1:
        return _lanes_of(w, s, chunks, lanes)
    bits = _lanes_of(w, s, chunks, lanes)
    width = 32 // s.per
    words = []
    for first in range(0, lanes, s.per):
        terms = [bits[first + i] + (f" << {width * i}u" if i else "") for i in range(s.per)]
        words.append(" | ".join(f"({t})" for t in terms))
    return words


def _lanes_of(w: WgslWriter, s: StorageWords, chunks: list[str], lanes: int) -> list[str]:
    """One text per lane: bits in the low part of a u32 for packed sources, else the value."""
    n = min(lanes, 4)
    if s.word == "f16":
        chunks = [_f16(c, n) for c in chunks]
    elif s.per > 1:
        chunks = [_to_bits(w, s.dtype, c, n) for c in chunks]
    return w.lanes(chunks, lanes)


def _to_bits(w: WgslWriter, dtype: dt.DType, text: str, n: int) -> str:
    kind = vec("u32", n)
    if dtype is dt.float16:
        return f"{w.helper('w_f16_bits', n)}({text})"
    if dtype is dt.bfloat16:
        return f"{w.helper('w_bf16_bits', n)}({text})"
    if dtype is dt.bool_:
        return f"{kind}({text})"
    return f"({kind}({text}) & {kind}(255u))"


def _f16(text: str, n: int) -> str:
    """An f32 chunk as native f16. The value is one of f16 already (see values.cast), so the
    conversion, whose rounding WGSL leaves open, is exact."""
    return f"{vec('f16', n)}({text})"


def _put_element(w: WgslWriter, s: StorageWords, index: str, item: str) -> None:
    if s.per == 1:
        w.emit(_put(s, index, item))
        return
    bits = 32 // s.per
    index = w.temp(index)
    at = w.temp(over(index, s.per))
    shift = w.temp(f"{within(index, s.per)} * {bits}u")
    clear = f"~({(1 << bits) - 1:#x}u << {shift})"
    if len(s.parts) > 1:
        w.emit(f"{s.name}put({at}, {clear}, {item} << {shift});")
        return
    at = inside(s, at)
    w.emit(f"atomicAnd(&{s.name}[{at}], {clear});")
    w.emit(f"atomicOr(&{s.name}[{at}], {item} << {shift});")


RULES: Table = {
    ir.Load: load, ir.Store: store, ir.AsyncCopy: lambda w, s: store(w, s.store),
}  # fmt: skip


# -- declarations -------------------------------------------------------------------------------


def array_type(s: StorageWords) -> str:
    """The type of a local array."""
    return f"array<{vec(s.word, s.k)}, {s.units}>"


def part_functions(s: StorageWords, writable: bool) -> str:
    """get, set and put of a split buffer: the part is found by comparing the unit index."""
    kind = vec(s.word, s.k)
    place = [f"{s.name}p{n}" for n in range(len(s.parts))]
    load, keep = ("atomicLoad(&{}[{}])", "atomicStore(&{}[{}], x);") if s.atomic else (
        "{}[{}]", "{}[{}] = x;")  # fmt: skip
    text = _chain(f"fn {s.name}get(i: i32) -> {kind}", s, place, "return " + load + ";")
    if writable:
        text += _chain(f"fn {s.name}set(i: i32, x: {kind})", s, place, keep)
    if writable and s.atomic:
        both = "atomicAnd(&{0}[{1}], clear); atomicOr(&{0}[{1}], bits);"
        text += _chain(f"fn {s.name}put(i: i32, clear: u32, bits: u32)", s, place, both)
    return text


def _chain(head: str, s: StorageWords, place: list[str], action: str) -> str:
    lines = [head + " {"]
    for n in range(len(place) - 1):
        at = f"i - {s.parts[n]}i" if n else "i"
        back = "" if action.startswith("return") else " return;"
        lines.append(f"  if (i < {s.parts[n + 1]}i) {{ {action.format(place[n], at)}{back} }}")
    lines.append("  " + action.format(place[-1], f"i - {s.parts[-1]}i"))
    return "\n".join([*lines, "}", ""])
