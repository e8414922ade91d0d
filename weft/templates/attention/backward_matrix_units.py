"""The derivative of attention in the matrix units of GPUs.

A block of what stays is in shared memory while blocks of what passes come by. Both products of a
pair of blocks leave the units, threads make weights of them, and those return as f16 or bf16 to be
multiplied by what passes. A sum is one chain of unit steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core import dtypes as dt
from weft.kernel import math
from weft.kernel.expr import as_expr, cast, const, fma, iota, load, maximum, minimum, select, splat
from weft.kernel.ir import Expr
from weft.templates.attention.backward import BackwardKernel, BackwardWorker
from weft.templates.attention.matrix_units import (
    SIDE,
    WORD,
    MatrixUnitKernel,
    MatrixUnitPlan,
)
from weft.templates.attention.softmax import LOG2E, base_two
from weft.templates.operand import Reader


class MatrixUnitBackward(BackwardWorker):
    """Subgroups with matrix units; `plan` says how large blocks are."""

    cut = 0

    def __init__(self, call: BackwardKernel, plan: MatrixUnitPlan) -> None:
        super().__init__(call)
        self.rows, self.threads, self.plan = plan.rows, (plan.threads,), plan
        self.dtype = call.node.inputs[0].dtype
        self.factor = base_two(call.params["scale"], call.params["softcap"])
        self.blocks = MatrixUnitKernel(self.b, call.caps, plan, self.dtype, call.depth)
        self._arrays()

    def _arrays(self) -> None:
        b, blocks, plan, dtype = self.b, self.blocks, self.plan, self.dtype
        self.held = [blocks.staged("held", plan.rows) for _ in range(2)]
        self.passing = [blocks.staged("passing", plan.keys) for _ in range(2)]
        self.fetched = [blocks.travelling("fetched") for _ in range(2)]
        size = plan.rows * blocks.s_ld
        self.products = [b.array("product", dt.float32, size, "shared") for _ in range(2)]
        size = plan.rows * blocks.p_ld
        self.weights = [b.array("weight", dtype, size, "shared") for _ in self.call.results]
        self.lefts = [b.tile("left", dtype, SIDE, SIDE) for _ in range(plan.per_wave // SIDE)]
        self.by, self.turned = b.tile("by", dtype, SIDE, SIDE), b.tile("turned", dtype, SIDE, SIDE)
        self.pairs = [blocks.tiles("pair", plan.keys) for _ in range(2)]
        if not self.call.rows_stay:
            self.noted = [b.array("noted", dt.float32, plan.keys, "shared") for _ in range(2)]

    def hold(self, sources: Sequence[Reader]) -> None:
        b, call, last = self.b, self.call, const(self.call.items - 1)
        item = b.let(call.first + self.blocks.row, "item")
        self.sees = call.sees(item)
        if call.rows_stay:
            lse, delta = call.note(b.let(minimum(item, call.t - 1), "near"))
            self.own = [b.let(splat(x, WORD), "own") for x in (b.let(lse * LOG2E), delta)]
        for source, target in zip(sources, self.held):
            self.blocks.take(source, call.first, last, target)

    def clear(self, totals: bool) -> None:
        self.sums = [self.blocks.tiles("sum", self.plan.wide) for _ in self.call.results]
        for x in self.sums:
            self.blocks.clear(x)

    def meet(self, sources: Sequence[Reader], start: Expr, stop: Expr) -> None:
        b, blocks, keys = self.b, self.blocks, self.plan.keys
        begin = b.let(start - start % keys, "begin")
        last = b.let(maximum(stop - 1, 0), "last")
        for source, target in zip(sources, self.fetched):
            blocks.fetch(source, begin, last, target)
        with b.loop(stop, begin, step=keys, name="at") as at, self.em.scope():
            b.barrier()
            for fetched, target in zip(self.fetched, self.passing):
                blocks.keep(fetched, target)
            if not self.call.rows_stay:
                self._note(at)
            b.barrier()
            for pair, held, passing, target in zip(
                self.pairs, self.held, self.passing, self.products
            ):
                blocks.against(pair, held, passing, self.lefts, self.by, target)
            b.barrier()
            for source, target in zip(sources, self.fetched):
                blocks.fetch(source, at + keys, last, target)
            self._weigh(at)
            b.barrier()
            for sums, weights, passing in zip(self.sums, self.weights, self.passing):
                blocks.add(sums, weights, passing, self.lefts, self.turned)

    def join(self) -> None:
        raise NotImplementedError("a matrix unit's sum is one chain")

    def _note(self, at: Expr) -> None:
        """lse (in base 2) and delta of the rows that pass, to shared memory."""
        b, t = self.b, self.blocks.t
        with b.when(t < self.plan.keys), self.em.scope():
            lse, delta = self.call.note(b.let(minimum(at + t, self.call.t - 1), "row"))
            for value, target in zip((lse * LOG2E, delta), self.noted):
                b.store(target, t, value)

    def _weigh(self, at: Expr) -> None:
        """The weights of every pair, eight at a time."""
        b, blocks = self.b, self.blocks
        count = self.plan.keys // self.plan.parts
        offset = b.let(blocks.part * count, "offset")
        low, high = (b.let(splat(b.let(x - at, "bound"), WORD), "bound") for x in self.sees)
        with b.loop(count, step=WORD, name="j") as step:
            j = b.let(offset + step, "j")
            item = b.let(splat(j, WORD) + iota(WORD), "item")
            seen = b.let((item >= low) & (item < high), "seen")
            spot = b.let(blocks.row * blocks.s_ld + j, "spot")
            if self.call.rows_stay:
                lse, delta = self.own
            else:
                lse, delta = (b.let(load(x, j, WORD), "noted") for x in self.noted)
            product = b.let(load(self.products[0], spot, WORD), "product")
            change = load(self.products[1], spot, WORD) - delta
            target = b.let(blocks.row * blocks.p_ld + j, "target")
            for weights, value in zip(self.weights, self._pair(product, lse, change, seen)):
                b.store(weights, target, cast(value, self.dtype))

    def _pair(self, product: Expr, lse: Expr, change: Expr, seen: Expr) -> tuple[Expr, Expr]:
        """ds without the scale, and p (both bound), zeros where a pair is not seen."""
        b, slope = self.b, None
        if self.factor:
            gap = fma(product, self.factor, -lse)
        else:
            score, slope = self.call.score(product)
            gap = score * LOG2E - lse
        gap = b.let(gap, "gap")
        p = b.let(fma(gap, 0.0, math.exp2_below(b, gap)), "p")  # NaN stays NaN
        ds = p * change
        ds = b.let(ds if slope is None else ds * slope, "ds")
        return b.let(select(seen, ds, 0.0), "ds"), b.let(select(seen, p, 0.0), "p")

    def finish(self) -> None:
        b, em, call = self.b, self.em, self.call
        for result, sums in zip(call.results, self.sums):

            def write(row: Expr, column: Expr, value: Expr, result: str = result) -> None:
                at = b.let(call.first + row, "at")
                with b.when((at < call.items) & (column < as_expr(call.depth))), em.scope():
                    c = em.axis(column, call.depth - WORD + 1, WORD) + em.lane(WORD)
                    item = em.axis(at, call.items)
                    call.write(result, item, c, b.let(value * call.factor(result), "y"))

            self.blocks.leave(sums, self.products[0], write)
