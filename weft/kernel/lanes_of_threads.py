"""The threads of a group as lanes of vectors, for CPUs: one stretch between two barriers.

Neighbours along the first axis become the lanes. A number that grows by a constant from thread to
thread keeps its first value and the constant, so neighbours in memory move as one vector. A
condition that differs between lanes becomes a mask. (Pharr & Mark, "ispc", 2012.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.kernel import expr as kb, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import I32, Expr, Stmt, Type
from weft.kernel.rewrite import copied, zero
from weft.kernel.walk import operands

if TYPE_CHECKING:
    from weft.kernel.one_thread import Stretch, Threads

_FAR = 1 << 30  # bounds and steps below it, so that no lane's number overflows
_WIDE = (ir.Vec, ir.Collective)


class NoLanesError(Exception):
    """A stretch that does not fit lanes; its threads run one after the other."""


@dataclass(frozen=True)
class _Many:
    """A value in all lanes: `base` + lane * `step`; without a step `base` is a vector."""

    base: Expr
    step: int | None = 0


class Lanes:
    """Rewrites a stretch for `lanes` threads at once, the first of them at the places `at`."""

    def __init__(self, all_: Threads, at: Sequence[Expr], lanes: int) -> None:
        self.all, self.at, self.lanes = all_, at, lanes
        self.b = Builder(all_.kernel.name, all_.names)
        self.now: dict[str, _Many] = {}
        self.arrays: dict[str, ir.Array] = {}  # private arrays of this stretch alone
        self.mask: Expr | None = None  # the lanes that run; None: all
        self.split = False  # true inside a loop that was written twice

    def stretch(self, stretch: Stretch) -> list[Stmt]:
        """The statements of the stretch. Raises NoLanesError."""
        x, y, _ = self.all.kernel.threads
        self.number = self.b.let(self.at[0] + self.at[1] * x + self.at[2] * (x * y), "number")
        wanted, kept = self.all.moved(stretch)
        for name in wanted:
            let = self.all.lets[name]
            self.plain(let.var.type)
            if name in self.all.again:
                self.now[name] = self.value(let.value)
                continue
            type_ = Type(let.var.type.dtype, self.lanes)
            self.given(name, ir.Load(self.all.kept[name], self.number, type_), let.mutable)
        self.stmts(stretch.body)
        for name in kept:
            self.plain(self.all.lets[name].var.type)
            self.b.store(self.all.kept[name], self.number, self.vector(self.now[name]))
        return list(self.b.statements)

    def plain(self, type_: Type) -> None:
        if type_.lanes > 1:
            raise NoLanesError

    def given(self, name: str, value: Expr, mutable: bool) -> None:
        """A variable of the kernel as a vector."""
        made = self.b.var(value, name) if mutable else self.b.let(value, name)
        self.now[name] = _Many(made, None)

    # -- statements

    def stmts(self, body: Sequence[Stmt]) -> None:
        for s in body:
            rule = _RULES.get(type(s))
            if rule is None:
                raise NoLanesError
            rule(self, s)

    def inner(self, block: ir.Block) -> None:
        before = dict(self.now)
        self.stmts(block.body)
        self.now = before

    def let(self, s: ir.Let) -> None:
        self.plain(s.var.type)
        value = self.value(s.value)
        if s.mutable:
            self.given(s.var.name, self.vector(value), True)
        else:
            self.now[s.var.name] = value

    def assign(self, s: ir.Assign) -> None:
        var, value = self.now[s.var.name].base, self.vector(self.value(s.value))
        self.b.assign(var, value if self.mask is None else kb.select(self.mask, value, var))

    def array(self, s: ir.Array) -> None:
        if s.name not in self.all.kept:
            self.arrays[s.name] = self.b.array(s.name, s.dtype, s.size * self.lanes)

    def store(self, s: ir.Store) -> None:
        self.plain(s.value.type)
        target, at = self.place(s.target, s.index)
        value = self.vector(self.value(s.value))
        mask = self.both(s.mask)
        if at.step == 0 and mask is None:  # the last thread wins
            self.b.store(target, at.base, kb.extract(value, self.lanes - 1))
        else:
            index = at.base if at.step == 1 else self.vector(at)
            self.b.store(target, index, value, mask)

    def branch(self, s: ir.If) -> None:
        cond = self.value(s.cond)
        if cond.step == 0:
            with self.b.when(cond.base):
                self.inner(s.then)
            if s.other is not None:
                with self.b.otherwise():
                    self.inner(s.other)
            return
        before, some = self.mask, self.vector(cond)
        for holds, block in ((some, s.then), (kb.not_(some), s.other)):
            if block is not None:
                here = holds if before is None else kb.binary("and", before, holds)
                self.masked(self.b.let(here, "mask"), block)
        self.mask = before

    def masked(self, mask: Expr, block: ir.Block) -> None:
        self.mask = mask
        with self.b.when(kb.any_(mask)):
            self.inner(block)

    def loop(self, s: ir.For) -> None:
        start, stop = self.value(s.start), self.value(s.stop)
        if stop.step != 0:
            raise NoLanesError
        if start.step == 0:
            with self.b.loop(stop.base, start.base, s.step, s.var.name, s.unroll) as i:
                self.now[s.var.name] = _Many(i)
                self.inner(s.body)
            return
        end = stop.base
        if start.step is None or not isinstance(end, ir.Const) or not 0 < end.value <= _FAR:
            raise NoLanesError
        if not 0 < start.step * self.lanes < _FAR:
            raise NoLanesError
        first = start.base
        if self.mask is None and not self.split:  # turns that all lanes take
            rest = self.b.var(first, "rest")
            whole = int(end.value) - start.step * (self.lanes - 1)
            self.split = True
            with self.b.loop(whole, first, s.step, s.var.name) as i:
                self.now[s.var.name] = _Many(i, start.step)
                self.inner(s.body)
                self.b.assign(rest, i + s.step)
            self.split, first = False, rest
        before, self.split = (self.mask, self.split), True
        with self.b.loop(end, first, s.step, s.var.name) as i:
            self.now[s.var.name] = _Many(i, start.step)
            inside = self.vector(self.now[s.var.name]) < kb.splat(end, self.lanes)
            here = inside if self.mask is None else kb.binary("and", self.mask, inside)
            self.masked(self.b.let(here, "mask"), s.body)
        self.mask, self.split = before

    # -- values, each bound to a name

    def value(self, e: Expr) -> _Many:
        if isinstance(e, ir.Axis):
            if e.kind == "group":
                return _Many(e)
            return _Many(self.at[e.dim], 1 if e.dim == 0 else 0)
        if isinstance(e, ir.Var):
            return self.now.get(e.name, _Many(e))
        if isinstance(e, ir.Const | ir.Param):
            self.plain(e.type)
            return _Many(e)
        if isinstance(e, _WIDE) or e.type.lanes > 1:
            raise NoLanesError
        if isinstance(e, ir.Load):
            return self.load(e)
        parts = [self.value(c) for c in operands(e)]
        if all(p.step == 0 for p in parts):
            return _Many(self.b.let(copied(e, [p.base for p in parts])))
        line = self.line(e, parts)
        if line is not None:
            return line
        made: Any = copied(e, [self.vector(p) for p in parts])
        return _Many(self.b.let(replace(made, type=Type(e.type.dtype, self.lanes))), None)

    def line(self, e: Expr, parts: Sequence[_Many]) -> _Many | None:
        """A sum or product that grows by a constant from lane to lane."""
        if not isinstance(e, ir.Binary) or e.type != I32 or any(p.step is None for p in parts):
            return None
        a, b = parts
        assert a.step is not None and b.step is not None
        if e.op in ("add", "sub"):
            step = a.step + b.step if e.op == "add" else a.step - b.step
        elif e.op == "mul" and isinstance(b.base, ir.Const) and b.step == 0:
            step = a.step * int(b.base.value)
        else:
            return None
        if abs(step) >= _FAR:
            return None
        return _Many(self.b.let(kb.binary(e.op, a.base, b.base)), step)

    def vector(self, many: _Many) -> Expr:
        """A value as a vector, an atom or an expression for one use."""
        if many.step is None:
            return many.base
        whole = kb.splat(many.base, self.lanes)
        if not many.step:
            return whole
        lanes = kb.binary("mul", kb.iota(self.lanes), many.step)
        return self.b.let(kb.binary("add", whole, lanes))

    def both(self, mask: Expr | None) -> Expr | None:
        """The mask of an access in the lanes that run."""
        if mask is None:
            return self.mask
        own = self.vector(self.value(mask))
        return self.b.let(own if self.mask is None else kb.binary("and", self.mask, own), "mask")

    def place(self, memory: Any, index: Expr) -> tuple[Any, _Many]:
        """A memory as it is now, and where its elements are."""
        self.plain(index.type)
        at = self.value(index)
        if memory.name in self.all.shared:
            return self.all.shared[memory.name], at
        kept, own = self.all.kept.get(memory.name), self.arrays.get(memory.name)
        if kept is None and own is None:
            return memory, at
        if not self.all.interleaved:
            raise NoLanesError
        count = self.all.count if kept is not None else self.lanes
        first = self.number if kept is not None else kb.const(0)
        if at.step is None:
            wide = kb.binary("mul", at.base, count)
            wide = kb.binary("add", wide, self.vector(_Many(first, 1)))
            return kept or own, _Many(self.b.let(wide), None)
        base = kb.binary("add", kb.binary("mul", at.base, count), first)
        return kept or own, _Many(self.b.let(base), at.step * count + 1)

    def load(self, e: ir.Load) -> _Many:
        source, at = self.place(e.source, e.index)
        mask = self.both(e.mask)
        if at.step == 0:
            some = None if mask is None else kb.any_(mask)
            found = self.b.let(ir.Load(source, at.base, e.type, some))
            if e.mask is None or mask is None:
                return _Many(found)
            wide = kb.splat(found, self.lanes)
            none = ir.Const(zero(e.type), wide.type)
            return _Many(self.b.let(ir.Select(mask, wide, none, wide.type)), None)
        index = at.base if at.step == 1 else self.vector(at)
        wide_type = Type(e.type.dtype, self.lanes)
        return _Many(self.b.let(ir.Load(source, index, wide_type, mask)), None)


_RULES: dict[type, Any] = {
    ir.Let: Lanes.let, ir.Assign: Lanes.assign, ir.Array: Lanes.array, ir.Store: Lanes.store,
    ir.If: Lanes.branch, ir.For: Lanes.loop, ir.Block: lambda lanes, s: lanes.stmts(s.body),
}  # fmt: skip


def fitting(threads: int, lanes: int) -> int:
    """The largest power of two up to `lanes` that divides a number of threads."""
    while threads % lanes:
        lanes //= 2
    return lanes
