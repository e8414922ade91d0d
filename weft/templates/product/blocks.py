"""What the GPU variants of matmul share: a group of threads per block of the result, which blocks
follow each other, and the choice of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Protocol, TypeVar

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.expr import ceil_div, const, minimum
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import Tail, count_flops, row_limit
from weft.templates.product.pipeline import ASYNC, Operand
from weft.templates.product.problem import Problem, View

_STRIP = 8  # rows of blocks that are walked together: they share what the caches hold of B
_FILL = 100  # groups from which on a GPU counts as busy


class BlockMatmul:
    """The kernel of a dot group in which a group of `threads` computes `rows` x `columns` results
    of every dot. A subclass sets these and writes `body`, with `m0` and `n0` at hand."""

    rows: int
    columns: int
    threads: int
    resident = 1  # groups per core

    def __init__(
        self, group: Group, p: Problem, caps: Caps, em: Emitter | None = None,
        outputs: Sequence[Node] | None = None,
    ) -> None:  # fmt: skip
        """`em` and `outputs`: where it is a part of a larger kernel."""
        self.group, self.p, self.caps = group, p, caps
        self.em = em = em or Emitter(Builder(group.name or "matmul"), group, caps)
        self.b = em.b
        self.tail = Tail(em, p, group.outputs if outputs is None else outputs)
        integer = not p.dots[0].inputs[0].dtype.is_float
        self.acc_type: DType = dt.int32 if integer else dt.float32

    def body(self) -> None:
        raise NotImplementedError

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        batches: Any = max(p.batches, 1)
        if p.batch and self.group.rows is not None:
            batches = row_limit(self.group, p.batches // p.batch[0], p.batches)
        grid = (ceil_div(p.n, self.columns), ceil_div(self.limit(), self.rows), batches)
        self.batch = affine.unflatten(self.em.axis(b.group(2), max(p.batches, 1)), p.batch)
        self.flat = b.let(b.thread(0), "flat")
        down, across = self._place()
        self.m0, self.n0 = b.let(down * self.rows, "m0"), b.let(across * self.columns, "n0")
        self.body()
        flops, nbytes = count_flops(p), traffic(self.group)
        return b.kernel(grid, (self.threads,), flops, nbytes, self.resident)

    def limit(self) -> Expr:
        """How many rows are wanted."""
        p = self.p
        if self.group.rows is None or p.batch:
            return const(p.m)
        return row_limit(self.group, p.m // p.rows[0], p.m)

    def _place(self) -> tuple[Expr, Expr]:
        """The group's block: row and column of blocks. In large problems groups go down strips of
        a few rows of blocks, so that those at work together read little of A and of B."""
        b, p = self.b, self.p
        across = -(-p.n // self.columns)
        if p.m <= _STRIP * self.rows or across <= _STRIP:
            return b.group(1), b.group(0)
        number = b.let(b.group(1) * across + b.group(0), "number")
        top = b.let(number // (_STRIP * across) * _STRIP, "top")
        down = ceil_div(self.limit(), self.rows)
        high = b.let(minimum(down - top, _STRIP), "high")
        own = b.let(number - top * across, "own")
        return top + own % high, own // high

    def left(self) -> Operand:
        """The operand that the dots share."""
        p = self.p
        return self._operand(p.a, p.a_batch, p.a_m, p.a_k, p.m)

    def right(self, i: int) -> Operand:
        """The other operand of dot number i."""
        strides, s_k, s_n = self.p.b_strides(i)
        return self._operand(self.p.bs[i], strides, s_n, s_k, self.p.n)

    def _operand(
        self, view: View, strides: tuple[int, ...], s_item: int, s_k: int, items: int
    ) -> Operand:
        index = affine.flatten(self.batch, strides, view.offset)
        base = self.b.let(self.em.expr(index), "base")
        buffer = self.em.buffers[id(view.node)]
        return Operand(buffer, base, s_item, s_k, items, self.p.k, (*strides, view.offset))


class Plan(Protocol):
    """A group's block, and how its threads share it."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    def problem(self, p: Problem, caps: Caps) -> str | None:
        """Why it cannot be had, or None."""
        ...


P = TypeVar("P", bound=Plan)


def choose(plans: Sequence[P], p: Problem, caps: Caps, config: Mapping[str, Any]) -> P:
    """The first of `plans` (the largest block first) that the target can hold, that gives it enough
    groups and is not half empty, with the fields that `config` sets. Raises CompileError where
    they do not fit."""
    fitting = [plan for plan in plans if plan.problem(p, caps) is None] or list(plans)
    chosen = fitting[-1]
    for plan in fitting:
        if plan.rows >= 2 * p.m or plan.columns >= 2 * p.n:
            continue
        if -(-p.m // plan.rows) * -(-p.n // plan.columns) * max(p.batches, 1) >= _FILL:
            chosen = plan
            break
    names = [f.name for f in fields(chosen) if f.name in config]  # type: ignore[arg-type]
    chosen = replace(chosen, **{name: config[name] for name in names})  # type: ignore[type-var]
    problem = chosen.problem(p, caps)
    if problem is not None:
        raise CompileError(f"matmul with {chosen} on {caps.name}: {problem}")
    return chosen


def variants(
    plans: Sequence[P], p: Problem, caps: Caps, depths: Sequence[int]
) -> list[dict[str, Any]]:
    """The plans that the target can hold as configurations, also with other depths of a block and
    other numbers of blocks in shared memory."""
    found = [*plans]
    for plan in plans:
        changes = [{"bk": bk} for bk in depths if bk < 2 * p.k]
        changes += [{"ring": ring} for ring in (2, 3, 4)] if ASYNC in caps.features else []
        found += [replace(plan, **change) for change in changes]  # type: ignore[type-var]
    fitting = [plan for plan in found if plan.problem(p, caps) is None]
    return [asdict(plan) for plan in dict.fromkeys(fitting)]  # type: ignore[call-overload]
