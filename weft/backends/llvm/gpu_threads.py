"""The threads of a GPU's group: their indices, barriers, arrays, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable

from weft.backends.llvm import dots, launch, text
from weft.backends.llvm.gpu_target import Call, gpu_of
from weft.backends.llvm.memory import cleared
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.core.errors import LimitError
from weft.kernel import ir
from weft.kernel.ir import Type
from weft.kernel.rules import Table

SHARED = 3  # the address space of memory that a group shares
_STACK = 256 << 10  # bytes of private arrays that a thread may have


def _axis(w: LlvmWriter, x: ir.Axis) -> str:
    """The index of the group or thread; 0 along an axis of one."""
    if x.kind == "group":
        w.axes.add(x.dim)
        return f"%group{x.dim}"
    threads = w.kernel.threads[x.dim]
    return index(w, gpu_of(w).thread, x.dim, threads) if threads > 1 else "0"


def index(w: LlvmWriter, name: str, dim: int, limit: int) -> str:
    name = name.format("xyz"[dim])
    w.declared[name] = f"declare i32 @{name}()"
    return w.emit(f"call range(i32 0, {limit}) i32 @{name}()")


def barrier(w: LlvmWriter, s: ir.Barrier) -> None:
    """All threads of the group meet, and see what the others wrote."""
    for line in gpu_of(w).barrier:
        if "@" in line:
            name = line.split("@")[1].split("(")[0]
            types = "i32" if "i32" in line else ""
            w.declared[name] = f"declare void @{name}({types})"
        w.lines.append(f"  {line}")


# -- collectives


def _collective(w: LlvmWriter, x: ir.Collective) -> str:
    if x.op.startswith("dot"):
        words_of, left = gpu_of(w).dot4_word, x.args[1].type.dtype
        known = words_of.get(left.name) or (words_of.get("int8") if x.attr else None)
        if x.op != "dot4" or known is None:
            return dots.collective(w, x)
        acc, a, b = (w.value(arg) for arg in x.args)
        return _dot4_words(w, known, x.type.lanes, acc, a, b)
    value = w.value(x.args[0])
    if x.op == "subgroup_xor":
        return _per_lane(w, value, x.type, lambda v: _exchange(w, v, x.type.dtype, x.attr))
    op = x.op.removeprefix("subgroup_")
    return _per_lane(w, value, x.type, lambda v: _reduce(w, op, v, x.type.dtype))


def _per_lane(w: LlvmWriter, operand: str, type_: Type, one: Callable[[str], str]) -> str:
    if type_.lanes == 1:
        return one(operand)
    t, element, result = text.register(type_), text.REGISTER[type_.dtype], "poison"
    for i in range(type_.lanes):
        part = one(w.emit(f"extractelement {t} {operand}, i32 {i}"))
        result = w.emit(f"insertelement {t} {result}, {element} {part}, i32 {i}")
    return result


def _reduce(w: LlvmWriter, op: str, operand: str, dtype: dt.DType) -> str:
    """The sum or maximum over the subgroup, in every thread: for integers one instruction
    where there is one, else exchanges at distances wave / 2 ... 1."""
    name = gpu_of(w).reduce.get((op, dtype.kind))
    if name is not None:
        return w.call(name, "i32", [("i32", operand), ("i32", "-1")])
    t, distance = text.REGISTER[dtype], gpu_of(w).wave // 2
    while distance:
        other = _exchange(w, operand, dtype, distance)
        if op == "add":
            add = "fadd" if dtype.is_float else "add"
            operand = w.emit(f"{add} {t} {operand}, {other}")
        else:
            base = {"float": "llvm.maxnum", "int": "llvm.smax", "uint": "llvm.umax"}[dtype.kind]
            operand = w.intrinsic(base, Type(dtype), operand, other)
        distance //= 2
    return operand


def _exchange(w: LlvmWriter, operand: str, dtype: dt.DType, k: int) -> str:
    """The value of thread `lane ^ k`."""
    if not 0 <= k < gpu_of(w).wave:
        raise w.fail(f"subgroup_xor with {k} in a subgroup of {gpu_of(w).wave}")
    t = text.REGISTER[dtype]
    bits = operand if t == "i32" else w.emit(f"bitcast {t} {operand} to i32")
    if k >= gpu_of(w).swizzle:
        moved = _far(w, bits, k)
    else:
        name, pattern = gpu_of(w).shuffle
        values = {"v": bits, "k": str(k), "pattern": str(k << 10 | 0x1F)}
        moved = w.call(name, "i32", [(u, v.format(**values)) for u, v in pattern])
    return moved if t == "i32" else w.emit(f"bitcast i32 {moved} to {t}")


def _far(w: LlvmWriter, bits: str, k: int) -> str:
    """An exchange beyond 32 lanes, by the lane's own number (AMD)."""
    ones = [("i32", "-1")]
    low = w.call("llvm.amdgcn.mbcnt.lo", "i32", [*ones, ("i32", "0")])
    lane = w.call("llvm.amdgcn.mbcnt.hi", "i32", [*ones, ("i32", low)])
    other = w.emit(f"xor i32 {lane}, {k}")
    at = w.emit(f"shl i32 {other}, 2")
    return w.call("llvm.amdgcn.ds.bpermute", "i32", [("i32", at), ("i32", bits)])


def _dot4_words(w: LlvmWriter, call: Call, n: int, acc: str, a: str, b: str) -> str:
    """One instruction per word."""
    i32 = text.vector("i32", n)
    words = [w.emit(f"bitcast <{4 * n} x i8> {v} to {i32}") for v in (a, b)]
    if n == 1:
        return _dot_word(w, call, words[0], words[1], acc)
    result = "poison"
    for i in range(n):
        x, y, c = (w.emit(f"extractelement {i32} {v}, i32 {i}") for v in (*words, acc))
        part = _dot_word(w, call, x, y, c)
        result = w.emit(f"insertelement {i32} {result}, i32 {part}, i32 {i}")
    return result


def _dot_word(w: LlvmWriter, call: Call, a: str, b: str, c: str) -> str:
    name, pattern = call
    return w.call(name, "i32", [(t, v.format(a=a, b=b, c=c)) for t, v in pattern])


# -- memory


def _array(w: LlvmWriter, array: ir.Array) -> None:
    """A shared array is a variable of the module (or part of the launch's shared memory), a
    private one a local of the thread."""
    if array.name in w.places:
        return
    count, element = max(array.size, 1), text.MEMORY[array.dtype]
    nbytes = count * array.dtype.itemsize
    if array.space == "shared":
        name = _shared_array(w, array, f"[{count} x {element}]")
    else:
        w.stack_used += nbytes
        if w.stack_used > _STACK:
            raise LimitError(
                f"kernel {w.kernel.name}: {w.stack_used} bytes of private arrays "
                f"per thread; at most {_STACK}"
            )
        name = f"%{w.fresh('array')}"
        w.spaces[array.name] = w.target.stack_space
        where = f"align {launch.ALIGN}{w.stack_note}"
        w.prologue.append(f"  {name} = alloca [{count} x {element}], {where}")
        cleared(w, name, nbytes, w.target.stack_space)
    w.places[array.name] = name


def _shared_array(w: LlvmWriter, array: ir.Array, type_: str) -> str:
    w.spaces[array.name] = SHARED
    entry, places = launch.entry(w.kernel), w.kept(_dynamic)
    if not places:
        name = f"@{entry}_{array.name}"
        kind = f"internal addrspace({SHARED}) global {type_}"
        w.globals.append(f"{name} = {kind} poison, align {launch.ALIGN}")
        return name
    whole = f"@{entry}_shared"
    if not w.globals:
        kind = f"external addrspace({SHARED}) global [0 x i8]"
        w.globals.append(f"{whole} = {kind}, align {launch.ALIGN}")
    at = places[array.name]
    return f"getelementptr (i8, ptr addrspace({SHARED}) {whole}, i32 {at})"


def _dynamic(w: LlvmWriter) -> dict[str, int]:
    """The places of shared arrays in the memory that the launch requests; empty if the code
    declares them."""
    places, used = launch.shared_layout(w.kernel)
    return places if used > gpu_of(w).static_shared else {}


RULES: Table = {
    ir.Axis: _axis, ir.Array: _array, ir.Barrier: barrier, ir.Collective: _collective,
}  # fmt: skip
