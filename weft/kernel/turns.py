"""Counts the loop iterations of a kernel's threads, and rewrites kernels to take fewer.

llvmpipe silently ends every loop of a thread after 65,535 iterations in all. Where a kernel may
exceed such a limit, its innermost loops take several steps per iteration. The steps and their order
stay the same, so no bit changes.
"""

from __future__ import annotations

from weft.core.errors import LimitError
from weft.kernel import ir
from weft.kernel.expr import const
from weft.kernel.ir import I32, Block, Kernel, Stmt
from weft.kernel.ranges import Ranges
from weft.kernel.walk import assigned, declared, rewritten, statements, with_body

STEPS = (2, 4, 8, 16, 32)  # possible steps per iteration
_SHARE = 8  # loops with less than this share of all iterations stay unchanged


def most_turns(kernel: Kernel) -> int:
    """The turns of all loops of one thread together, at most; a loop's end counts as one."""
    return _Count(kernel).block(kernel.body)


def within_turns(kernel: Kernel, most: int) -> Kernel:
    """The kernel with at most `most` turns (0: any number) of its loops in one thread, itself where
    that holds. Raises LimitError where that takes more steps a turn than code should hold."""
    if not most:
        return kernel
    count = _Count(kernel)
    turns = count.block(kernel.body)
    if turns <= most:
        return kernel
    long = {key for key, n in count.innermost.items() if n > most // _SHARE}
    for steps in STEPS:
        made = with_body(kernel, rewritten(kernel.body, _Unroll(kernel, long, steps).stmt))
        if most_turns(made) <= most:
            return made
    raise LimitError(
        f"kernel {kernel.name}: a thread's loops go round up to {turns:,} times, this target ends "
        f"them after {most:,}: use smaller shapes, or the CPU"
    )


class _Count:
    """A walk that binds what loops and conditions say. `innermost`: the turns in all of each loop
    without loops and barriers in it, by id."""

    def __init__(self, kernel: Kernel) -> None:
        self.ranges = Ranges(kernel)
        self.innermost: dict[int, int] = {}
        self.around = 1  # iterations of the enclosing loops

    def block(self, block: Block) -> int:
        return sum(self.stmt(s) for s in block.body)

    def stmt(self, s: Stmt) -> int:
        if isinstance(s, Block):
            return self.block(s)
        if isinstance(s, ir.For):
            return self.loop(s)
        if isinstance(s, ir.If):
            parts = [(s.then, True)] + ([(s.other, False)] if s.other is not None else [])
            return sum(self.branch(s, part, holds) for part, holds in parts)
        if isinstance(s, ir.Let) and not s.mutable:
            self.ranges.let(s.var, s.value)
        elif isinstance(s, ir.Assign):
            self.ranges.forget([s.var.name])
        return 0

    def branch(self, s: ir.If, part: Block, holds: bool) -> int:
        with self.ranges.facts.given(self.ranges.holds(s.cond, holds)):
            found = self.block(part)
        self.ranges.forget(assigned(part))
        return found

    def loop(self, s: ir.For) -> int:
        outer, names = self.around, assigned(s.body)
        with self.ranges.facts.given():
            turns = self.ranges.loop(s)
            self.around *= turns
            if not any(isinstance(x, ir.For | ir.Barrier) for x in statements(s.body)):
                self.innermost[id(s)] = self.around
            self.ranges.forget(names)
            inside = self.block(s.body)
            self.ranges.forget(names)
        self.around = outer
        return turns * inside if s.unroll else 1 + turns * (1 + inside)


class _Unroll:
    """Loops (by id) that take several steps a turn."""

    def __init__(self, kernel: Kernel, loops: set[int], steps: int) -> None:
        self.loops, self.steps = loops, steps
        self.names = set(declared(kernel))

    def stmt(self, s: Stmt) -> list[Stmt] | None:
        return [self.loop(s)] if isinstance(s, ir.For) and id(s) in self.loops else None

    def loop(self, s: ir.For) -> Stmt:
        first, step, stop = (self.fresh(n) for n in (s.var.name, "step", "stop"))
        one = ir.If(s.var < stop, s.body)
        steps = Block((ir.Let(s.var, first + step * s.step), one))
        inner = ir.For(step, const(0), const(self.steps), steps, unroll=True)
        outer = ir.For(first, s.start, stop, Block((inner,)), s.step * self.steps)
        return Block((ir.Let(stop, s.stop), outer))

    def fresh(self, name: str) -> ir.Var:
        while name in self.names:
            name += "_"
        self.names.add(name)
        return ir.Var(name, I32)
