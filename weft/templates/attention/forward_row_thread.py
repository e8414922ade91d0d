"""Attention in threads that take a row each (see `forward`): where barriers are expensive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import KEYS, STRANDS
from weft.kernel import ir, math
from weft.kernel.builder import Builder
from weft.kernel.expr import const, extract, fma, load, maximum, minimum, pack
from weft.kernel.ir import F32, Expr, Type
from weft.templates.attention.forward import ForwardKernel, ForwardWorker
from weft.templates.attention.softmax import (
    FLOOR,
    HIDDEN,
    capped,
    fold_strands,
    follow,
    inverse,
    join,
    joined,
    product,
)
from weft.templates.operand import Reader

THREADS = 64  # threads of a group


class RowThread(ForwardWorker):
    """A thread per row. Components are not looped over: a software rasteriser ends every loop of a
    thread that has gone round 65,535 times in all."""

    def __init__(self, call: ForwardKernel, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        self.rows = config.get("threads", min(THREADS, call.caps.max_threads))
        self.threads = (self.rows,)
        self.quad = 4 if call.depth % 4 == 0 else 1
        self.columns = range(0, call.depth, self.quad)
        self.results = self.columns[:0] if call.statistics else self.columns

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self.at = self.b.let(self.call.first + self.b.thread(0), "row")
        with self.b.when(self.at < self.call.limit), self.em.scope():
            yield

    def hold(self) -> None:
        b, call = self.b, self.call
        self.row = call.item(self.at)
        query = call.query(call.start(self.row))
        self.q = [b.let(self._load(query, 0, d), "q") for d in self.columns]
        self.scores = b.array("scores", dt.float32, KEYS)
        self.strands = b.array("strands", dt.float32, STRANDS)
        self.span, self.all = self._state(), self._state() if call.spans else None

    def _state(self) -> list[ir.Var]:
        """The row's maximum, its total and its columns."""
        zero = const(0.0, Type(dt.float32, self.quad))
        top, total = self.b.var(FLOOR, "top"), self.b.var(0.0, "total")
        return [top, total, *(self.b.var(zero, "o", zero.type) for _ in self.results)]

    def _load(self, source: Reader, row: Expr | int, d: int) -> Expr:
        """The components from d on of a row."""
        if source.s_k == 1 or self.quad == 1:
            return source.read(row, d, self.quad)
        return pack(*(source.read(row, d + i) for i in range(self.quad)))

    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        head = self.b.let(self.at % self.call.heads, "head") if self.call.flat else None
        self.sources = [self.call.source(i, self.row.slot, head) for i in self.call.passing]
        yield self.row.slot, self.row.low, self.row.high

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        b, (top, total, *o) = self.b, self.span
        with b.loop(stop, start - start % KEYS, KEYS, "k0") as k0:
            keys, *values = (source(k0) for source in self.sources)
            first = b.let(maximum(start - k0, 0), "first")
            count = b.let(minimum(stop - k0, KEYS), "count")
            best = b.var(HIDDEN, "best")
            with b.loop(count, first, name="j") as j:
                s = b.let(self._score(keys, b.let(k0 + j, "key")), "score")
                b.store(self.scores, j, s)
                b.assign(best, maximum(best, s))
            new, fade = follow(b, top, best)
            b.assign(top, new)
            for var in o:
                b.assign(var, var * fade)
            for i in range(STRANDS):
                b.store(self.strands, const(i), const(0.0, F32))
            with b.loop(count, first, name="j") as j:
                p = b.let(math.exp(b, b.let(load(self.scores, j) - new, "gap")), "p")
                at = b.let(j % STRANDS, "strand")
                b.store(self.strands, at, load(self.strands, at) + p)
                key = b.let(k0 + j, "key")
                for d, var in zip(self.results, o):
                    b.assign(var, fma(p, self._load(values[0], key, d), var))
            strands = [b.let(load(self.strands, const(i)), "strand") for i in range(STRANDS)]
            b.assign(total, fma(total, fade, fold_strands(b, [strands])))

    def _score(self, keys: Reader, key: Expr) -> Expr:
        b, params = self.b, self.call.params

        def chain(part: range) -> list[Expr]:
            acc: Expr = const(0.0, F32)
            for d in range(part.start, part.stop, self.quad):
                x, y = self.q[d // self.quad], b.let(self._load(keys, key, d), "k")
                for i in range(self.quad):
                    acc = fma(extract(x, i), extract(y, i), acc)
                acc = b.let(acc, "acc")
            return [acc]

        (dot,) = product(b, self.call.depth, chain)
        return capped(b, dot, params["scale"], params["softcap"])

    def join(self) -> None:
        assert self.all is not None
        join_state(self.b, self.span, self.all)

    def finish(self) -> None:
        b, em, call = self.b, self.em, self.call
        top, total, *o = self.all or self.span
        by = inverse(b, call.whole(self.row.index, top, b.let(total, "total")))
        for d, var in zip(self.results, o):
            y = b.let(var if call.parts else var * by, "y")
            for i in range(self.quad):
                call.write(self.row.index, em.axis(d + i, call.depth), b.let(extract(y, i), "y"))
        if call.parts or call.statistics:
            call.write_state(self.row.index, top, total)


def join_state(b: Builder, span: Sequence[ir.Var], every: Sequence[ir.Var]) -> None:
    """A row's span (its maximum and its sums) joins the total and is as if it had seen nothing."""
    new, fade, by = join(b, every[0], span[0])
    b.assign(every[0], new)
    b.assign(span[0], FLOOR)
    for var, total in zip(span[1:], every[1:]):
        b.assign(total, joined(total, var, fade, by))
        b.assign(var, 0.0)
