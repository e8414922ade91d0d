"""Blocks of attention in the matrix units of GPUs, shared by forward and backward kernels.

A group keeps a block of rows in shared memory, a subgroup 16 or 32 of them. Blocks of keys (or of
other passing items) are fetched to registers while others are multiplied. Products leave the units
through shared memory, where threads work on them, one or a few to a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load, minimum, select, splat
from weft.kernel.ir import Expr, Type
from weft.templates.attention.forward import few
from weft.templates.group import Group
from weft.templates.operand import Reader
from weft.templates.view import OperandView, operand

SIDE = 16  # rows and columns of a tile
WORD = 8  # elements that a thread moves at once: 16 bytes
_RESERVED = 1024  # bytes of shared memory that a group takes besides its own (NVIDIA)
_FEW = 32  # floats of a result that a thread may keep in registers as well as its tiles
_FEATURES = {dt.bfloat16: "mma16_bf16", dt.float16: "mma16_f16"}

Tiles = Sequence[Sequence[ir.Tile]]  # [of 16 rows][of 16 columns]


@dataclass(frozen=True)
class StorageNeed:
    """The storage that a kernel needs: resident operands, matrices of scores and of weights in
    shared memory, sums in the units, and blocks in transit in registers. `most` limits the
    registers of a thread for sums, scores and blocks in transit (compilers want some 60 more)."""

    held: int = 1
    scores: int = 1
    weights: int = 1
    sums: int = 1
    travelling: int = 1
    most: int = 180


@dataclass(frozen=True)
class MatrixUnitPlan:
    """`rows` rows per group, `per_wave` of them per subgroup; `keys` per block that passes; `wide`
    is D padded to whole tiles."""

    rows: int
    per_wave: int
    keys: int
    threads: int
    wide: int

    @property
    def ld(self) -> int:
        """Elements from row to row of staged operands: rows start in different banks."""
        return self.wide + WORD

    @property
    def parts(self) -> int:
        """Threads to a row."""
        return self.threads // self.rows

    def shared_bytes(self, need: StorageNeed) -> int:
        operands = 2 * (need.held * self.rows + 2 * self.keys) * self.ld
        row = 4 * need.scores * (self.keys + 4) + 2 * need.weights * (self.keys + WORD) + 4
        return operands + self.rows * row + 8 * self.keys

    def registers(self, need: StorageNeed, width: int) -> int:
        tiles = self.per_wave * (need.sums * self.wide + need.scores * self.keys) // width
        return tiles + need.travelling * self.keys * self.wide // (2 * self.threads)

    def fits(self, need: StorageNeed, caps: Caps) -> bool:
        """True if a group of the target can be this large."""
        return (
            self.registers(need, caps.subgroup) <= need.most
            and self.shared_bytes(need) <= caps.shared_bytes
            and self.threads <= caps.max_threads
        )


# (rows of a subgroup, subgroups, keys of a block), the quickest first
_FORWARD = ((32, 4, 64), (32, 4, 32), (32, 2, 64), (32, 2, 32), (16, 4, 32), (16, 2, 32))
_BACKWARD = ((16, 4, 64), (16, 4, 32), (16, 2, 32))
_NEEDS = {
    "attention_lse": StorageNeed(weights=0, sums=0),
    "attention_dq": StorageNeed(held=2, scores=2, travelling=2),
    "attention_dkv": StorageNeed(held=2, scores=2, weights=2, sums=2, travelling=2, most=192),
}


def plan_for(
    group: Group, node: Node, caps: Caps, config: Mapping[str, Any]
) -> MatrixUnitPlan | None:
    """Returns the units' plan for a call, or None (see `plan_of`)."""
    name, (q, k) = node.attrs["name"], node.inputs[:2]
    values = 2 if name == "attention_lse" else 4 if name in _NEEDS else 3
    views = [operand(group, x) for x in node.inputs[:values]]
    plan = plan_of(name, q.dtype, q.shape[-1], views, caps, config)
    if plan is None or not few(node):
        return plan
    return _fewer(plan, node.shape[1] // k.shape[1], q.shape[-1], caps)


def candidates(group: Group, node: Node, caps: Caps) -> list[dict[str, Any]]:
    """Other numbers of subgroups for the call: whatever a thread adds up, and in which order,
    stays."""
    plan = None if few(node) else plan_for(group, node, caps, {})
    if plan is None:
        return []
    need, now = _NEEDS.get(node.attrs["name"], StorageNeed()), plan.threads // caps.subgroup
    shapes = [[plan.per_wave, waves, plan.keys] for waves in (2, 4, 8) if waves != now]
    depth = node.inputs[0].shape[-1]
    return [{"shape": s} for s in shapes if _plan(s, depth, caps).fits(need, caps)]


def plan_of(
    name: str, dtype: DType, depth: int, views: Sequence[OperandView], caps: Caps,
    config: Mapping[str, Any],
) -> MatrixUnitPlan | None:  # fmt: skip
    """The first shape that fits these operands of a composite, their components last; None where
    the units do not take them: another dtype, components apart, an odd depth, too little shared
    memory. Nothing here depends on how many rows there are. config: "units" (False: never), "shape"
    (to be tried first)."""
    if _FEATURES.get(dtype, "") not in caps.features or depth % WORD or not config.get("units", 1):
        return None
    if any(v.strides[-1] != 1 or v.dtype != dtype for v in views):
        return None
    need = _NEEDS.get(name, StorageNeed())
    tuned = [config["shape"]] if "shape" in config else []
    shapes = (*tuned, *(_BACKWARD if need.held == 2 else _FORWARD))
    plans = [plan for plan in (_plan(s, depth, caps) for s in shapes) if plan.fits(need, caps)]
    # Two groups of a core take turns in its units: blocks of fewer keys may make room for both.
    alike = (plan for plan in plans if plan.rows == plans[0].rows and not tuned)
    half = (caps.shared_bytes - _RESERVED) // 2
    return next((p for p in alike if p.shared_bytes(need) <= half), plans[0]) if plans else None


def _plan(shape: Sequence[int], depth: int, caps: Caps) -> MatrixUnitPlan:
    per_wave, waves, keys = shape
    wide = -(-depth // SIDE) * SIDE
    return MatrixUnitPlan(per_wave * waves, per_wave, keys, waves * caps.subgroup, wide)


def _fewer(plan: MatrixUnitPlan, rows: int, depth: int, caps: Caps) -> MatrixUnitPlan:
    """The plan with as few subgroups (two at least, to move blocks) as `rows` rows want."""
    for waves in (2, 4, 8):
        less = _plan((plan.per_wave, waves, plan.keys), depth, caps)
        if less.rows >= min(rows, plan.rows) and less.fits(StorageNeed(), caps):
            return less
    return plan


class MatrixUnitKernel:
    """The shared parts of kernels in matrix units: places, moving blocks, results leaving the
    units."""

    def __init__(
        self, b: Builder, caps: Caps, plan: MatrixUnitPlan, dtype: DType, depth: int
    ) -> None:
        self.b, self.caps, self.plan, self.dtype, self.depth = b, caps, plan, dtype, depth
        self.s_ld = plan.keys + 4
        self.p_ld = plan.keys + WORD
        t = self.t = b.let(b.thread(0), "t")
        self.first = b.let(t // caps.subgroup * plan.per_wave, "first")  # row of the subgroup
        self.row = b.let(t // plan.parts, "row")  # row whose scores this thread handles,
        self.part = b.let(t % plan.parts, "part")  # and the part of that row

    # -- moving blocks

    def staged(self, name: str, rows: int) -> ir.Array:
        """Shared memory for rows of an operand."""
        return self.b.array(name, self.dtype, rows * self.plan.ld, "shared")

    def travelling(self, name: str) -> ir.Array:
        """Registers for this thread's part of a block of keys (or what moves in their place)."""
        words = self.plan.keys * self.plan.wide // WORD
        return self.b.array(name, self.dtype, -(-words // self.plan.threads) * WORD)

    def take(self, source: Reader, first: Expr, last: Expr, target: ir.Array) -> None:
        """The group's rows first .. to shared memory; those beyond `last` repeat it."""
        b = self.b
        for at, row, column, inside in self._reads(source, first, last, self.plan.rows):
            value = load(source.source, at, WORD)
            if self.depth < self.plan.wide:  # products read zeros in the padding
                zero = const(0.0, Type(self.dtype, WORD))
                value = select(splat(column < self.depth, WORD), value, zero)
            with b.when(inside) if inside is not None else nullcontext():
                b.store(target, row * self.plan.ld + column, value)

    def fetch(self, source: Reader, first: Expr, last: Expr, target: ir.Array) -> None:
        """A block of keys (or values) on its way to registers; rows beyond `last` repeat it."""
        for u, (at, *_) in enumerate(self._reads(source, first, last, self.plan.keys)):
            self.b.store(target, u * WORD, load(source.source, at, WORD))

    def keep(self, fetched: ir.Array, target: ir.Array) -> None:
        """Stores the fetched vectors to shared memory."""
        b = self.b
        for u, (row, column, inside) in enumerate(self._places(self.plan.keys)):
            with b.when(inside) if inside is not None else nullcontext():
                b.store(target, row * self.plan.ld + column, load(fetched, u * WORD, WORD))

    def _reads(
        self, source: Reader, first: Expr, last: Expr, rows: int
    ) -> list[tuple[Expr, Expr, Expr, Expr | None]]:
        """Returns the start in memory of each of this thread's vectors of a block, and their
        places."""
        b, padded = self.b, self.depth < self.plan.wide
        first = b.let(first, "first")
        found, places = [], self._places(rows)
        if any(inside is not None for _, _, inside in places):  # stay within the block too
            last = b.let(minimum(last, first + (rows - 1)), "last_row")
        for row, column, inside in places:
            real = minimum(column, self.depth - WORD) if padded else column
            at = source.base + minimum(first + row, last) * source.s_row + real
            found.append((at, row, column, inside))
        return found

    def _places(self, rows: int) -> list[tuple[Expr, Expr, Expr | None]]:
        """Row, column and whether they exist, of the vectors that this thread moves of a block."""
        b, threads, words = self.b, self.plan.threads, self.plan.wide // WORD
        places = []
        for start in range(0, rows * words, threads):
            v = b.let(self.t + start, "v")
            inside = None if start + threads <= rows * words else b.let(v < rows * words, "inside")
            row = b.let(v // words, "row")
            places.append((row, b.let(v % words * WORD, "column"), inside))
        return places

    # -- products and results

    def tiles(self, name: str, columns: int) -> list[list[ir.Tile]]:
        """Sums of the subgroup's rows and `columns` columns."""
        b, across = self.b, range(columns // SIDE)
        steps = range(self.plan.per_wave // SIDE)
        return [[b.tile(name, dt.float32, SIDE, SIDE) for _ in across] for _ in steps]

    def clear(self, tiles: Tiles) -> None:
        for tile in (x for line in tiles for x in line):
            self.b.tile_zero(tile)

    def against(
        self, sums: Tiles, left: ir.Array, right: ir.Array, lefts: Sequence[ir.Tile], by: ir.Tile,
        target: ir.Array,
    ) -> None:  # fmt: skip
        """target = left . right^T for the subgroup's rows and a block of keys, both staged."""
        b, plan = self.b, self.plan
        self.clear(sums)
        for d in range(0, plan.wide, SIDE):
            for m, a in enumerate(lefts):
                b.tile_load(a, left, (self.first + m * SIDE) * plan.ld + d, plan.ld)
            for n in range(plan.keys // SIDE):
                b.tile_load(by, right, const(n * SIDE * plan.ld + d), plan.ld)
                for a, line in zip(lefts, sums):
                    b.mma_nt(line[n], a, by)
        for m, line in enumerate(sums):
            for n, tile in enumerate(line):
                at = (self.first + m * SIDE) * self.s_ld + n * SIDE
                b.tile_store(target, at, self.s_ld, tile)

    def add(
        self, sums: Tiles, weights: ir.Array, right: ir.Array, lefts: Sequence[ir.Tile], by: ir.Tile
    ) -> None:
        """sums += weights . right, the weights [row][key] and a block of keys (or values)."""
        b, plan = self.b, self.plan
        for j in range(0, plan.keys, SIDE):
            for m, a in enumerate(lefts):
                b.tile_load(a, weights, (self.first + m * SIDE) * self.p_ld + j, self.p_ld)
            for n in range(plan.wide // SIDE):
                b.tile_load(by, right, const(j * plan.ld + n * SIDE), plan.ld)
                for a, line in zip(lefts, sums):
                    b.mma(line[n], a, by)

    def leave(
        self, sums: Tiles, through: ir.Array, write: Callable[[Expr, Expr, Expr], None]
    ) -> None:
        """write(row of the block, column (a multiple of 8), 8 values) for everything, by way of the
        scores' memory; rows and columns that do not exist included."""
        self.each_word(
            lambda _, row, column, value: write(row, column, value),
            lambda c0, width: self._put(sums, through, c0, width),
            through,
        )

    def _put(self, sums: Tiles, through: ir.Array, c0: int, width: int) -> None:
        b = self.b
        b.barrier()
        for m, line in enumerate(sums):
            for n in range(width // SIDE):
                at = (self.first + m * SIDE) * self.s_ld + n * SIDE
                b.tile_store(through, at, self.s_ld, line[c0 // SIDE + n])
        b.barrier()

    def each_word(
        self,
        visit: Callable[[Expr, Expr, Expr, Expr], None],
        prepare: Callable[[int, int], None],
        source: ir.Array,
    ) -> None:
        """visit(place of the thread, row, column, 8 values in `source`) of every word of a result
        that this thread meets, after prepare(first column, columns) of each part of it."""
        b, plan, base = self.b, self.plan, 0
        for c0 in range(0, plan.wide, plan.keys):
            width = min(plan.keys, plan.wide - c0)
            prepare(c0, width)
            words = plan.rows * width // WORD
            with self._turns(words) as (turn, v):
                row = b.let(v // (width // WORD), "row")
                column = b.let(v % (width // WORD) * WORD, "column")
                place = b.let((turn + base) * WORD, "place")
                at = place if source.space == "private" else row * self.s_ld + column
                value = b.let(load(source, at, WORD), "y")
                visit(place, row, b.let(column + c0, "column"), value)
            base += -(-words // plan.threads)

    @contextmanager
    def _turns(self, words: int) -> Iterator[tuple[Expr, Expr]]:
        """Yields (turn, number) for each of `words` words that this thread handles. Few are kept in
        registers (`kept`), which only a turn that is the same in all threads can index. Many are
        kept in memory; if a compiler unrolled that loop, it would move them to registers too."""
        b, threads = self.b, self.plan.threads
        if words % threads or self.plan.rows * self.plan.wide // threads > _FEW:
            with b.loop(words, self.t, threads, name="v") as v:
                yield v // threads, v
            return
        with b.loop(words // threads, name="turn") as turn:
            yield turn, b.let(turn * threads + self.t, "v")

    def kept(self, name: str) -> ir.Array:
        """Private memory for this thread's words of a result, in the order of `each_word`."""
        plan = self.plan
        widths = [min(plan.keys, plan.wide - c0) for c0 in range(0, plan.wide, plan.keys)]
        words = sum(-(-(plan.rows * w // WORD) // plan.threads) for w in widths)
        return self.b.array(name, dt.float32, words * WORD)
