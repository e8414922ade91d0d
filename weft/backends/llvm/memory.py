"""Loads, stores, prefetches and local arrays."""

from __future__ import annotations

import functools

from weft.backends.llvm import text
from weft.backends.llvm.lanes import splat
from weft.backends.llvm.values import wide
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.ir import Expr, Type
from weft.kernel.rules import Table

STACK_ARRAY = 16 << 10  # bytes: a larger private array lives in the worker's scratch memory
STACK_TOTAL = 128 << 10


def _array(w: LlvmWriter, array: ir.Array) -> None:
    """Gives an Array its memory, once: the stack, or scratch when it is large."""
    if array.name in w.places:
        return
    nbytes = max(array.size, 1) * array.dtype.itemsize
    place = f"%{w.fresh('array')}"
    w.places[array.name] = place
    if nbytes <= STACK_ARRAY and w.stack_used + nbytes <= STACK_TOTAL:
        w.stack_used += nbytes
        element = text.MEMORY[array.dtype]
        w.prologue.append(f"  {place} = alloca [{max(array.size, 1)} x {element}], align 64")
        cleared(w, place, nbytes)
        return
    start, w.scratch_used = w.scratch_used, w.scratch_used + -(-nbytes // 64) * 64
    if w.scratch_used > w.scratch_bytes:
        raise w.fail(
            f"private arrays need {w.scratch_used} bytes of scratch; "
            f"the device has {w.scratch_bytes} per worker"
        )
    w.prologue.append(f"  {place} = getelementptr i8, ptr %scratch, i64 {start}")
    cleared(w, place, nbytes)


def cleared(w: LlvmWriter, place: str, nbytes: int, space: int = 0) -> None:
    """Clears local memory at the start where the kernel requires it."""
    if w.kernel.clean:
        name, p = f"llvm.memset.p{space}.i64", text.pointer(space)
        w.declared[name] = f"declare void @{name}({p}, i8, i64, i1)"
        w.prologue.append(f"  call void @{name}({p} {place}, i8 0, i64 {nbytes}, i1 false)")


def address(w: LlvmWriter, place: ir.Buffer | ir.Array, index: Expr, masked: bool = False) -> str:
    """The pointer to element `index` (a vector of pointers for a vector index)."""
    base = w.places.get(place.name)
    if base is None:
        raise w.fail(f"{place.name} is used before it is declared")
    lanes, t = index.type.lanes, w.target.index
    if lanes > 1:
        operand, t = w.value(index), text.register(index.type)
    elif index.type.dtype == dt.int32:
        operand = wide(w, index)
    else:
        operand = w.emit(f"zext {text.register(index.type)} {w.value(index)} to i64")
    if operand == "0":
        return base
    inbounds = "" if masked or lanes > 1 else "inbounds "
    element = text.MEMORY[place.dtype]
    p = pointer_type(w, place)
    return w.emit(f"getelementptr {inbounds}{element}, {p} {base}, {t} {operand}")


def pointer_type(w: LlvmWriter, place: ir.Buffer | ir.Array) -> str:
    """The LLVM type of a pointer to the buffer or array."""
    return text.pointer(w.spaces.get(place.name, 0))


def alignment(w: LlvmWriter, node: ir.Load | ir.Store, dtype: dt.DType) -> int:
    """Bytes that divide the address of an access: a multiple of them is where memory starts."""
    known = w.aligned.get(id(node), 1) * dtype.itemsize
    return max(dtype.itemsize, min(known, w.target.base_align))


# -- loads


def _load(w: LlvmWriter, x: ir.Load) -> str:
    n, size = x.type.lanes, alignment(w, x, x.source.dtype)
    t, p = text.vector(_element(w, x.type, x.source), n), pointer_type(w, x.source)
    space = w.spaces.get(x.source.name, 0)
    if x.index.type.lanes > 1:
        mask = w.value(x.mask) if x.mask is not None else "splat (i1 true)"
        pointers = address(w, x.source, x.index)
        name = f"llvm.masked.gather.{_overload(w, x.type, x.source)}.v{n}p{space}"
        where = f"<{n} x {p}> align {x.source.dtype.itemsize}"
        args = [(where, pointers), (f"<{n} x i1>", mask)]
        return _loaded(w, w.call(name, t, [*args, (t, "zeroinitializer")]), x)
    if x.mask is None:
        pointer = address(w, x.source, x.index)
        loaded = w.emit(f"load {t}, {p} {pointer}, align {size}")
        return _loaded(w, loaded, x)
    if n > 1:
        return _loaded(w, _masked(w, x, t, size), x)
    mask = w.value(x.mask)
    pointer = address(w, x.source, x.index, masked=True)
    before, read, after = w.block, w.fresh("read"), w.fresh("after")
    w.branch(mask, read, after)
    w.label(read)
    loaded = w.emit(f"load {t}, {p} {pointer}, align {size}")
    w.jump(after)
    w.label(after)
    zero = "0" if t.startswith("i") else text.constant(0, x.type)
    merged = w.emit(f"phi {t} [ {loaded}, %{read} ], [ {zero}, %{before} ]")
    return _loaded(w, merged, x)


def _masked(w: LlvmWriter, x: ir.Load, t: str, size: int) -> str:
    """Consecutive elements under a mask. Where conditions hold for all lanes or none, a CPU reads
    the start of the buffer instead. Microcode takes a load without lanes from an unmapped page
    apart, in some 500 cycles (Zen 5)."""
    assert x.mask is not None
    n, p = x.type.lanes, pointer_type(w, x.source)
    whole, lanes = _uniform(x.mask)
    pointer = address(w, x.source, x.index, masked=True)
    base, safe = w.places[x.source.name], x.source.size >= n and not w.target.buffer_space
    if whole and safe:
        held = w.value(_all(whole))
        pointer = w.emit(f"select i1 {held}, {p} {pointer}, {p} {base}")
        if not lanes:
            loaded = w.emit(f"load {t}, {p} {pointer}, align {size}")
            return w.emit(f"select i1 {held}, {t} {loaded}, {t} zeroinitializer")
    name = f"llvm.masked.load.{_overload(w, x.type, x.source)}.p{w.spaces.get(x.source.name, 0)}"
    args = [(f"{p} align {size}", pointer), (f"<{n} x i1>", w.value(x.mask))]
    return w.call(name, t, [*args, (t, "zeroinitializer")])


def _uniform(mask: Expr) -> tuple[list[Expr], list[Expr]]:
    """The scalars whose splats are in a conjunction, and its other parts."""
    if isinstance(mask, ir.Binary) and mask.op == "and":
        (a, b), (c, d) = _uniform(mask.a), _uniform(mask.b)
        return a + c, b + d
    if isinstance(mask, ir.Vec) and mask.op == "splat":
        return [mask.args[0]], []
    return [], [mask]


def _all(conditions: list[Expr]) -> Expr:
    return functools.reduce(lambda a, b: a & b, conditions)


def _loaded(w: LlvmWriter, operand: str, x: ir.Load) -> str:
    turned, r = _turned(w, operand, x.type, x.source), text.memory(x.type)
    t = text.vector(_element(w, x.type, x.source), x.type.lanes)
    whole = turned if t == r else w.emit(f"bitcast {t} {turned} to {r}")
    return _to_register(w, whole, x.type)


def _turns(w: LlvmWriter, type_: Type, place: ir.Buffer | ir.Array) -> bool:
    """True if the machine's byte order differs from the buffer's."""
    return w.target.swap and type_.dtype.itemsize > 1 and isinstance(place, ir.Buffer)


def _element(w: LlvmWriter, type_: Type, place: ir.Buffer | ir.Array) -> str:
    """Returns the type of an element in memory. Elements whose bytes must be reversed are
    integers: a load may change the bits of a signalling NaN."""
    bits = f"i{8 * type_.dtype.itemsize}"
    return bits if _turns(w, type_, place) else text.MEMORY[type_.dtype]


def _turned(w: LlvmWriter, operand: str, type_: Type, place: ir.Buffer | ir.Array) -> str:
    """An element of `_element` with its bytes as the machine has them, or the reverse."""
    if not _turns(w, type_, place):
        return operand
    element = _element(w, type_, place)
    t = text.vector(element, type_.lanes)
    name = f"llvm.bswap.{text.mangle(element, type_.lanes)}"
    return w.call(name, t, [(t, operand)])


def _overload(w: LlvmWriter, type_: Type, place: ir.Buffer | ir.Array) -> str:
    return text.mangle(_element(w, type_, place), type_.lanes)


def _to_register(w: LlvmWriter, operand: str, type_: Type) -> str:
    if type_.dtype.kind != "bool":
        return operand
    t = text.memory(type_)
    return w.emit(f"icmp ne {t} {operand}, {'0' if type_.lanes == 1 else 'zeroinitializer'}")


def _to_memory(w: LlvmWriter, operand: str, type_: Type) -> str:
    if type_.dtype.kind != "bool":
        return operand
    return w.emit(f"zext {text.register(type_)} {operand} to {text.memory(type_)}")


# -- stores


def store(w: LlvmWriter, s: ir.Store) -> None:
    type_ = s.value.type
    n, p = type_.lanes, pointer_type(w, s.target)
    t, r = text.vector(_element(w, type_, s.target), n), text.memory(type_)
    size, space = alignment(w, s, s.target.dtype), w.spaces.get(s.target.name, 0)
    operand = _to_memory(w, w.value(s.value), type_)
    operand = operand if t == r else w.emit(f"bitcast {r} {operand} to {t}")
    operand = _turned(w, operand, type_, s.target)
    if s.index.type.lanes > 1:
        mask = w.value(s.mask) if s.mask is not None else "splat (i1 true)"
        pointers = address(w, s.target, s.index)
        name = f"llvm.masked.scatter.{_overload(w, type_, s.target)}.v{n}p{space}"
        where = f"<{n} x {p}> align {s.target.dtype.itemsize}"
        args = [(t, operand), (where, pointers), (f"<{n} x i1>", mask)]
        w.call(name, "void", args)
        return
    if s.mask is None:
        pointer = address(w, s.target, s.index)
        hint = s.nontemporal and w.target.nontemporal
        plain = f"  store {t} {operand}, {p} {pointer}, align {size}"
        _store_plain(w, plain, t, operand, pointer, n * s.target.dtype.itemsize, hint)
        return
    mask = w.value(s.mask)
    pointer = address(w, s.target, s.index, masked=True)
    if n > 1:
        narrow = s.target.dtype.itemsize < 4
        mask = _hidden(w, mask, n) if narrow and w.target.hide_masks else mask
        name = f"llvm.masked.store.{_overload(w, type_, s.target)}.p{space}"
        args = [(t, operand), (f"{p} align {size}", pointer), (f"<{n} x i1>", mask)]
        w.call(name, "void", args)
        return
    write, after = w.fresh("write"), w.fresh("after")
    w.branch(mask, write, after)
    w.label(write)
    w.lines.append(f"  store {t} {operand}, {p} {pointer}, align {size}")
    w.jump(after)
    w.label(after)


def _live(w: LlvmWriter) -> str:
    w.prologue.append("  %live = icmp ne ptr %scratch, null")
    return "%live"


def _hidden(w: LlvmWriter, mask: str, lanes: int) -> str:
    """The same mask, which LLVM cannot know to be constant: the scratch pointer is never null,
    but only we know."""
    live = splat(w, w.kept(_live), Type(dt.bool_, lanes))
    return w.emit(f"and <{lanes} x i1> {mask}, {live}")


def _store_plain(
    w: LlvmWriter, plain: str, t: str, operand: str, pointer: str, nbytes: int, hint: bool
) -> None:
    if not hint or nbytes < 16:
        w.lines.append(plain)
        return
    # A register may bypass the cache only at an aligned address: ask, it is known by the CPU. To
    # ask more of a value of several would send some of a line's halves past the cache, some not.
    w.fences = True
    align = min(nbytes, w.target.register_bytes)
    direct, usual, after = w.fresh("direct"), w.fresh("usual"), w.fresh("after")
    number = w.emit(f"ptrtoint ptr {pointer} to i64")
    low = w.emit(f"and i64 {number}, {align - 1}")
    w.branch(w.emit(f"icmp eq i64 {low}, 0"), direct, usual)
    w.label(direct)
    w.lines.append(f"  store {t} {operand}, ptr {pointer}, align {align}, !nontemporal !0")
    w.jump(after)
    w.label(usual)
    w.lines.append(plain)
    w.jump(after)
    w.label(after)


def _prefetch(w: LlvmWriter, s: ir.Prefetch) -> None:
    if not w.target.prefetch:
        return
    pointer = address(w, s.source, s.index, masked=True)
    args = [("ptr", pointer), ("i32", "0"), ("i32", "3"), ("i32", "1")]
    w.call("llvm.prefetch.p0", "void", args)


RULES: Table = {
    ir.Array: _array, ir.Load: _load, ir.Store: store, ir.Prefetch: _prefetch,
    ir.AsyncCopy: lambda w, s: store(w, s.store),
}  # fmt: skip
