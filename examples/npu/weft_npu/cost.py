"""What a kernel costs on a Machine, counted while weft's interpreter runs it.

Nothing here knows an operation of a model: each kind of node of the Kernel IR has a price. The
README derives the prices of the array.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from weft.core.errors import LimitError
from weft.kernel import ir
from weft.kernel.batch import Batch
from weft.kernel.tiles import PRODUCTS
from weft.kernel.walk import children, operands, statements, walk
from weft_npu.machine import Machine

_SLOW = ("div", "rem", "sqrt")
_PLUMBING = ("splat", "iota", "extract")  # wires, not operations


@dataclass
class Cost:
    """Cycles in which each engine is busy, bytes that the DMA moves, operations on floats and sums
    of products of the array and of the vector and scalar units (`products` are those of the
    array), and `waits` for a first and a last transfer."""

    array: int = 0
    vector: int = 0
    scalar: int = 0
    dma: int = 0
    waits: int = 0
    nbytes: int = 0
    products: int = 0
    others: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other))))

    def times(self, count: int) -> Cost:
        return Cost(*(count * a for a in astuple(self)))

    @property
    def cycles(self) -> int:
        """Of one step: the DMA fills one half of each window while the engines work on the other,
        so the busiest engine hides the others. Only the first and the last transfer stand alone."""
        return max(self.array, self.vector, self.scalar, self.dma) + self.waits

    @property
    def busiest(self) -> str:
        return max(("array", "vector", "scalar", "dma"), key=lambda name: getattr(self, name))

    @property
    def flops(self) -> int:
        return self.products + self.others


def moved(machine: Machine, nbytes: int) -> Cost:
    """The DMA alone: `nbytes` in or out."""
    return Cost(dma=-(-nbytes // machine.dma_bytes), waits=2 * machine.latency, nbytes=nbytes)


def window(machine: Machine, kernel: ir.Kernel) -> int:
    """Groups of channels in half of a buffer's window: a power of two. The other half is being
    filled. Raises LimitError where the scratchpad has no room for one."""
    arrays = [s for s in statements(kernel.body) if isinstance(s, ir.Array)]
    taken = sum(-(-a.size * a.dtype.itemsize // 64) * 64 for a in arrays)
    left = (machine.scratchpad - taken) // (2 * machine.channel * max(len(kernel.buffers), 1))
    if left < 1:
        raise LimitError(
            f"npu: kernel {kernel.name} keeps {taken:,} bytes in arrays and reads or writes "
            f"{len(kernel.buffers)} buffers; the scratchpad has {machine.scratchpad:,} bytes"
        )
    return 1 << (left.bit_length() - 1)


class Meter:
    """A weft.kernel.batch.RunWatch: counts one run of `kernel`.

    Each group begins with empty windows. A group of channels with number n has slot n modulo the
    window's size; what is not in its slot is moved, whether it is read or written.
    """

    groups = 4096

    def __init__(self, machine: Machine, kernel: ir.Kernel) -> None:
        self.machine, self.slots = machine, window(machine, kernel)
        self.sums = sums(kernel)
        self.runs: dict[int, int] = {}  # id of a block -> how often threads ran it
        self.blocks: dict[int, ir.Block] = {}
        self.moves = 0
        self.batch: Batch | None = None
        self.held: dict[str, np.ndarray] = {}

    def block(self, batch: Batch, block: ir.Block) -> None:
        self.blocks[id(block)] = block
        self.runs[id(block)] = self.runs.get(id(block), 0) + int(batch.active.sum())

    def access(self, batch: Batch, buffer: ir.Buffer, at: np.ndarray, rows: np.ndarray) -> None:
        if batch is not self.batch:
            self.batch, self.held = batch, {}
        held = self.held.get(buffer.name)
        if held is None:
            held = self.held[buffer.name] = np.full((batch.n, self.slots), -1, np.int32)
        number = at * buffer.dtype.itemsize // self.machine.channel
        first = np.ones(len(at), bool)  # lanes side by side are one request
        first[1:] = (number[1:] != number[:-1]) | (rows[1:] != rows[:-1])
        number, rows = number[first], rows[first]
        slot = number % self.slots
        missing = held[rows, slot] != number
        self.moves += int(missing.sum())
        held[rows[missing], slot[missing]] = number[missing]

    def cost(self) -> Cost:
        """What the run has cost."""
        total = moved(self.machine, self.moves * self.machine.channel)
        for key, block in self.blocks.items():
            total += block_cost(self.machine, block, self.sums).times(self.runs[key])
        return total


def sums(kernel: ir.Kernel) -> frozenset[str]:
    """The tiles that the array adds products to."""
    ops = [s for s in statements(kernel.body) if isinstance(s, ir.TileOp)]
    return frozenset(s.tiles[0].name for s in ops if s.op in PRODUCTS)


def block_cost(machine: Machine, block: ir.Block, sums: frozenset[str] = frozenset()) -> Cost:
    """One thread's run of a block's own statements, those of blocks within left out, and one
    scalar operation to get there."""
    total = Cost(scalar=1)
    for statement in block.body:
        if isinstance(statement, ir.AsyncCopy):
            statement = statement.store
        if isinstance(statement, ir.Prefetch):  # the DMA is ahead anyway
            continue
        if isinstance(statement, ir.TileOp):
            total += _tile(machine, statement, sums)
        elif isinstance(statement, ir.Store):
            spread = statement.index.type.lanes > 1
            total += _issued(machine, statement.value.type, spread=spread)
        for child in children(statement):
            for e in walk(child) if isinstance(child, ir.Expr) else ():
                total += _expression(machine, e)
    return total


def _tile(machine: Machine, s: ir.TileOp, sums: frozenset[str]) -> Cost:
    """The array's part: operands stream in as they are multiplied, one step of k (or what fits
    `operand_bytes`) a cycle, the row and column after it a cycle later each. So a sum that leaves
    waits until the last product has reached the last cell, and then shifts out row by row."""
    tile = s.tiles[0]
    down, across = -(-tile.rows // machine.rows), -(-tile.cols // machine.cols)
    if s.op in PRODUCTS:
        a = s.tiles[1]
        depth = a.rows * a.cols // tile.rows
        steps = -(-depth * a.dtype.itemsize // machine.operand_bytes)
        return Cost(array=down * across * steps, products=2 * tile.rows * tile.cols * depth)
    if s.op == "store" and tile.name in sums:
        reach = min(tile.rows, machine.rows) + min(tile.cols, machine.cols) - 2
        return Cost(array=down * across * reach + across * tile.rows)
    if s.op == "load" and tile.name in sums:  # they go on
        return Cost(array=across * tile.rows)
    if s.op in ("scale", "add"):
        cycles = tile.rows * -(-tile.cols // machine.lanes)
        return Cost(vector=cycles, others=tile.rows * tile.cols)
    return Cost()  # zero: with the first product; an operand: with its product


def _expression(machine: Machine, e: ir.Expr | ir.Stmt) -> Cost:
    """One node, without what it is made from."""
    if isinstance(e, ir.Load):
        return _issued(machine, e.type, spread=e.index.type.lanes > 1)
    if isinstance(e, ir.Collective):
        each = {"dot2": 4, "dot4": 8}.get(e.op, 1)
        return _issued(machine, *_types(e)) + Cost(others=each * e.type.lanes)
    if isinstance(e, ir.Vec):
        return Cost() if e.op in _PLUMBING else _issued(machine, *_types(e))
    if not isinstance(e, ir.Unary | ir.Binary | ir.Fma | ir.Select | ir.Cast):
        return Cost()
    arithmetic = isinstance(e, ir.Unary | ir.Binary | ir.Fma) and e.type.dtype.is_float
    flops = e.type.lanes * (2 if isinstance(e, ir.Fma) else 1) if arithmetic else 0
    slow = isinstance(e, ir.Unary | ir.Binary) and e.op in _SLOW
    return _issued(machine, *_types(e)).times(machine.slow if slow else 1) + Cost(others=flops)


def _types(e: ir.Expr) -> list[ir.Type]:
    """Of what an operation gives and takes."""
    return [e.type, *(x.type for x in operands(e))]


def _issued(machine: Machine, *types: ir.Type, spread: bool = False) -> Cost:
    """An operation on values of these types: a cycle for each register that the widest fills, for
    each lane where it gathers or scatters."""
    if max(t.lanes for t in types) == 1:
        return Cost(scalar=1)
    if spread:
        return Cost(vector=types[0].lanes)
    nbytes = max(t.lanes * t.dtype.itemsize for t in types)
    return Cost(vector=-(-nbytes // (4 * machine.lanes)))
