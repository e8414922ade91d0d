"""Matrix multiplication on a CPU: packed panels and a register tile of explicit vectors.

One group computes a panel of `width` columns for a block of rows. For each block of K it packs the
right operand's panel into scratch as f32 [k][width] (once). It then sweeps the rows with a tile of
`mr` x `width` accumulators: per k, one broadcast per row and one fused multiply-add per
accumulator. This is the scheme of Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication" (2008), with the panel kept in place of the left operand's block.

A block of K is one or two chunks of core/order. Accumulators start at zero with each chunk and join
running sums in scratch when it ends: a sum has one order, whatever the tile or the rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import CHUNK, SPAN
from weft.kernel import ir
from weft.kernel.expr import const, eq, load, minimum, splat
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.product.bands import PackedBands
from weft.templates.product.blocks import BlockedProduct
from weft.templates.product.cpu_plan import CpuPlan, candidates as candidates, plan_of, whole_rows
from weft.templates.product.operands import Operand
from weft.templates.product.pack import Packer
from weft.templates.product.problem import MatmulProblem
from weft.templates.product.then_norm import NormRows, following
from weft.templates.registers import tail_mask

Held = tuple[ir.Var, Expr, int]  # an accumulator, its row in the block and its vector


def build(em: Emitter, p: MatmulProblem, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a dot group for a CPU."""
    return CpuMatmul(em, p, plan_of(p, em.caps, config)).kernel()


class CpuMatmul(BlockedProduct):
    """The kernel under construction; `_tile` is what a matrix unit does in its own way."""

    def __init__(self, em: Emitter, p: MatmulProblem, plan: CpuPlan) -> None:
        norm = following(em.group)
        self.plan = plan = plan if norm is None else whole_rows(plan, p, em.caps)
        self.then = None if norm is None else NormRows(norm, em.caps, em)
        kept = (em.group.outputs, None) if norm is None else (norm.before, norm.value)
        super().__init__(em, p, *kept)
        self.rows, self.columns = plan.mb, plan.nr * plan.panels
        self.wide = plan.nr * len(p.dots)  # columns of a panel, all dots together
        self.blocks_k = -(-p.k // plan.kc) or 1
        self.spans = -(-p.k // SPAN) if self.acc.is_float else 1
        self.per_span = SPAN // plan.kc  # blocks of K
        self.kb: Expr = const(0)  # the current block of K

    def body(self) -> None:
        b, p, plan = self.b, self.p, self.plan
        self._setup()
        if self.blocks_k == 1:
            self._k_block(const(0), const(p.k))
        else:
            with b.loop(self.blocks_k, name="kb") as kb, self.em.scope():
                k0 = b.let(kb * plan.kc, "k0")
                self.kb = kb
                self._k_block(k0, b.let(minimum(plan.kc, p.k - k0), "klen"))
        if self.then is not None:
            self._normalise(self.then)

    def _setup(self) -> None:
        b, plan = self.b, self.plan
        self.count = self._rows_here()
        self._operands()
        if self.blocks_k > 1 or self.then is not None:
            self.partial = b.array("partial", self.acc, plan.mb * self.wide * plan.panels)
        if plan.kc > CHUNK and plan.mode == "f32":
            self.running = b.array("running", self.acc, plan.mr * self.wide)
        if self.spans > 1:
            self.total = b.array("total", self.acc, plan.mb * self.wide * plan.panels)
        if plan.mode == "mma" or not self.tail.cheap:
            self.staged = b.array("staged", self.acc, plan.mr * self.wide)

    def _rows_here(self) -> Expr:
        """Returns the number of rows of the group."""
        limit = self.b.let(self.rows_wanted(), "limit")
        return self.b.let(minimum(limit - self.m0, self.plan.mb), "rows")

    def _operands(self) -> None:
        """Declares the arrays into which operands are packed."""
        p, plan = self.p, self.plan
        kc = -(-max(min(plan.kc, p.k), 1) // (2 * plan.lanes)) * 2 * plan.lanes
        self.panel = self._array("panel", plan.pair == 2, kc * self.wide)
        self.kc = kc
        if plan.pack_a:
            rows = -(-plan.mb // plan.lanes) * plan.lanes
            self.left = self._array("left", plan.mode == "mma", rows * kc)

    def _array(self, name: str, narrow: bool, size: int) -> ir.Array:
        return self.b.array(name, dt.bfloat16 if narrow else self.acc, size)

    # -- packing

    def _k_block(self, k0: Expr, klen: Expr) -> None:
        b, plan = self.b, self.plan
        self.k0, self.klen = k0, klen
        if plan.pack_a:
            self._pack_a()
        if plan.panels == 1:
            self._panel(self.n0, const(0))
            return
        with b.loop(plan.panels, name="jp") as jp, self.em.scope():
            n = b.let(self.n0 + jp * plan.nr, "n")
            with b.when(n < self.p.n), self.em.scope():
                self._panel(n, jp)

    def _pack_a(self) -> None:
        """left[row][k], contiguous along k."""
        b, p, plan = self.b, self.p, self.plan
        base = b.let(self.x.at(self.m0, self.k0), "a0")
        packer = Packer(b, self.x.source, base, self.left, self.kc, plan.lanes, self.acc)
        packer.left((p.a_m, p.a_k), self.count, self.klen, p.k % plan.lanes == 0)

    def _pack_b(self, i: int, n0: Expr) -> None:
        """panel[k][column], or panel[k / 2][column][2] for pairs."""
        b, p, plan = self.b, self.p, self.plan
        w, kind = self.ws[i], dt.bfloat16 if plan.pair == 2 else self.acc
        if isinstance(w, PackedBands):
            self._unpack(w, i * plan.nr, n0)
            return
        assert isinstance(w, Operand)
        base = b.let(w.at(n0, self.k0), "b0")
        left = b.let(p.n - n0, "left") if p.n % plan.nr else None
        at = i * plan.nr * plan.pair
        packer = Packer(b, w.source, base, self.panel, self.wide, plan.lanes, kind, at)
        if p.bs[i].run > 1:
            packer.columns((w.s_k, 1), self.klen, plan.nr, left, apart=w.s_row)
        else:
            even = plan.pair == 1 or plan.mode == "dot2" or p.k % (2 * plan.lanes) == 0
            whole = p.k % (plan.lanes * plan.pair) == 0
            packer.right((w.s_k, w.s_row), self.klen, plan.nr, left, plan.pair, even, whole)

    def _unpack(self, w: PackedBands, at: int, n0: Expr) -> None:
        """panel[k][column] of a packed operand; columns that do not exist hold others."""
        b, lanes = self.b, self.plan.lanes
        for c in range(0, self.plan.nr, lanes):
            band = w.at(b, self.plan.band(n0 + c, self.p.n))
            with b.loop(self.klen, step=w.step, name="k") as k:
                start = b.let(k * self.wide + (at + c), "spot")
                for u, vector in enumerate(band.vectors(b, b.let(self.k0 + k, "k"))):
                    b.store(self.panel, start + u * self.wide, vector)

    # -- computing

    def _panel(self, n0: Expr, jp: Expr) -> None:
        """All row tiles of the column panel from n0 on, for one block of K."""
        b, plan = self.b, self.plan
        self.jp = jp
        for i in range(len(self.p.dots)):
            self._pack_b(i, n0)
        self.vectors = [b.let(n0 + v * plan.lanes, "n") for v in range(plan.nv)]
        self.masks: list[Expr | None] = [None] * plan.nv
        if self.p.n % plan.nr:
            tails = (tail_mask(n, self.p.n, plan.lanes) for n in self.vectors)
            self.masks = [b.let(tail, "cols") for tail in tails]
        full = b.let(self.count - self.count % plan.mr, "full")
        with b.loop(full, step=plan.mr, name="row") as row, self.em.scope():
            self._tile(row, plan.mr, None)
        self._rest(full)

    def _rest(self, full: Expr) -> None:
        """The rows that no whole tile has, from `full` on."""
        b, plan = self.b, self.plan
        rest = self.p.m % plan.mr if not self.bounded else plan.mr - 1
        if rest:
            with b.when(full < self.count), self.em.scope():
                last = b.let(self.count - 1, "last_row") if self.bounded else None
                self._tile(full, rest, last)

    def _tile(self, row: Expr, mr: int, last: Expr | None) -> None:
        """`mr` rows from `row` (those beyond `last` repeat it and are not stored)."""
        b, plan = self.b, self.plan
        vectors = [(d, v) for d in range(len(self.p.dots)) for v in range(plan.nv)]
        zero = const(0, Type(self.acc, plan.lanes))
        at = [b.let(row + i if last is None else minimum(row + i, last), "r") for i in range(mr)]
        acc = [[b.var(zero, "acc", zero.type) for _ in vectors] for _ in range(mr)]
        self._prefetch(at)
        held = [(var, r, j) for r, line in zip(at, acc) for j, var in enumerate(line)]
        if plan.kc == CHUNK:
            self._accumulate(row, at, acc, last is not None, const(0), self.klen)
            self._begin(held)
        else:
            self._chunks(row, at, acc, last is not None, held)
        if self.blocks_k == 1:
            self._finish(at, acc, last)
            return
        if self.spans > 1:
            with b.when((self.kb >= self.per_span) & self._span_ends()):
                self._join(held, self.total)
        with b.when(self.kb < self.blocks_k - 1):
            self._keep(held)
        with b.otherwise(), self.em.scope():
            self._finish(at, acc, last)

    def _begin(self, held: Sequence[Held]) -> None:
        """Adds the sums of earlier blocks of K to the first chunk of this one."""
        if self.blocks_k == 1:
            return
        with self.b.when(self.kb % self.per_span > 0 if self.spans > 1 else self.kb > 0):
            self._join(held, self.partial)

    def _chunks(
        self, row: Expr, at: list[Expr], acc: list[list[ir.Var]], clamped: bool,
        held: Sequence[Held],
    ) -> None:  # fmt: skip
        """A block of several chunks: a tile's running sum waits in a first cache for the next."""
        b, lanes = self.b, self.plan.lanes
        with b.loop(self.klen, step=CHUNK, name="c") as c:
            for var, _, _ in held:
                b.assign(var, const(0, var.type))
            stop = b.let(minimum(c + CHUNK, self.klen), "stop")
            self._accumulate(row, at, acc, clamped, c, stop)
            with b.when(c > 0):
                for i, (var, _, _) in enumerate(held):
                    b.assign(var, load(self.running, i * lanes, lanes) + var)
            with b.otherwise():
                self._begin(held)
            with b.when(stop < self.klen):
                for i, (var, _, _) in enumerate(held):
                    b.store(self.running, const(i * lanes), var)

    def _span_ends(self) -> Expr:
        """True if this block of K is the last of a span, or of all."""
        inside = eq(self.kb % self.per_span, self.per_span - 1)
        return inside | (self.kb >= self.blocks_k - 1)

    def _join(self, held: Sequence[Held], sums: ir.Array) -> None:
        """Running sums, and to them those of the chunk or span that ends."""
        for var, row, j in held:
            self.b.assign(var, load(sums, self._partial_at(row, j), self.plan.lanes) + var)

    def _keep(self, held: Sequence[Held]) -> None:
        """Stores the span's running sum, or the product's where a span ends."""
        if self.spans == 1:
            self._put(held, self.partial)
            return
        with self.b.when(self._span_ends()):
            self._put(held, self.total)
        with self.b.otherwise():
            self._put(held, self.partial)

    def _put(self, held: Sequence[Held], sums: ir.Array) -> None:
        for var, row, j in held:
            self.b.store(sums, self._partial_at(row, j), var)

    def _prefetch(self, at: list[Expr]) -> None:
        """Prefetches the epilogue's other operands before the last block of K."""
        b = self.b
        if not self.tail.others:
            return
        final = b.when(self.kb >= self.blocks_k - 1) if self.blocks_k > 1 else None
        with final or contextlib.nullcontext(), self.em.scope():
            for r in at:
                self.tail.prefetch(self.lead(self.m0 + r), self.vectors, self.plan.lanes)

    def _partial_at(self, row: Expr, j: int) -> Expr:
        return (self.jp * self.plan.mb + row) * self.wide + j * self.plan.lanes

    def _accumulate(
        self, row: Expr, at: list[Expr], acc: list[list[ir.Var]], clamped: bool, k0: Expr,
        k1: Expr,
    ) -> None:  # fmt: skip
        """Adds what k from k0 to k1 of the block give."""
        b, plan = self.b, self.plan
        if plan.pack_a:
            source: ir.Buffer | ir.Array = self.left
            start: Expr = const(0)
            sm, sk = self.kc, 1
        else:
            source, sm, sk = self.x.source, self.x.s_row, self.x.s_k
            start = b.let(self.x.at(self.m0, self.k0), "a0")
        if clamped:
            rows = [(b.let(start + r * sm, "arow"), 0) for r in at]
        else:
            first = b.let(start + row * sm, "arow")
            rows = [(first, i * sm) for i in range(len(at))]
        with b.loop(k1, k0, step=self.pair, name="k") as k:
            spot, width = b.let(k * self.wide, "spot"), plan.lanes * self.pair
            right = [
                b.let(load(self.panel, spot + j * width, width), "bv") for j in range(len(acc[0]))
            ]
            for (base, offset), line in zip(rows, acc):
                x = self.spread(source, base + k * sk + offset, plan.lanes)
                for var, y in zip(line, right):
                    self.add(var, x, y)

    # -- results

    def _finish(self, at: list[Expr], acc: list[list[ir.Var]], last: Expr | None) -> None:
        """The epilogue: straight from the registers when short, else through a small loop."""
        b, plan = self.b, self.plan
        if self.tail.cheap:
            for i, r in enumerate(at):
                valid = None if last is None else b.when(at[0] + i <= last)
                with valid or contextlib.nullcontext(), self.em.scope():
                    self._row(r, lambda d, v, line=acc[i]: line[d * plan.nv + v])  # type: ignore[misc]
            return
        for i in range(len(at)):
            for j, var in enumerate(acc[i]):
                b.store(self.staged, i * self.wide + j * plan.lanes, var)
        count = const(len(at)) if last is None else b.let(last + 1 - at[0], "count")
        self._from_staged(at[0], count)

    def _from_staged(self, first: Expr, count: Expr) -> None:
        """Writes the epilogue of `count` rows from `first`, whose sums are in `staged`."""
        b, plan = self.b, self.plan
        with b.loop(count, name="i") as ti, self.em.scope():
            self._row(
                b.let(first + ti, "r"),
                lambda d, v: b.let(
                    load(self.staged, ti * self.wide + (d * plan.nv + v) * plan.lanes, plan.lanes),
                    "acc",
                ),
            )

    def _row(self, row: Expr, value: Callable[[int, int], Expr]) -> None:
        b, p, plan = self.b, self.p, self.plan
        m = b.let(self.m0 + row, "m")
        for v in range(plan.nv):
            accs = [value(d, v) for d in range(len(p.dots))]
            kept = self.write(m, self.vectors[v], plan.lanes, accs, self.masks[v])
            if kept is not None:
                b.store(self.partial, self._partial_at(row, v), splat(kept, plan.lanes))

    def _normalise(self, norm: NormRows) -> None:
        """The rows of this group, which are finished."""
        b, p, em = self.b, self.p, self.em
        with b.loop(self.count, name="r") as r, em.scope():
            row = em.axis(r, self.plan.mb)

            def kept(j: Affine) -> Expr:
                panel, column = affine.divide(j, self.wide)
                at = (panel * self.plan.mb + row) * self.wide + column
                return load(self.partial, em.address(at), j.lanes)

            index = (*self.batch, em.axis(self.m0 + r, p.m))
            norm.normalise(affine.flatten(index, affine.contiguous((*p.batch, p.m))), kept)
