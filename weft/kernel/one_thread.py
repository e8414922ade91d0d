"""A kernel whose groups are one thread each, for CPUs: the threads of a group become a loop.

The text between two barriers becomes one loop over the threads, or over vectors of them. A loop or
branch with a barrier inside stays outside, as all threads take it alike. Values that a thread keeps
from one stretch to the next go to an array with a place per thread. Index arithmetic is done again
instead. Values that all threads share are computed once. (Stratton, Stone & Hwu, "MCUDA", 2008.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.errors import CompileError
from weft.kernel import expr as kb, ir
from weft.kernel.ir import I32, Expr, Kernel, Stmt, Type
from weft.kernel.lanes_of_threads import Lanes, NoLanesError, fitting
from weft.kernel.rewrite import copied
from weft.kernel.walk import declared, operands, statements, walk, with_body


@dataclass(eq=False)
class Stretch:
    """Statements that each thread runs through without meeting the others."""

    body: list[Stmt] = field(default_factory=list)


_Item = Any  # a Stretch, or a statement for all threads at once: Let, or (For | If, its regions)


def one_thread(kernel: Kernel, lanes: int = 1) -> Kernel:
    """The same kernel with threads (1, 1, 1). Where it can, a step of the loop is a vector of up to
    `lanes` threads. `kernel` must pass the verifier. Raises CompileError for what threads of a
    subgroup do together."""
    if kernel.threads == (1, 1, 1):
        return kernel
    body = Threads(kernel, lanes).run()
    return replace(with_body(kernel, ir.Block(tuple(body))), threads=(1, 1, 1))


class Threads:
    def __init__(self, kernel: Kernel, lanes: int) -> None:
        self.kernel = kernel
        self.count = math.prod(kernel.threads)
        self.lanes = fitting(kernel.threads[0], lanes)
        # Elements of a private array lie beside those of the next thread, unless lanes are loaded.
        self.interleaved = not any(map(_of_lanes, walk(kernel.body)))
        self.names = set(declared(kernel))
        self.alike: set[str] = set()  # variables that are the same in all threads
        self.homes: dict[str, Stretch] = {}  # variables and arrays: where they are declared
        self.lets: dict[str, ir.Let] = {}  # of `homes`, in the order of the text
        self.kept: dict[str, ir.Array] = {}  # variables and private arrays with a place per thread
        self.again: set[str] = set()  # variables that are computed again where they are needed
        self.shared: dict[str, ir.Array] = {}

    def run(self) -> list[Stmt]:
        items = list(self.region(self.kernel.body))
        self.find_kept(items)
        body = [made for item in items for made in self.item(item)]
        return [*self.shared.values(), *self.kept.values(), *body]

    # -- which statements are for all threads at once

    def region(self, block: ir.Block) -> Iterator[_Item]:
        stretch = Stretch()
        for s in block.body:
            if isinstance(s, ir.Array) and s.space == "shared":
                self.shared[s.name] = replace(s, space="private")
            elif isinstance(s, ir.Let) and not s.mutable and self.same(s.value):
                self.alike.add(s.var.name)
                yield s
            elif not any(isinstance(one, ir.Barrier) for one in statements(s)):
                self.note(s, stretch)
                stretch.body.append(s)
            else:
                if stretch.body:
                    yield stretch
                    stretch = Stretch()
                if isinstance(s, ir.For):
                    self.alike.add(s.var.name)
                    yield s, (list(self.region(s.body)),)
                elif isinstance(s, ir.If):
                    parts = [s.then] if s.other is None else [s.then, s.other]
                    yield s, tuple(list(self.region(part)) for part in parts)
                elif isinstance(s, ir.Block):
                    yield from self.region(s)
        if stretch.body:
            yield stretch

    def note(self, s: Stmt, stretch: Stretch) -> None:
        if isinstance(s, ir.Let):
            self.homes[s.var.name] = stretch
            self.lets[s.var.name] = s
        elif isinstance(s, ir.Array):
            self.homes[s.name] = stretch

    def same(self, e: Expr) -> bool:
        """True if all threads find one value: what they read they do not write meanwhile."""
        if isinstance(e, ir.Axis):
            return e.kind == "group" or self.kernel.threads[e.dim] == 1
        if isinstance(e, ir.Var):
            return e.name in self.alike
        private = isinstance(e, ir.Load) and isinstance(e.source, ir.Array)
        if private and e.source.space == "private":  # type: ignore[attr-defined]
            return False
        return all(map(self.same, operands(e)))

    # -- what outlives its stretch

    def find_kept(self, items: Sequence[_Item]) -> None:
        foreign = {name for item in items for name in self.foreign(item)}
        for name, let in self.lets.items():
            if name not in foreign:
                continue
            if not let.mutable and self.is_index(let.value):
                self.again.add(name)
            else:
                var = let.var
                size = self.count * var.type.lanes
                self.kept[name] = ir.Array(self.unique(f"{name}_all"), var.type.dtype, size)
        for name, home in self.homes.items():
            array = next((s for s in home.body if isinstance(s, ir.Array) and s.name == name), None)
            if array is not None and name in foreign:
                self.kept[name] = replace(array, size=array.size * self.count)

    def foreign(self, item: _Item) -> Iterator[str]:
        """The names that an item uses but another stretch declares."""
        if isinstance(item, Stretch):
            for name in dict.fromkeys(n for s in item.body for n in _used(s)):
                if name in self.homes and self.homes[name] is not item:
                    yield name
        elif isinstance(item, tuple):
            control, regions = item
            for e in operands_of(control):
                yield from (n for n in _used(e) if n in self.homes)
            for region in regions:
                for inner in region:
                    yield from self.foreign(inner)

    def is_index(self, e: Expr) -> bool:
        """True for arithmetic on integers and conditions that costs less than memory."""
        if isinstance(e, ir.Var):
            return e.name in self.alike | self.again
        if isinstance(e, ir.Load) or e.type.dtype.is_float or e.type.lanes > 1:
            return False
        return all(map(self.is_index, operands(e)))

    def unique(self, name: str) -> str:
        candidate, n = name, 0
        while candidate in self.names:
            n += 1
            candidate = f"{name}_{n}"
        self.names.add(candidate)
        return candidate

    # -- the new text

    def item(self, item: _Item) -> list[Stmt]:
        if isinstance(item, Stretch):
            return [self.loops(item)]
        if isinstance(item, ir.Let):
            return [replace(item, value=_Thread(self, [kb.const(0)] * 3).expr(item.value))]
        control, regions = item
        first = _Thread(self, [kb.const(0)] * 3)
        made = first.fetched(self.needed([n for e in operands_of(control) for n in _used(e)]))
        blocks = [ir.Block(tuple(s for x in region for s in self.item(x))) for region in regions]
        if isinstance(control, ir.For):
            start, stop = first.expr(control.start), first.expr(control.stop)
            return [*made, replace(control, start=start, stop=stop, body=blocks[0])]
        other = blocks[1] if len(blocks) > 1 else None
        return [*made, ir.If(first.expr(control.cond), blocks[0], other)]

    def loops(self, stretch: Stretch) -> Stmt:
        """The loop of a stretch over all threads."""
        at: list[Expr] = []
        for dim, n in enumerate(self.kernel.threads):
            at.append(ir.Var(self.unique(f"thread{dim}"), I32) if n > 1 else kb.const(0))
        body, steps = None, [1, 1, 1]
        if self.lanes > 1:
            with contextlib.suppress(NoLanesError):
                body, steps[0] = Lanes(self, at, self.lanes).stretch(stretch), self.lanes
        if body is None:
            body = _Thread(self, at).stretch(stretch)
        for var, n, step in zip(at, self.kernel.threads, steps):
            if isinstance(var, ir.Var):
                body = [ir.For(var, kb.const(0), kb.const(n), ir.Block(tuple(body)), step)]
        return ir.Block(tuple(body))

    def moved(self, stretch: Stretch) -> tuple[list[str], list[str]]:
        """The variables of other stretches that this one needs, and those that it leaves behind for
        others, both in the order of the text."""
        used = dict.fromkeys(n for s in stretch.body for n in _used(s))
        needed = self.needed([n for n in used if self.homes.get(n) is not stretch])
        written = {s.var.name for one in stretch.body for s in statements(one)
                   if isinstance(s, ir.Assign)}  # fmt: skip
        left = [
            name
            for name in self.lets
            if name in self.kept and (self.homes[name] is stretch or name in written)
        ]
        return needed, left

    def needed(self, names: Sequence[str]) -> list[str]:
        """The variables among `names`, and those that they are computed from again."""
        found, stack = set[str](), list(names)
        while stack:
            name = stack.pop()
            if name in self.lets and name not in found:
                found.add(name)
                stack += _used(self.lets[name].value) if name in self.again else ()
        return [n for n in self.lets if n in found and n in self.again | self.kept.keys()]


def _of_lanes(node: Expr | Stmt) -> bool:
    """True for an access to several elements of a private array."""
    memory: Any = node.source if isinstance(node, ir.Load) else getattr(node, "target", None)
    private = isinstance(memory, ir.Array) and memory.space == "private"
    value = node.type if isinstance(node, ir.Load) else getattr(node, "value", None)
    lanes = value.lanes if isinstance(value, Type) else getattr(value, "type", I32).lanes
    return private and lanes > 1


def operands_of(control: ir.For | ir.If) -> list[Expr]:
    return [control.start, control.stop] if isinstance(control, ir.For) else [control.cond]


def _used(node: Expr | Stmt) -> Iterator[str]:
    """The names of variables and local arrays that a node reads or writes."""
    for one in walk(node):
        if isinstance(one, ir.Var):
            yield one.name
        elif isinstance(one, ir.Load) and isinstance(one.source, ir.Array):
            yield one.source.name
        elif isinstance(one, ir.Store) and isinstance(one.target, ir.Array):
            yield one.target.name


class _Thread:
    """Rewrites what one thread does, the thread at the places `at` of the group's axes."""

    def __init__(self, all_: Threads, at: Sequence[Expr]) -> None:
        self.all, self.at = all_, at
        self.now: dict[str, ir.Var] = {}  # variables under the names that they have here

    def number(self) -> Expr:
        x, y, _ = self.all.kernel.threads
        return self.at[0] + self.at[1] * x + self.at[2] * (x * y)

    def stretch(self, stretch: Stretch) -> list[Stmt]:
        wanted, left = self.all.moved(stretch)
        made = [*self.fetched(wanted), *self.stmts(stretch.body)]
        for name in left:
            var = self.all.lets[name].var
            place = self.place(var.type.lanes)
            made.append(ir.Store(self.all.kept[name], place, self.now.get(name, var)))
        return made

    def fetched(self, names: Sequence[str]) -> list[Stmt]:
        """The statements that give this thread the variables `names` of other stretches."""
        made: list[Stmt] = []
        for name in names:
            let = self.all.lets[name]
            type_ = let.var.type
            value = (
                self.expr(let.value)
                if name in self.all.again
                else ir.Load(self.all.kept[name], self.place(type_.lanes), type_)
            )
            self.now[name] = ir.Var(self.all.unique(name), type_)
            made.append(ir.Let(self.now[name], value, let.mutable))
        return made

    def place(self, size: int) -> Expr:
        """The first of this thread's `size` elements of a kept array."""
        return self.number() * size

    # -- statements and expressions, all of them new objects

    def stmts(self, body: Sequence[Stmt]) -> list[Stmt]:
        return [made for s in body if (made := self.stmt(s)) is not None]

    def block(self, block: ir.Block) -> ir.Block:
        return ir.Block(tuple(self.stmts(block.body)))

    def stmt(self, s: Stmt) -> Stmt | None:
        if isinstance(s, ir.Let):
            return replace(s, value=self.expr(s.value))
        if isinstance(s, ir.Assign):
            return ir.Assign(self.now.get(s.var.name, s.var), self.expr(s.value))
        if isinstance(s, ir.Store):
            target, index = self.memory(s.target, s.index)
            mask = None if s.mask is None else self.expr(s.mask)
            return replace(s, target=target, index=index, value=self.expr(s.value), mask=mask)
        if isinstance(s, ir.For):
            start, stop = self.expr(s.start), self.expr(s.stop)
            return replace(s, start=start, stop=stop, body=self.block(s.body))
        if isinstance(s, ir.If):
            other = None if s.other is None else self.block(s.other)
            return ir.If(self.expr(s.cond), self.block(s.then), other)
        if isinstance(s, ir.Block):
            return self.block(s)
        if isinstance(s, ir.Array):
            return None if s.name in self.all.kept else s
        raise CompileError(
            f"kernel {self.all.kernel.name}: {type(s).__name__} takes the threads of a subgroup, "
            "which a CPU lacks"
        )

    def memory(self, memory: Any, index: Expr) -> tuple[Any, Expr]:
        """A local array as it is now, and this thread's place in it."""
        found = self.expr(index)
        if memory.name in self.all.shared:
            return self.all.shared[memory.name], found
        kept = self.all.kept.get(memory.name)
        if kept is None:
            return memory, found
        if self.all.interleaved:
            return kept, kb.binary("add", kb.binary("mul", found, self.all.count), self.number())
        place = self.place(memory.size)
        return kept, kb.binary("add", found, kb.splat(place, found.type.lanes))

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, ir.Axis) and e.kind == "thread":
            return self.at[e.dim]
        if isinstance(e, ir.Var):
            return self.now.get(e.name, e)
        if isinstance(e, ir.Load):
            source, index = self.memory(e.source, e.index)
            mask = None if e.mask is None else self.expr(e.mask)
            return ir.Load(source, index, e.type, mask)
        if isinstance(e, ir.Collective) and e.op.startswith("subgroup"):
            raise CompileError(f"kernel {self.all.kernel.name}: {e.op} on a CPU")
        return copied(e, [self.expr(c) for c in operands(e)])
