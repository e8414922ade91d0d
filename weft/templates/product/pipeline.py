"""Blocks of a dot's operands on their way to shared memory.

Shared memory holds a ring of blocks: one is multiplied while the next ones arrive, so that
memory's latency hides behind the products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, extract, minimum, pack, select, splat
from weft.kernel.ir import Expr, Type
from weft.templates.lanes import WORD
from weft.templates.product.operands import Lines, Operand

ASYNC = "async_copy"  # the feature of targets that copy to shared memory by themselves
_NARROW = 4  # bytes of the narrowest copy


def pitch(length: int, dtype: DType) -> int:
    """Elements from one row of a shared block to the next: 16 bytes more than a row holds, so that
    neighbours down a column lie in different banks."""
    return length + WORD // dtype.itemsize


@dataclass(frozen=True)
class _Slot:
    """A vector that a thread moves: where it comes from and where it goes."""

    k: Expr  # position within the block
    to: Expr  # the block's element
    at: Expr  # the operand's item
    line: Lines  # that item, or the last one
    part: Expr | None  # true if the thread has the slot; None: all have
    held: list[ir.Var]


class SharedStage:
    """Moves blocks of (items, bk) elements from `source`, starting at item `first`, to a shared
    array.

    The array is a ring of `ring` blocks. `team` is a thread's number and the number of threads. A
    block holds rows of k (`k_major`: element (item, k) at k * pitch + item) or rows per item (at
    item * pitch + k). Elements beyond the operand's edges arrive as 0. If the target copies by
    itself and no element needs conversion or interleaving, it copies far ahead (`late`). Otherwise
    a block goes through registers: loaded before the block ahead of it is multiplied, stored after.
    An element covers `unit` of the k in which blocks are counted.
    """

    def __init__(
        self, b: Builder, name: str, source: Lines, first: Expr, block: tuple[int, int, int],
        k_major: bool, dtype: DType, team: tuple[Expr, int], copies: bool, unit: int = 1,
    ) -> None:  # fmt: skip
        self.b, self.source, self.unit = b, source, unit
        flat, threads = team
        self.items, self.bk, self.ring = items, bk, ring = block
        self.k_major, self.along = k_major, source.along_k
        self.pitch = pitch(items if k_major else bk, dtype)
        self.size = self.pitch * (bk if k_major else items)
        self.target = b.array(name, dtype, ring * self.size, "shared")
        lanes, turned = source.lanes(items, bk), self.along == k_major
        copies = copies and isinstance(source, Operand)
        if turned and copies and dtype.itemsize == _NARROW:
            lanes, turned = 1, False  # word by word
        self.turned, self.lanes = turned, lanes
        same = source.dtype == dtype and not turned
        self.late = copies and same and lanes * dtype.itemsize >= _NARROW
        # Two rows of k at once turn into pairs of neighbours along k.
        self.depth = 2 if not self.along and not k_major else 1
        of_k, self.of_item = (lanes, 1) if self.along else (self.depth, lanes)
        across, wide = bk // of_k, items // self.of_item
        inward = self.along or not k_major  # neighbouring threads are neighbours along k
        row = across if inward else wide
        self.slots: list[_Slot] = []
        for start in range(0, across * wide, threads):
            e = b.let(flat + start, "e")
            part = None if start + threads <= across * wide else b.let(e < across * wide, "part")
            near, far = e % row, e // row
            # a whole number of rows further on: constants that addresses absorb
            if threads % row == 0:
                near, far = flat % row, flat // row + start // row
            k, item = (near, far) if inward else (far, near)
            at_k, at_item = b.let(k * of_k, "k"), b.let(item * self.of_item, "item")
            self.slots.append(self._slot(at_k, at_item, first, part))

    def _slot(self, k: Expr, item: Expr, first: Expr, part: Expr | None) -> _Slot:
        b, s = self.b, self.source
        at = b.let(first + item, "at")
        near = at if s.items % self.items == 0 else minimum(at, s.items - self.of_item)
        line = s.line(b, b.let(near, "row"))
        zero = const(0, Type(s.dtype, self.lanes))
        count = 0 if self.late else self.depth
        held = [b.var(zero, "held", zero.type) for _ in range(count)]
        major, minor = (k, item) if self.k_major else (item, k)
        to = b.let(major * self.pitch + minor, "to")
        return _Slot(k, to, at, line, part, held)

    def copy(self, k0: Expr, base: Expr) -> None:
        """Has the block from `k0` on copied to element `base` of the target, for use after as many
        barriers as the ring has further blocks."""
        b = self.b
        for slot in self.slots:
            with self._having(slot):
                k, test = self._place(slot, k0 // self.unit)
                mask = None if test is None else splat(test, self.lanes)
                line, to = slot.line, base + slot.to
                assert isinstance(line, Operand)
                at, ahead = line.at(0, k), self.ring - 1
                b.copy_async(self.target, to, line.buffer, at, self.lanes, mask, ahead)

    def fetch(self, k0: Expr) -> None:
        """Asks for the block from `k0` (a multiple of bk) on."""
        b = self.b
        for slot in self.slots:
            with self._having(slot):
                for d, var in enumerate(slot.held):
                    k, test = self._place(slot, k0 // self.unit + d)
                    value = pack(*slot.line.parts(b, k, self.lanes))
                    if test is not None:
                        value = select(test, value, const(0, value.type))
                    b.assign(var, value)

    def put(self, base: Expr) -> None:
        """Stores the loaded elements in the block that starts at element `base` of the target."""
        b = self.b
        for slot in self.slots:
            with self._having(slot):
                at = b.let(base + slot.to, "put")
                if not self.turned:
                    self._store(at, slot.held[0])
                    continue
                for t in range(self.lanes):
                    woven = pack(*(extract(v, t) for v in slot.held))
                    self._store(at + t * self.pitch, woven)

    def _having(self, slot: _Slot) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if slot.part is None else self.b.when(slot.part)

    def _place(self, slot: _Slot, k0: Expr) -> tuple[Expr, Expr | None]:
        """The k of the slot's vector, or the nearest one that exists, and whether it exists."""
        b, s = self.b, self.source
        at_k, last = b.let(k0 + slot.k, "at_k"), s.k - (self.lanes if self.along else 1)
        tests = [] if s.items % self.items == 0 else [slot.at < s.items]
        tests += [at_k <= last] if s.k % self.bk else []
        inside = minimum(at_k, last) if s.k % self.bk else at_k
        test = None if not tests else tests[0] if len(tests) == 1 else tests[0] & tests[1]
        return inside, test

    def _store(self, at: Expr, value: Expr) -> None:
        self.b.store(self.target, at, cast(value, self.target.dtype))


def rotate(
    b: Builder,
    stages: Sequence[SharedStage],
    k: int,
    bk: int,
    step: Callable[[Expr, list[Expr]], None],
) -> None:
    """Calls `step` for every block along k, with its first k and the element where it starts in
    each stage's target, while the next blocks arrive in the rest of the ring."""
    if k == 0:
        return
    ring = stages[0].ring
    late = [s for s in stages if s.late]
    held = [s for s in stages if not s.late]
    for stage in held:
        stage.fetch(const(0))
        stage.put(const(0))
    for number in range(ring - 1):
        for stage in late if number * bk < k else []:
            stage.copy(const(number * bk), const(number * stage.size))
        if late and number < ring - 2:
            b.barrier()  # between blocks, so that each is waited for by itself
    with b.loop(k, step=bk, name="k0") as k0:
        b.barrier()
        block = b.let(k0 // bk, "block")

        def base(stage: SharedStage, ahead: int) -> Expr:
            return b.let((block + ahead) % ring * stage.size, "base")

        def coming(
            stages: Sequence[SharedStage], ahead: int
        ) -> Iterator[tuple[SharedStage, Expr, Expr]]:
            """Each of the stages, if there is a block so far ahead: its k and its place."""
            if stages:
                after = b.let(k0 + ahead * bk, "after")
                with b.when(after < k):
                    for stage in stages:
                        yield stage, after, base(stage, ahead)

        for stage, after, place in coming(late, ring - 1):
            stage.copy(after, place)
        for stage, after, _ in coming(held, 1):
            stage.fetch(after)
        step(k0, [base(stage, 0) for stage in stages])
        for stage, _, place in coming(held, 1):
            stage.put(place)
