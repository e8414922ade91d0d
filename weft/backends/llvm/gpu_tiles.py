"""Tiles in the matrix units of GPUs: registers that lanes hold as matrix_units.py has it, and the
instructions that move and multiply them.

Source: NVIDIA "PTX ISA", "Warp-level matrix load instruction: ldmatrix".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.backends.llvm import text
from weft.backends.llvm.gpu_target import GpuTarget
from weft.backends.llvm.matrix_units import SIDE, UNITS, Layout, Part, Unit
from weft.backends.llvm.statements import Statements
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.tiles import tile_roles

_SHARED = 3  # the address space of memory that a group shares
_ROW = 8  # elements of 2 bytes in a row that ldmatrix reads


@dataclass(frozen=True)
class Held:
    """A tile's registers: stack slots (LLVM keeps them in registers) of one LLVM `type` each, which
    holds a vector of elements."""

    layout: Layout
    slots: tuple[str, ...]
    type: str
    element: str
    turned: bool  # held transposed

    @property
    def vector(self) -> str:
        return text.vector(self.element, len(self.layout.registers[0]))


class GpuTiles(Statements):
    """Adds tile statements to the emitter of a GPU's kernel."""

    def __init__(self, kernel: ir.Kernel, target: GpuTarget) -> None:
        super().__init__(kernel, target, 0)
        self.gpu = target
        self.unit = UNITS.get(target.unit)
        self.held: dict[str, Held] = {}
        self._roles: dict[str, str] | None = None
        self._lane = ""
        self._known: dict[str, tuple[str, str]] = {}  # slot -> block and what it holds there
        self._offsets: dict[tuple[Part, Part, int], str] = {}

    # -- tiles

    def declare_tile(self, tile: ir.Tile) -> None:
        if tile.name in self.held:
            return
        unit = self._fitting(tile)
        if self._roles is None:
            self._roles = tile_roles(self.kernel)
            self._lane = self._own_lane()
        role = self._roles[tile.name]
        layout = unit.result if role == "result" else unit.operand
        slots = tuple(f"%{self.fresh('tile')}" for _ in layout.registers)
        element = text.REGISTER[tile.dtype]
        whole = text.vector(element, len(layout.registers[0]))
        type_ = whole if role == "result" else unit.products.get(tile.dtype, ("", whole))[1]
        held = self.held[tile.name] = Held(layout, slots, type_, element, role == "turned")
        for slot in slots:
            self.prologue.append(f"  {slot} = alloca {held.type}{self.stack_note}")
            if self.kernel.clean:
                zero = f"store {held.type} zeroinitializer, {self.stack} {slot}"
                self.prologue.append(f"  {zero}")

    def _own_lane(self) -> str:
        """This thread's number in its subgroup, known from the kernel's start: threads are counted
        with axis 0 fastest."""
        outer, self.lines = self.lines, self.prologue
        x, y, z = (self.axis(ir.Axis("thread", d)) for d in range(3))
        wide, high, _ = self.kernel.threads
        upper = self.emit(f"add i32 {y}, {self.emit(f'mul i32 {z}, {high}')}")
        number = self.emit(f"add i32 {x}, {self.emit(f'mul i32 {upper}, {wide}')}")
        found = self.emit(f"and i32 {number}, {self.gpu.wave - 1}")
        self.lines = outer
        return found

    def _fitting(self, tile: ir.Tile) -> Unit:
        threads = self.kernel.threads[0] * self.kernel.threads[1] * self.kernel.threads[2]
        if self.unit is None or threads % self.gpu.wave:
            raise self.fail(
                f"tile {tile.name} of {threads} threads: {self.gpu.arch} multiplies tiles in "
                f"subgroups of {self.gpu.wave}"
            )
        known = tile.dtype == dt.float32 or tile.dtype in self.unit.products
        if not known or (tile.rows, tile.cols) != (SIDE, SIDE):
            names = ", ".join(d.name for d in self.unit.products)
            raise self.fail(
                f"tile {tile.name} of {tile.rows} x {tile.cols} {tile.dtype}: {self.gpu.arch} "
                f"takes {SIDE} x {SIDE} of {names}, and of float32 for sums"
            )
        return self.unit

    def tile_op(self, s: ir.TileOp) -> None:
        held = [self.held[t.name] for t in s.tiles]
        if s.op == "zero":
            for n in range(len(held[0].slots)):
                self._put(held[0], n, "zeroinitializer")
        elif s.op in ("scale", "store", "load"):
            {"scale": self._scale, "store": self._store, "load": self._load}[s.op](s, held[0])
        elif s.op == "add":
            for n in range(len(held[0].slots)):
                parts = [self._get(h, n) for h in held]
                self._put(held[0], n, self.emit(f"fadd {held[0].type} {parts[0]}, {parts[1]}"))
        elif s.op == "mma_tn":
            raise self.fail(f"{self.gpu.arch} has no tile.mma_tn")
        else:
            self._multiply(s.tiles[1].dtype, *held)

    def _get(self, held: Held, n: int) -> str:
        slot = held.slots[n]
        block, value = self._known.get(slot, ("", ""))
        if block != self.block:
            value = self.emit(f"load {held.type}, {self.stack} {slot}")
            self._known[slot] = self.block, value
        return value

    def _put(self, held: Held, n: int, value: str) -> None:
        self._known[held.slots[n]] = self.block, value
        self.lines.append(f"  store {held.type} {value}, {self.stack} {held.slots[n]}")

    # -- products

    def _multiply(self, dtype: dt.DType, c: Held, a: Held, b: Held) -> None:
        """c += a . b, where b is held with rows along k. NVIDIA's instruction takes the two halves
        of b's rows one after the other."""
        assert self.unit is not None
        known = self.unit.products.get(dtype)
        if known is None:
            raise self.fail(f"no products of tiles of {dtype} on {self.gpu.arch}")
        name, t = known
        left, right = ([(t, self._get(x, n)) for n in range(len(x.slots))] for x in (a, b))
        if self.gpu.unit == "mma":
            for half in range(2):
                sums = [("float", self._get(c, 4 * half + n)) for n in range(4)]
                out = "{ float, float, float, float }"
                found = self.call(name, out, [*left, *right[half::2], *sums], convergent=True)
                for n in range(4):
                    self._put(c, 4 * half + n, self.emit(f"extractvalue {out} {found}, {n}"))
            return
        zeros = [("i32", "0")] * 3 if self.gpu.unit == "mfma" else []
        args = [*left, *right, (c.type, self._get(c, 0)), *zeros]
        self._put(c, 0, self.call(name, c.type, args))

    def _as(self, value: str, source: str, goal: str) -> str:
        return value if source == goal else self.emit(f"bitcast {source} {value} to {goal}")

    # -- memory

    def _part(self, part: Part) -> str:
        """The lane's part of a row or column."""
        if part.mod == 1:
            return "0"
        value = self._lane
        if part.div > 1:
            value = self.emit(f"udiv i32 {value}, {part.div}")
        if part.div * part.mod < self.gpu.wave:
            value = self.emit(f"urem i32 {value}, {part.mod}")
        return value if part.times == 1 else self.emit(f"mul nuw nsw i32 {value}, {part.times}")

    def _corner(self, s: ir.TileOp, row: Part, col: Part) -> str:
        """The pointer to memory where a lane's parts of row and column are 0 elements away."""
        assert s.memory is not None and s.index is not None
        base, key = self.address(s.memory, s.index), (row, col, s.stride)
        if key not in self._offsets:  # known from the kernel's start, as the lane is
            outer, self.lines = self.lines, self.prologue
            rows = self.emit(f"mul nuw nsw i32 {self._part(row)}, {s.stride}")
            self._offsets[key] = self.emit(f"add nuw nsw i32 {rows}, {self._part(col)}")
            self.lines = outer
        return self._beyond(s.memory, base, self._offsets[key])

    def _beyond(self, memory: ir.Buffer | ir.Array, base: str, elements: str) -> str:
        element, p = text.MEMORY[memory.dtype], self.pointer(memory)
        return self.emit(f"getelementptr inbounds {element}, {p} {base}, i32 {elements}")

    def _runs(self, s: ir.TileOp, held: Held) -> Iterator[tuple[int, int, int, str, int]]:
        """Yields (register, first element in it, elements, pointer, bytes that divide the address)
        for each row of memory that one register holds."""
        assert s.memory is not None
        layout = held.layout
        row, col = (layout.col, layout.row) if held.turned else (layout.row, layout.col)
        corner = self._corner(s, row, col)
        step = col.times if col.mod > 1 else SIDE
        for n, places in enumerate(layout.registers):
            turned = [(c, r) if held.turned else (r, c) for r, c in places]
            together = all(p == (turned[0][0], turned[0][1] + k) for k, p in enumerate(turned))
            size = len(turned) if together else 1
            for first in range(0, len(turned), size):
                r, c = turned[first]
                at = self._beyond(s.memory, corner, str(r * s.stride + c))
                aligned = self._aligned(s, step, c)
                yield n, first, size, at, aligned

    def _aligned(self, s: ir.TileOp, *steps: int) -> int:
        """Bytes that divide an address `steps` elements away from where rows start."""
        assert s.memory is not None
        known = self.aligned.get(id(s), 1)
        for step in steps:
            known = min(known, step & -step or known)
        return min(known * s.memory.dtype.itemsize, self.target.base_align)

    def _load(self, s: ir.TileOp, held: Held) -> None:
        assert s.memory is not None
        if self._reads_rows(s, held):
            self._load_rows(s, held)
            return
        p, whole = self.pointer(s.memory), len(held.layout.registers[0])
        value = "poison"
        for n, first, size, at, aligned in self._runs(s, held):
            t = text.vector(held.element, size)
            part = self.emit(f"load {t}, {p} {at}, align {aligned}")
            if size < whole:
                old = "poison" if first == 0 else value
                operands = f"{held.vector} {old}, {held.element} {part}, i32 {first}"
                part = self.emit(f"insertelement {operands}")
            value = part
            if first + size == whole:
                self._put(held, n, self._as(value, held.vector, held.type))

    def _store(self, s: ir.TileOp, held: Held) -> None:
        assert s.memory is not None
        p, whole = self.pointer(s.memory), len(held.layout.registers[0])
        values = [
            self._as(self._get(held, n), held.type, held.vector) for n in range(len(held.slots))
        ]
        for n, first, size, at, aligned in self._runs(s, held):
            part = values[n]
            if size < whole:
                part = self.emit(f"extractelement {held.vector} {part}, i32 {first}")
            t = text.vector(held.element, size)
            self.lines.append(f"  store {t} {part}, {p} {at}, align {aligned}")

    def _scale(self, s: ir.TileOp, held: Held) -> None:
        """Each register times the factors of its elements' rows."""
        assert s.memory is not None
        p, corner = self.pointer(s.memory), self._corner(s, held.layout.row, Part(1, 1))
        factors: dict[int, str] = {}
        for n, places in enumerate(held.layout.registers):
            factor = "poison"
            for e, (row, _) in enumerate(places):
                if row not in factors:
                    at = self._beyond(s.memory, corner, str(row * s.stride))
                    factors[row] = self.emit(f"load float, {p} {at}, align 4")
                if len(places) == 1:
                    factor = factors[row]
                else:
                    operands = f"{held.type} {factor}, float {factors[row]}, i32 {e}"
                    factor = self.emit(f"insertelement {operands}")
            value = self._get(held, n)
            self._put(held, n, self.emit(f"fmul {held.type} {value}, {factor}"))

    # -- ldmatrix

    def _reads_rows(self, s: ir.TileOp, held: Held) -> bool:
        """True if ldmatrix can load the tile: from shared memory, rows of eight elements at
        multiples of 16 bytes."""
        assert s.memory is not None
        shared = self.spaces.get(s.memory.name) == _SHARED
        operand = self.gpu.unit == "mma" and s.memory.dtype.itemsize == 2
        return operand and shared and self._aligned(s) >= _ROW * 2

    def _load_rows(self, s: ir.TileOp, held: Held) -> None:
        """Each lane points at one row of one 8 x 8 quarter: lanes 0 to 7 at the upper left one's,
        then lower left, upper right, lower right. Transposed, the middle two change places."""
        assert s.memory is not None
        at = self._corner(s, Part(1, SIDE), Part(SIDE, 2, _ROW))
        turn, order = (".trans", (0, 2, 1, 3)) if held.turned else ("", (0, 1, 2, 3))
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{turn}.b16.p{_SHARED}"
        out = "{ i32, i32, i32, i32 }"
        found = self.call(name, out, [(self.pointer(s.memory), at)])
        for n, place in enumerate(order):
            word = self.emit(f"extractvalue {out} {found}, {place}")
            self._put(held, n, self._as(word, "i32", held.type))
