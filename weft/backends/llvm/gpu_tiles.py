"""Tiles in the matrix units of GPUs: registers that lanes hold as matrix_units.py has it, and the
instructions that move and multiply them.

Source: NVIDIA "PTX ISA", "Warp-level matrix load instruction: ldmatrix".
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.backends.llvm import text
from weft.backends.llvm.gpu_target import gpu_of
from weft.backends.llvm.gpu_threads import SHARED
from weft.backends.llvm.matrix_units import SIDE, UNITS, LaneLayout, LaneOffset, Unit, depth
from weft.backends.llvm.memory import address, pointer_type
from weft.backends.llvm.values import fused
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.ir import Type
from weft.kernel.rules import Table
from weft.kernel.tiles import tile_roles

_ROW_BYTES = 16  # that ldmatrix reads of a row


@dataclass(frozen=True)
class TileRegisters:
    """A tile's registers: stack slots (LLVM keeps them in registers) of one LLVM `type` each, which
    holds a vector of elements."""

    layout: LaneLayout
    slots: tuple[str, ...]
    type: str
    element: str
    turned: bool  # held transposed

    @property
    def vector(self) -> str:
        return text.vector(self.element, len(self.layout.registers[0]))


class KernelTiles:
    """A kernel's tiles: `roles` by name, `held` once declared, this thread's `lane` of its
    subgroup, and the lanes' `offsets` by their parts and a stride. `known` has the contents of
    slots in a block."""

    def __init__(self, w: LlvmWriter) -> None:
        self.roles = tile_roles(w.kernel)
        self.lane = _own_lane(w)
        self.held: dict[str, TileRegisters] = {}
        self.known: dict[str, tuple[str, str]] = {}  # slot -> block and value
        self.offsets: dict[tuple[LaneOffset, LaneOffset, int], str] = {}


def _tile(w: LlvmWriter, tile: ir.Tile) -> None:
    unit, tiles = _fitting(w, tile), w.kept(KernelTiles)
    if tile.name in tiles.held:
        return
    role = tiles.roles[tile.name]
    layout = unit.result if role == "result" else unit.layout(tile.dtype)
    slots = tuple(f"%{w.fresh('tile')}" for _ in layout.registers)
    element = text.REGISTER[tile.dtype]
    whole = text.vector(element, len(layout.registers[0]))
    type_ = whole if role == "result" else unit.products.get(tile.dtype, ("", whole))[1]
    held = tiles.held[tile.name] = TileRegisters(layout, slots, type_, element, role == "turned")
    for slot in slots:
        w.prologue.append(f"  {slot} = alloca {held.type}{w.stack_note}")
        if w.kernel.clean:
            zero = f"store {held.type} zeroinitializer, {w.stack} {slot}"
            w.prologue.append(f"  {zero}")


def _own_lane(w: LlvmWriter) -> str:
    """This thread's number in its subgroup, known from the kernel's start: threads are counted
    with axis 0 fastest."""
    outer, w.lines = w.lines, w.prologue
    x, y, z = (w.value(ir.Axis("thread", d)) for d in range(3))
    wide, high, _ = w.kernel.threads
    upper = w.emit(f"add i32 {y}, {w.emit(f'mul i32 {z}, {high}')}")
    number = w.emit(f"add i32 {x}, {w.emit(f'mul i32 {upper}, {wide}')}")
    found = w.emit(f"and i32 {number}, {gpu_of(w).wave - 1}")
    w.lines = outer
    return found


def _fitting(w: LlvmWriter, tile: ir.Tile) -> Unit:
    threads, gpu = w.kernel.threads[0] * w.kernel.threads[1] * w.kernel.threads[2], gpu_of(w)
    unit = UNITS.get(gpu.unit)
    if unit is None or threads % gpu.wave:
        raise w.fail(
            f"tile {tile.name} of {threads} threads: {gpu.arch} multiplies tiles in "
            f"subgroups of {gpu.wave}"
        )
    sums = tile.dtype in (dt.float32, dt.int32)
    wanted = (SIDE, SIDE if sums else depth(tile.dtype))
    if not (sums or tile.dtype in unit.products) or (tile.rows, tile.cols) != wanted:
        names = ", ".join(f"{SIDE} x {depth(d)} of {d.name}" for d in unit.products)
        raise w.fail(
            f"tile {tile.name} of {tile.rows} x {tile.cols} {tile.dtype}: {gpu.arch} "
            f"takes {names}, and {SIDE} x {SIDE} of float32 or int32 for sums"
        )
    return unit


def _tile_op(w: LlvmWriter, s: ir.TileOp) -> None:
    held = [w.kept(KernelTiles).held[t.name] for t in s.tiles]
    if s.op == "zero":
        for n in range(len(held[0].slots)):
            _put(w, held[0], n, "zeroinitializer")
    elif s.op in ("scale", "store", "load"):
        {"scale": _scale, "store": _store, "load": _load}[s.op](w, s, held[0])
    elif s.op == "add":
        for n in range(len(held[0].slots)):
            parts = [_get(w, h, n) for h in held]
            add = "add" if s.tiles[0].dtype.is_int else "fadd"
            _put(w, held[0], n, w.emit(f"{add} {held[0].type} {parts[0]}, {parts[1]}"))
    elif s.op == "fma":
        for n in range(len(held[0].slots)):
            _fused(w, n, *held)
    elif s.op == "mma_tn":
        raise w.fail(f"{gpu_of(w).arch} has no tile.mma_tn")
    else:
        _multiply(w, s.tiles[1].dtype, *held)


def _get(w: LlvmWriter, held: TileRegisters, n: int) -> str:
    slot = held.slots[n]
    known = w.kept(KernelTiles).known
    block, value = known.get(slot, ("", ""))
    if block != w.block:
        value = w.emit(f"load {held.type}, {w.stack} {slot}")
        known[slot] = w.block, value
    return value


def _put(w: LlvmWriter, held: TileRegisters, n: int, value: str) -> None:
    w.kept(KernelTiles).known[held.slots[n]] = w.block, value
    w.lines.append(f"  store {held.type} {value}, {w.stack} {held.slots[n]}")


def _fused(w: LlvmWriter, n: int, c: TileRegisters, d: TileRegisters, e: TileRegisters) -> None:
    """Register n of c += d * e."""
    factor, kind = _get(w, d, n), Type(dt.float32, len(c.layout.registers[0]))
    if d.element != c.element:
        factor = w.emit(f"sitofp {d.type} {factor} to {c.type}")
    _put(w, c, n, fused(w, kind, factor, _get(w, e, n), _get(w, c, n)))


# -- products


def _multiply(
    w: LlvmWriter, dtype: dt.DType, c: TileRegisters, a: TileRegisters, b: TileRegisters
) -> None:
    """c += a . b, where b is held with rows along k. NVIDIA's instruction takes the two halves
    of b's rows one after the other."""
    gpu = gpu_of(w)
    known = UNITS[gpu.unit].products.get(dtype)
    if known is None:
        raise w.fail(f"no products of tiles of {dtype} on {gpu.arch}")
    name, t = known
    left, right = ([(t, _get(w, x, n)) for n in range(len(x.slots))] for x in (a, b))
    if gpu.unit == "mma":
        for half in range(2):
            sums = [(c.element, _get(w, c, 4 * half + n)) for n in range(4)]
            out = f"{{ {', '.join([c.element] * 4)} }}"
            found = w.call(name, out, [*left, *right[half::2], *sums], convergent=True)
            for n in range(4):
                _put(w, c, 4 * half + n, w.emit(f"extractvalue {out} {found}, {n}"))
        return
    for a_part, b_part in zip(left, right):
        args = [a_part, b_part, (c.type, _get(w, c, 0))]
        if gpu.unit == "wmma" and dtype.is_int:
            sign = ("i1", "true")
            args = [sign, a_part, sign, b_part, args[2], ("i1", "false")]
        elif gpu.unit != "wmma":
            args += [("i32", "0")] * 3
        _put(w, c, 0, w.call(name, c.type, args))


def _as(w: LlvmWriter, value: str, source: str, goal: str) -> str:
    return value if source == goal else w.emit(f"bitcast {source} {value} to {goal}")


# -- memory


def _part(w: LlvmWriter, part: LaneOffset) -> str:
    """The lane's part of a row or column."""
    if part.mod == 1:
        return "0"
    value = w.kept(KernelTiles).lane
    if part.div > 1:
        value = w.emit(f"udiv i32 {value}, {part.div}")
    if part.div * part.mod < gpu_of(w).wave:
        value = w.emit(f"urem i32 {value}, {part.mod}")
    return value if part.times == 1 else w.emit(f"mul nuw nsw i32 {value}, {part.times}")


def _corner(w: LlvmWriter, s: ir.TileOp, row: LaneOffset, col: LaneOffset) -> str:
    """The pointer to memory where a lane's parts of row and column are 0 elements away."""
    assert s.memory is not None and s.index is not None
    base, key = address(w, s.memory, s.index), (row, col, s.stride)
    offsets = w.kept(KernelTiles).offsets
    if key not in offsets:  # known from the kernel's start, as the lane is
        outer, w.lines = w.lines, w.prologue
        rows = w.emit(f"mul nuw nsw i32 {_part(w, row)}, {s.stride}")
        offsets[key] = w.emit(f"add nuw nsw i32 {rows}, {_part(w, col)}")
        w.lines = outer
    return _beyond(w, s.memory, base, offsets[key])


def _beyond(w: LlvmWriter, memory: ir.Buffer | ir.Array, base: str, elements: str) -> str:
    element, p = text.MEMORY[memory.dtype], pointer_type(w, memory)
    return w.emit(f"getelementptr inbounds {element}, {p} {base}, i32 {elements}")


def _runs(
    w: LlvmWriter, s: ir.TileOp, held: TileRegisters
) -> Iterator[tuple[int, int, int, str, int]]:
    """Yields (register, first element in it, elements, pointer, alignment of the address in bytes)
    for each row of memory in a register."""
    assert s.memory is not None
    layout = held.layout
    row, col = (layout.col, layout.row) if held.turned else (layout.row, layout.col)
    corner = _corner(w, s, row, col)
    step = col.times if col.mod > 1 else SIDE
    for n, places in enumerate(layout.registers):
        turned = [(c, r) if held.turned else (r, c) for r, c in places]
        together = all(p == (turned[0][0], turned[0][1] + k) for k, p in enumerate(turned))
        size = len(turned) if together else 1
        for first in range(0, len(turned), size):
            r, c = turned[first]
            at = _beyond(w, s.memory, corner, str(r * s.stride + c))
            aligned = _aligned(w, s, step, c)
            yield n, first, size, at, aligned


def _aligned(w: LlvmWriter, s: ir.TileOp, *steps: int) -> int:
    """Bytes that divide an address `steps` elements away from where rows start."""
    assert s.memory is not None
    known = w.aligned.get(id(s), 1)
    for step in steps:
        known = min(known, step & -step or known)
    return min(known * s.memory.dtype.itemsize, w.target.base_align)


def _load(w: LlvmWriter, s: ir.TileOp, held: TileRegisters) -> None:
    assert s.memory is not None
    if _reads_rows(w, s, held):
        _load_rows(w, s, held)
        return
    p, whole = pointer_type(w, s.memory), len(held.layout.registers[0])
    value = "poison"
    for n, first, size, at, aligned in _runs(w, s, held):
        t = text.vector(held.element, size)
        part = w.emit(f"load {t}, {p} {at}, align {aligned}")
        if size < whole:
            old = "poison" if first == 0 else value
            operands = f"{held.vector} {old}, {held.element} {part}, i32 {first}"
            part = w.emit(f"insertelement {operands}")
        value = part
        if first + size == whole:
            _put(w, held, n, _as(w, value, held.vector, held.type))


def _store(w: LlvmWriter, s: ir.TileOp, held: TileRegisters) -> None:
    assert s.memory is not None
    p, whole = pointer_type(w, s.memory), len(held.layout.registers[0])
    values = [_as(w, _get(w, held, n), held.type, held.vector) for n in range(len(held.slots))]
    for n, first, size, at, aligned in _runs(w, s, held):
        part = values[n]
        if size < whole:
            part = w.emit(f"extractelement {held.vector} {part}, i32 {first}")
        t = text.vector(held.element, size)
        w.lines.append(f"  store {t} {part}, {p} {at}, align {aligned}")


def _scale(w: LlvmWriter, s: ir.TileOp, held: TileRegisters) -> None:
    """Each register times the factors of its elements' rows."""
    assert s.memory is not None
    p, corner = pointer_type(w, s.memory), _corner(w, s, held.layout.row, LaneOffset(1, 1))
    factors: dict[int, str] = {}
    for n, places in enumerate(held.layout.registers):
        factor = "poison"
        for e, (row, _) in enumerate(places):
            if row not in factors:
                at = _beyond(w, s.memory, corner, str(row * s.stride))
                factors[row] = w.emit(f"load float, {p} {at}, align 4")
            if len(places) == 1:
                factor = factors[row]
            else:
                operands = f"{held.type} {factor}, float {factors[row]}, i32 {e}"
                factor = w.emit(f"insertelement {operands}")
        value = _get(w, held, n)
        _put(w, held, n, w.emit(f"fmul {held.type} {value}, {factor}"))


# -- ldmatrix


def _reads_rows(w: LlvmWriter, s: ir.TileOp, held: TileRegisters) -> bool:
    """True if ldmatrix can load the tile: from shared memory, parts of rows at multiples of 16
    bytes. It moves pairs of bytes, so it cannot turn single ones."""
    assert s.memory is not None
    shared = w.spaces.get(s.memory.name) == SHARED
    operand = gpu_of(w).unit == "mma" and s.memory.dtype.itemsize <= 2
    return operand and shared and _aligned(w, s) >= _ROW_BYTES


def _load_rows(w: LlvmWriter, s: ir.TileOp, held: TileRegisters) -> None:
    """Each lane points at one row of one quarter, 8 rows of 16 bytes: lanes 0 to 7 at the upper
    left one's, then lower left, upper right, lower right. Transposed, the middle two change
    places."""
    assert s.memory is not None
    half = _ROW_BYTES // s.memory.dtype.itemsize
    at = _corner(w, s, LaneOffset(1, SIDE), LaneOffset(SIDE, 2, half))
    turn, order = (".trans", (0, 2, 1, 3)) if held.turned else ("", (0, 1, 2, 3))
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{turn}.b16.p{SHARED}"
    out = "{ i32, i32, i32, i32 }"
    found = w.call(name, out, [(pointer_type(w, s.memory), at)])
    for n, place in enumerate(order):
        word = w.emit(f"extractvalue {out} {found}, {place}")
        _put(w, held, n, _as(w, word, "i32", held.type))


RULES: Table = {ir.Tile: _tile, ir.TileOp: _tile_op}
