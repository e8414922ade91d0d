"""Loads, stores, prefetches and local arrays."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.dots import Dots
from weft.backends.llvm.target import LlvmTarget
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.align import accesses
from weft.kernel.ir import Expr, Type

STACK_ARRAY = 16 << 10  # bytes: a larger private array lives in the worker's scratch memory
STACK_TOTAL = 128 << 10


class Memory(Dots):
    """Adds memory to the expression emitter. `places` maps buffer and array names to pointers,
    `spaces` names to address spaces other than 0, `aligned` (by `id`) the loads and stores to a
    power of two that divides their index."""

    def __init__(self, kernel: ir.Kernel, target: LlvmTarget, scratch_bytes: int) -> None:
        super().__init__(kernel, target)
        self.places = {b.name: f"%buffer{i}" for i, b in enumerate(kernel.buffers)}
        space = target.buffer_space
        self.spaces = dict.fromkeys(self.places, space) if space else {}
        self.aligned: dict[int, int] = {}
        if target.base_align > 1:
            self.aligned = {id(a.node): a.aligned for a in accesses(kernel)}
        self.stack_note = f", addrspace({target.stack_space})" if target.stack_space else ""
        self.prologue: list[str] = []  # stack slots and scratch pointers, at function entry
        self.block = "group"
        self.fences = False
        self.scratch_used = 0
        self._scratch_bytes = scratch_bytes
        self._stack_used = 0
        self._hides = False

    # -- blocks

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, cond: str, yes: str, no: str) -> None:
        self.lines.append(f"  br i1 {cond}, label %{yes}, label %{no}")

    def jump(self, name: str) -> None:
        self.lines.append(f"  br label %{name}")

    # -- places

    def declare_array(self, array: ir.Array) -> None:
        """Gives an Array its memory, once: the stack, or scratch when it is large."""
        if array.name in self.places:
            return
        nbytes = max(array.size, 1) * array.dtype.itemsize
        place = f"%{self.fresh('array')}"
        self.places[array.name] = place
        if nbytes <= STACK_ARRAY and self._stack_used + nbytes <= STACK_TOTAL:
            self._stack_used += nbytes
            element = text.MEMORY[array.dtype]
            self.prologue.append(f"  {place} = alloca [{max(array.size, 1)} x {element}], align 64")
            self.cleared(place, nbytes)
            return
        start, self.scratch_used = self.scratch_used, self.scratch_used + -(-nbytes // 64) * 64
        if self.scratch_used > self._scratch_bytes:
            raise self.fail(
                f"private arrays need {self.scratch_used} bytes of scratch; "
                f"the device has {self._scratch_bytes} per worker"
            )
        self.prologue.append(f"  {place} = getelementptr i8, ptr %scratch, i64 {start}")
        self.cleared(place, nbytes)

    def cleared(self, place: str, nbytes: int, space: int = 0) -> None:
        """Clears local memory at the start where the kernel requires it."""
        if self.kernel.clean:
            name, p = f"llvm.memset.p{space}.i64", text.pointer(space)
            self.declared[name] = f"declare void @{name}({p}, i8, i64, i1)"
            self.prologue.append(f"  call void @{name}({p} {place}, i8 0, i64 {nbytes}, i1 false)")

    def address(self, place: ir.Buffer | ir.Array, index: Expr, masked: bool = False) -> str:
        """The pointer to element `index` (a vector of pointers for a vector index)."""
        base = self.places.get(place.name)
        if base is None:
            raise self.fail(f"{place.name} is used before it is declared")
        lanes, t = index.type.lanes, self.target.index
        if lanes > 1:
            operand, t = self.value(index), text.register(index.type)
        elif index.type.dtype == dt.int32:
            operand = self.wide(index)
        else:
            operand = self.emit(f"zext {text.register(index.type)} {self.value(index)} to i64")
        if operand == "0":
            return base
        inbounds = "" if masked or lanes > 1 else "inbounds "
        element = text.MEMORY[place.dtype]
        p = self.pointer(place)
        return self.emit(f"getelementptr {inbounds}{element}, {p} {base}, {t} {operand}")

    def pointer(self, place: ir.Buffer | ir.Array) -> str:
        """The LLVM type of a pointer to the buffer or array."""
        return text.pointer(self.spaces.get(place.name, 0))

    def _align(self, node: ir.Load | ir.Store, dtype: dt.DType) -> int:
        """Bytes that divide the address of an access: a multiple of them is where memory starts."""
        known = self.aligned.get(id(node), 1) * dtype.itemsize
        return max(dtype.itemsize, min(known, self.target.base_align))

    # -- loads

    def load(self, x: ir.Load) -> str:
        n, size = x.type.lanes, self._align(x, x.source.dtype)
        t, p = text.vector(self._element(x.type, x.source), n), self.pointer(x.source)
        space = self.spaces.get(x.source.name, 0)
        if x.index.type.lanes > 1:
            mask = self.value(x.mask) if x.mask is not None else "splat (i1 true)"
            pointers = self.address(x.source, x.index)
            name = f"llvm.masked.gather.{self._overload(x.type, x.source)}.v{n}p{space}"
            where = f"<{n} x {p}> align {x.source.dtype.itemsize}"
            args = [(where, pointers), (f"<{n} x i1>", mask)]
            return self._loaded(self.call(name, t, [*args, (t, "zeroinitializer")]), x)
        if x.mask is None:
            pointer = self.address(x.source, x.index)
            loaded = self.emit(f"load {t}, {p} {pointer}, align {size}")
            return self._loaded(loaded, x)
        mask = self.value(x.mask)
        if n > 1:
            pointer = self.address(x.source, x.index, masked=True)
            name = f"llvm.masked.load.{self._overload(x.type, x.source)}.p{space}"
            args = [(f"{p} align {size}", pointer), (f"<{n} x i1>", mask)]
            return self._loaded(self.call(name, t, [*args, (t, "zeroinitializer")]), x)
        pointer = self.address(x.source, x.index, masked=True)
        before, read, after = self.block, self.fresh("read"), self.fresh("after")
        self.branch(mask, read, after)
        self.label(read)
        loaded = self.emit(f"load {t}, {p} {pointer}, align {size}")
        self.jump(after)
        self.label(after)
        zero = "0" if t.startswith("i") else text.constant(0, x.type)
        merged = self.emit(f"phi {t} [ {loaded}, %{read} ], [ {zero}, %{before} ]")
        return self._loaded(merged, x)

    def _loaded(self, operand: str, x: ir.Load) -> str:
        turned, r = self._turned(operand, x.type, x.source), text.memory(x.type)
        t = text.vector(self._element(x.type, x.source), x.type.lanes)
        whole = turned if t == r else self.emit(f"bitcast {t} {turned} to {r}")
        return self._to_register(whole, x.type)

    def _turns(self, type_: Type, place: ir.Buffer | ir.Array) -> bool:
        """True if the machine's byte order differs from the buffer's."""
        return self.target.swap and type_.dtype.itemsize > 1 and isinstance(place, ir.Buffer)

    def _element(self, type_: Type, place: ir.Buffer | ir.Array) -> str:
        """Returns the type of an element in memory. Elements whose bytes must be reversed are
        integers: a load may change the bits of a signalling NaN."""
        bits = f"i{8 * type_.dtype.itemsize}"
        return bits if self._turns(type_, place) else text.MEMORY[type_.dtype]

    def _turned(self, operand: str, type_: Type, place: ir.Buffer | ir.Array) -> str:
        """An element of `_element` with its bytes as the machine has them, or the reverse."""
        if not self._turns(type_, place):
            return operand
        element = self._element(type_, place)
        t = text.vector(element, type_.lanes)
        name = f"llvm.bswap.{text.mangle(element, type_.lanes)}"
        return self.call(name, t, [(t, operand)])

    def _overload(self, type_: Type, place: ir.Buffer | ir.Array) -> str:
        return text.mangle(self._element(type_, place), type_.lanes)

    def _to_register(self, operand: str, type_: Type) -> str:
        if type_.dtype.kind != "bool":
            return operand
        t = text.memory(type_)
        return self.emit(f"icmp ne {t} {operand}, {'0' if type_.lanes == 1 else 'zeroinitializer'}")

    def _to_memory(self, operand: str, type_: Type) -> str:
        if type_.dtype.kind != "bool":
            return operand
        return self.emit(f"zext {text.register(type_)} {operand} to {text.memory(type_)}")

    # -- stores

    def store(self, s: ir.Store) -> None:
        type_ = s.value.type
        n, p = type_.lanes, self.pointer(s.target)
        t, r = text.vector(self._element(type_, s.target), n), text.memory(type_)
        size, space = self._align(s, s.target.dtype), self.spaces.get(s.target.name, 0)
        operand = self._to_memory(self.value(s.value), type_)
        operand = operand if t == r else self.emit(f"bitcast {r} {operand} to {t}")
        operand = self._turned(operand, type_, s.target)
        if s.index.type.lanes > 1:
            mask = self.value(s.mask) if s.mask is not None else "splat (i1 true)"
            pointers = self.address(s.target, s.index)
            name = f"llvm.masked.scatter.{self._overload(type_, s.target)}.v{n}p{space}"
            where = f"<{n} x {p}> align {s.target.dtype.itemsize}"
            args = [(t, operand), (where, pointers), (f"<{n} x i1>", mask)]
            self.call(name, "void", args)
            return
        if s.mask is None:
            pointer = self.address(s.target, s.index)
            hint = s.nontemporal and self.target.nontemporal
            plain = f"  store {t} {operand}, {p} {pointer}, align {size}"
            self._store_plain(plain, t, operand, pointer, n * s.target.dtype.itemsize, hint)
            return
        mask = self.value(s.mask)
        pointer = self.address(s.target, s.index, masked=True)
        if n > 1:
            narrow = s.target.dtype.itemsize < 4
            mask = self._hidden(mask, n) if narrow and self.target.hide_masks else mask
            name = f"llvm.masked.store.{self._overload(type_, s.target)}.p{space}"
            args = [(t, operand), (f"{p} align {size}", pointer), (f"<{n} x i1>", mask)]
            self.call(name, "void", args)
            return
        write, after = self.fresh("write"), self.fresh("after")
        self.branch(mask, write, after)
        self.label(write)
        self.lines.append(f"  store {t} {operand}, {p} {pointer}, align {size}")
        self.jump(after)
        self.label(after)

    def _hidden(self, mask: str, lanes: int) -> str:
        """The same mask, which LLVM cannot know to be constant: the scratch pointer is never null,
        but only we know."""
        if not self._hides:
            self._hides = True
            self.prologue.append("  %live = icmp ne ptr %scratch, null")
        live = self.splat("%live", Type(dt.bool_, lanes))
        return self.emit(f"and <{lanes} x i1> {mask}, {live}")

    def _store_plain(
        self, plain: str, t: str, operand: str, pointer: str, nbytes: int, hint: bool
    ) -> None:
        if not hint or nbytes < 16:
            self.lines.append(plain)
            return
        # A vector may bypass the cache only at an aligned address: ask, it is known by the CPU.
        self.fences = True
        align = min(nbytes, 64)
        direct, usual, after = self.fresh("direct"), self.fresh("usual"), self.fresh("after")
        number = self.emit(f"ptrtoint ptr {pointer} to i64")
        low = self.emit(f"and i64 {number}, {align - 1}")
        self.branch(self.emit(f"icmp eq i64 {low}, 0"), direct, usual)
        self.label(direct)
        self.lines.append(f"  store {t} {operand}, ptr {pointer}, align {align}, !nontemporal !0")
        self.jump(after)
        self.label(usual)
        self.lines.append(plain)
        self.jump(after)
        self.label(after)

    def prefetch(self, s: ir.Prefetch) -> None:
        if not self.target.prefetch:
            return
        pointer = self.address(s.source, s.index, masked=True)
        args = [("ptr", pointer), ("i32", "0"), ("i32", "3"), ("i32", "1")]
        self.call("llvm.prefetch.p0", "void", args)
