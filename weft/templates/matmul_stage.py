"""Blocks of a dot's operands on their way to shared memory, by way of registers.

A group's threads first ask for their part of the next block (`fetch`), multiply the block at hand,
then store what has arrived (`put`): memory's latency hides behind the products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import Builder, Expr, cast, const, extract, load, minimum, pack, select
from weft.kernel.ir import Type

_WIDE = 16  # bytes of the widest load


@dataclass(frozen=True)
class Operand:
    """Element (item, k) is element base + item * s_item + k * s_k of `buffer`; items are rows of
    the left operand, columns of the right one. What divides all of `known` divides `base`."""

    buffer: ir.Buffer
    base: Expr
    s_item: int
    s_k: int
    items: int
    k: int
    known: tuple[int, ...] = ()

    @property
    def along_k(self) -> bool:
        """Whether neighbours in memory are neighbours along k."""
        return self.s_k == 1

    def lanes(self, items: int, bk: int) -> int:
        """How many neighbours to load at once: no vector is cut by an edge, each is aligned."""
        if 1 not in (self.s_k, self.s_item):
            return 1
        length, limit = (self.k, bk) if self.along_k else (self.items, items)
        other = self.s_item if self.along_k else self.s_k
        lanes = _WIDE // self.buffer.dtype.itemsize
        while lanes > max(limit, 1) or any(n % lanes for n in (length, other, *self.known)):
            lanes //= 2
        return lanes


def pitch(length: int, dtype: DType) -> int:
    """Elements from one row of a shared block to the next: 16 bytes more than a row holds, so that
    neighbours down a column lie in different banks."""
    return length + _WIDE // dtype.itemsize


@dataclass(frozen=True)
class _Slot:
    """A vector that a thread moves: where it goes in the block and where it comes from."""

    k: Expr
    item: Expr
    at: Expr  # the operand's item
    start: Expr  # index of the element at k = 0 of its item, or of the last item
    part: Expr | None  # whether this thread has the slot at all; None: all have
    held: list[ir.Var]


class Stage:
    """The way of blocks of (items, bk) elements from `source`, where items start at `first`, to a
    shared array for two of them. `team` are a thread's number and how many there are.

    A block holds rows of k (`k_major`: element (item, k) at k * pitch + item) or rows per item (at
    item * pitch + k). What lies beyond the operand's edges arrives as 0.
    """

    def __init__(
        self, b: Builder, name: str, source: Operand, first: Expr, block: tuple[int, int],
        k_major: bool, dtype: DType, team: tuple[Expr, int],
    ) -> None:  # fmt: skip
        self.b, self.source = b, source
        flat, threads = team
        self.items, self.bk = items, bk = block
        self.k_major, self.along = k_major, source.along_k
        self.pitch = pitch(items if k_major else bk, dtype)
        self.size = self.pitch * (bk if k_major else items)
        self.target = b.array(name, dtype, 2 * self.size, "shared")
        self.lanes = lanes = source.lanes(items, bk)
        # Two rows of k at once turn into pairs of neighbours along k.
        self.depth = 2 if not self.along and not k_major else 1
        of_k, self.of_item = (lanes, 1) if self.along else (self.depth, lanes)
        across, wide = bk // of_k, items // self.of_item
        inward = self.along or not k_major  # neighbouring threads are neighbours along k
        self.slots = []
        for start in range(0, across * wide, threads):
            e = b.let(flat + start, "e")
            part = None if start + threads <= across * wide else b.let(e < across * wide, "part")
            k, item = (e % across, e // across) if inward else (e // wide, e % wide)
            at_k, at_item = b.let(k * of_k, "k"), b.let(item * self.of_item, "item")
            self.slots.append(self._slot(at_k, at_item, first, part))

    def _slot(self, k: Expr, item: Expr, first: Expr, part: Expr | None) -> _Slot:
        b, s = self.b, self.source
        at = b.let(first + item, "at")
        inside = at if s.items % self.items == 0 else minimum(at, s.items - self.of_item)
        start = b.let(s.base + inside * s.s_item, "start")
        zero = const(0, Type(s.buffer.dtype, self.lanes))
        held = [b.var(zero, "held", zero.type) for _ in range(self.depth)]
        return _Slot(k, item, at, start, part, held)

    def fetch(self, k0: Expr) -> None:
        """Asks for the block from `k0` (a multiple of bk) on."""
        b, s = self.b, self.source
        last = s.k - (self.lanes if self.along else 1)
        for slot in self.slots:
            with contextlib.nullcontext() if slot.part is None else b.when(slot.part):
                for d, var in enumerate(slot.held):
                    at_k = b.let(k0 + slot.k + d, "at_k")
                    tests = [] if s.items % self.items == 0 else [slot.at < s.items]
                    tests += [at_k <= last] if s.k % self.bk else []
                    inside = minimum(at_k, last) if s.k % self.bk else at_k
                    value = load(s.buffer, slot.start + inside * s.s_k, self.lanes)
                    if tests:
                        test = tests[0] if len(tests) == 1 else tests[0] & tests[1]
                        value = select(test, value, const(0, value.type))
                    b.assign(var, value)

    def put(self, base: Expr) -> None:
        """Stores what was asked for, in the block that starts at element `base` of the target."""
        b = self.b
        for slot in self.slots:
            with contextlib.nullcontext() if slot.part is None else b.when(slot.part):
                major, minor = (slot.k, slot.item) if self.k_major else (slot.item, slot.k)
                at = b.let(base + major * self.pitch + minor, "put")
                if self.along != self.k_major:
                    self._store(at, slot.held[0])
                    continue
                for t in range(self.lanes):
                    turned = pack(*(extract(v, t) for v in slot.held))
                    self._store(at + t * self.pitch, turned)

    def _store(self, at: Expr, value: Expr) -> None:
        self.b.store(self.target, at, cast(value, self.target.dtype))


def rotate(
    b: Builder, stages: Sequence[Stage], k: int, bk: int, step: Callable[[list[Expr]], None]
) -> None:
    """Calls `step` for every block along k, with the element where it starts in each stage's
    target: one half of the target is read while the other is filled."""
    if k == 0:
        return
    for stage in stages:
        stage.fetch(const(0))
        stage.put(const(0))
    b.barrier()
    with b.loop(k, step=bk, name="k0") as k0:
        half, after = b.let(k0 // bk % 2, "half"), b.let(k0 + bk, "after")
        more = b.let(after < k, "more")
        with b.when(more):
            for stage in stages:
                stage.fetch(after)
        step([b.let(half * stage.size, "base") for stage in stages])
        with b.when(more):
            for stage in stages:
                stage.put(b.let((1 - half) * stage.size, "next"))
        b.barrier()
