"""Blocked products: a group per block of the result, which blocks follow each other, and the choice
of a block for many threads."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.core.records import dataclass
from weft.kernel.expr import ceil_div, minimum
from weft.kernel.ir import Expr, Kernel
from weft.templates.loops import traffic
from weft.templates.product.kernel import ProductKernel
from weft.templates.product.pipeline import ASYNC, SharedStage
from weft.templates.product.problem import MatmulProblem

STRIP = 8  # rows of blocks that a GPU walks together
_FILL = 100  # number of groups from which a GPU counts as busy


@dataclass(frozen=True)
class BlockPlan(abc.ABC):
    """A group's block: its rows and columns, its depth along k, and how many blocks of either
    operand lie in shared memory (`ring`)."""

    rows: int
    columns: int
    bk: int
    ring: int

    @abc.abstractmethod
    def threads(self, caps: Caps) -> int: ...

    @abc.abstractmethod
    def shared(self, p: MatmulProblem, caps: Caps) -> int:
        """Bytes of shared memory."""

    @abc.abstractmethod
    def misfit(self) -> str | None:
        """Returns the reason why no target can have it, or None."""

    def problem(self, p: MatmulProblem, caps: Caps) -> str | None:
        """Returns the reason why this target cannot have it, or None."""
        if self.ring < 2:
            return "one block is multiplied while another arrives"
        if (reason := self.misfit()) is not None:
            return reason
        if self.threads(caps) > caps.max_threads:
            return f"{self.threads(caps)} threads of {caps.max_threads}"
        shared = self.shared(p, caps)
        return None if shared <= caps.shared_bytes else f"{shared} bytes of {caps.shared_bytes}"


class BlockedProduct(ProductKernel):
    """A blocked product: each group computes `rows` x `columns` results of every dot. Subclasses
    for vectors, matrix registers, threads and matrix units set these and write `body`, with the
    block's corner in `m0`, `n0`. A body walks along K, joins chunks and spans in the one order of
    core/order and passes the sums to `write`."""

    rows: int
    columns: int
    threads: tuple[int, ...] = (1,)
    flat: Expr  # the thread's number, where threads share memory
    resident = 1  # groups per core
    strip = 0  # rows of blocks that are walked together, since they share cached parts of B

    def body(self) -> None:
        raise NotImplementedError

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        self.stacked = ceil_div(self.rows_wanted(), self.rows)
        grid = (ceil_div(p.n, self.columns), self.stacked, self.entries())
        self.enter(b.group(2))
        row, column = self._place()
        self.m0, self.n0 = b.let(row * self.rows, "m0"), b.let(column * self.columns, "n0")
        # Threads that share memory meet at barriers, which all of them must reach.
        skips = self.wanted is not None and self.threads == (1,)
        with b.when(self.m0 < self.rows_wanted()) if skips else nullcontext():
            self.body()
        return b.kernel(grid, self.threads, p.flops, traffic(self.group), self.resident)

    def _place(self) -> tuple[Expr, Expr]:
        """The group's block: row and column of blocks. In large problems groups go down strips of
        a few rows of blocks, so that those at work together read little of A and of B."""
        b, p, strip = self.b, self.p, self.strip
        across = -(-p.n // self.columns)
        if p.m <= strip * self.rows or across <= strip or not strip:
            return b.group(1), b.group(0)
        number = b.let(b.group(1) * across + b.group(0), "number")
        top = b.let(number // (strip * across) * strip, "top")
        high = b.let(minimum(self.stacked - top, strip), "high")
        own = b.let(number - top * across, "own")
        return top + own % high, own // high

    def stages(self, plan: BlockPlan, dtype: DType, k_major: Sequence[bool]) -> list[SharedStage]:
        """The ways of the operands to shared memory, the left one's first."""
        team, copies = (self.flat, self.threads[0]), ASYNC in self.caps.features
        left = ("left", self.m0, plan.rows)
        found = []
        for i, (x, major) in enumerate(zip((self.x, *self.lines), k_major)):
            name, first, items = ("right", self.n0, plan.columns) if i else left
            block = (items, plan.bk, plan.ring)
            found.append(SharedStage(self.b, name, x, first, block, major, dtype, team, copies))
        return found


P = TypeVar("P", bound=BlockPlan)


def choose(plans: Sequence[P], p: MatmulProblem, caps: Caps, config: Mapping[str, Any]) -> P:
    """Returns the first of `plans` (the largest block first) that fits the target, fills it with
    groups and is at least half full. `config` overrides its fields. Raises CompileError if the
    result does not fit."""
    fitting = [plan for plan in plans if plan.problem(p, caps) is None] or list(plans)
    chosen = fitting[-1]
    for plan in fitting:
        if plan.rows >= 2 * p.m or plan.columns >= 2 * p.n:
            continue
        if -(-p.m // plan.rows) * -(-p.n // plan.columns) * max(p.batches, 1) >= _FILL:
            chosen = plan
            break
    names = [f.name for f in fields(chosen) if f.name in config]
    chosen = replace(chosen, **{name: config[name] for name in names})
    problem = chosen.problem(p, caps)
    if problem is not None:
        raise CompileError(f"matmul with {chosen} on {caps.name}: {problem}")
    return chosen


def variants(
    plans: Sequence[P], p: MatmulProblem, caps: Caps, depths: Sequence[int]
) -> list[dict[str, Any]]:
    """The plans that the target can hold as configurations, also with other depths of a block and
    other numbers of blocks in shared memory."""
    found = [*plans]
    for plan in plans:
        changes = [{"bk": bk} for bk in depths if bk < 2 * p.k]
        changes += [{"ring": ring} for ring in (2, 3, 4)] if ASYNC in caps.features else []
        found += [replace(plan, **change) for change in changes]
    fitting = [plan for plan in found if plan.problem(p, caps) is None]
    return [asdict(plan) for plan in dict.fromkeys(fitting)]
