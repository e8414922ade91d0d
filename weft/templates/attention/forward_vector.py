"""Attention in a CPU's vectors (see `forward`).

For each block of keys a group packs K transposed ([D][keys], f32) into scratch, then takes its
query rows four at a time. A register tile computes scores; each row has a running maximum and sum;
weights times V are added to the rows' accumulators. See Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018), and Dao et al., "FlashAttention" (2022). The T x T matrix never
exists.

Adjacent rows that read the same slot form a run: they share the packed keys. A cache's rows may
come in any order, and a group takes its runs in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import KEYS, STRANDS
from weft.kernel import ir, math
from weft.kernel.expr import (
    ceil_div,
    const,
    iota,
    load,
    maximum,
    minimum,
    ne,
    select,
    splat,
)
from weft.kernel.ir import I32, Expr
from weft.templates.attention.forward import ForwardKernel, ForwardWorker, Q, V
from weft.templates.attention.softmax import Exp, SoftmaxState, capped
from weft.templates.attention.tile import MR, ScoreRows, add, against
from weft.templates.operand import Reader
from weft.templates.product.pack import Packer


def rows_of(call: ForwardKernel, config: Mapping[str, Any]) -> int:
    """Query rows per group: large blocks share a packed K, small ones fill the cores."""
    if call.few:
        return call.share
    count, planes = call.count, call.heads * (1 if call.cached else call.n)
    rows: int = config.get("rows", 128)
    while rows > 16 and planes * -(-count // rows) < 4 * call.caps.cores:
        rows //= 2
    return min(rows, count)


class VectorForward(ForwardWorker):
    """One thread with vectors; state of `rows` query rows in scratch."""

    threads = (1,)
    tile, step = MR, STRANDS  # query rows taken at once; blocks hold multiples of `step`
    exp: Exp = staticmethod(math.exp)

    def __init__(self, call: ForwardKernel, config: Mapping[str, Any]) -> None:
        super().__init__(call)
        b, caps = self.b, call.caps
        self.rows, self.depth = rows_of(call, config), call.depth
        self.lanes = lanes = min(caps.lanes, STRANDS)
        self.keys = min(KEYS, -(-call.length // self.step) * self.step)
        self.big = caps.registers >= 32
        self.scale, self.softcap = call.params["scale"], call.params["softcap"]
        self.wide = -(-self.depth // lanes) * lanes  # D padded to whole vectors
        self.in_place = [x.strides[-1] == 1 and x.dtype == dt.float32 for x in call.views]
        self.slot, self.low, self.high = (
            b.array(n, dt.int32, self.rows) for n in ("slot", "low", "high")
        )
        padded = -(-self.rows // self.tile) * self.tile
        self._arrays(padded)
        columns = 0 if call.statistics else self.wide
        self.span = self.all = SoftmaxState.of(b, padded, columns, lanes)
        if call.spans:
            self.all = SoftmaxState.of(b, padded, columns, lanes)

    def _arrays(self, rows: int) -> None:
        """Scratch memory for blocks of `rows` query rows."""
        b, keys = self.b, self.keys
        if not self.in_place[Q]:
            self.qs = b.array("q", dt.float32, rows * self.wide)
        self.kt = b.array("kt", dt.float32, self.wide * keys)
        if self.call.scales is not None:
            self.by = b.array("by", dt.float32, keys)
        if not all(self.in_place[V:]):
            self.vs = b.array("v", dt.float32, keys * self.wide)
        s = b.array("s", dt.float32, MR * keys)
        self.scores = ScoreRows(b, s, keys, self.lanes)
        self.tail = None
        if self.depth % self.lanes and all(self.in_place[V:]):
            self.tail = b.let(iota(self.lanes) < self.depth % self.lanes, "tail")

    # -- rows

    def hold(self) -> None:
        b, call = self.b, self.call
        self.present = b.let(minimum(call.limit - call.first, self.rows), "present")
        with b.loop(self.present, name="r") as r, self.em.scope():
            row = call.item(b.let(call.first + r, "at"))
            for array, value in ((self.slot, row.slot), (self.low, row.low), (self.high, row.high)):
                b.store(array, r, value)

    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        b = self.b
        if self.call.one_slot:
            self._take(const(0), self.present)
            yield b.let(load(self.slot, const(0)), "slot"), *self.call.range(self.rows)
            self._write()
            return
        with b.loop(self.present, name="run") as r, b.when(self._begins(r)), self.em.scope():
            slot = b.let(load(self.slot, r), "slot")
            end, start, stop = self._run(r, slot)
            self._take(r, end)
            yield slot, start, stop
            self._write()

    def _begins(self, r: Expr) -> Expr:
        """Returns a condition that is true where a run begins with this row."""
        before = maximum(r - 1, 0)
        return (r < 1) | ne(load(self.slot, r), load(self.slot, before))

    def _run(self, first: Expr, slot: Expr) -> tuple[Expr, Expr, Expr]:
        """Returns the end of the run that begins at row `first`, and the range of keys it sees
        (bound)."""
        b = self.b
        end = b.var(self.present, "end", I32)
        low, high = b.var(self.call.length, "low", I32), b.var(0, "high", I32)
        with b.loop(self.present, first, name="r") as r:
            gone = ne(load(self.slot, r), slot)
            b.assign(end, select(gone, minimum(end, r), end))
            inside = b.let(r < end, "inside")
            b.assign(low, select(inside, minimum(low, load(self.low, r)), low))
            b.assign(high, select(inside, maximum(high, load(self.high, r)), high))
        stop = b.let(high, "stop")
        return b.let(end, "end"), b.let(minimum(low, stop), "start"), stop

    def _take(self, first: Expr, end: Expr) -> None:
        """Takes up rows first .. end of the group; they have seen nothing."""
        b = self.b
        self.first, self.count = first, b.let(end - first, "rows")
        self.last = b.let(self.count - 1, "last_row")
        self.held = b.let(ceil_div(self.count, self.tile) * self.tile, "held")
        self.at = b.let(self.call.first + first, "at")
        self.query = self.call.queries().row(b, self.at)
        self._pack_rows()
        self.span.clear(self.held)
        if self.all is not self.span:
            self.all.clear(self.held)

    def _pack_rows(self) -> None:
        if not self.in_place[Q]:
            self.query = self._packed(self.query, self.qs, self.count, const(self.depth))

    def _packed(self, source: Reader, target: ir.Array, count: Expr, columns: Expr) -> Reader:
        """Packs `count` rows in f32; if components are not contiguous, `columns` of them, the last
        repeated."""
        b, lanes, depth = self.b, self.lanes, self.depth
        packer = Packer(b, source.source, source.base, target, self.wide, lanes, dt.float32)
        if source.s_k == 1:
            packer.rows(source.s_row, count, const(depth), depth % lanes == 0)
        else:
            packer.scalars((source.s_row, source.s_k), count, columns, (None, const(depth - 1)))
        return Reader(target, const(0), self.wide, 1, dt.float32)

    def limits(self, row: Expr) -> tuple[Expr, Expr]:
        """Returns the first key that the group's row `row` sees, and the one after the last
        (bound)."""
        b, at = self.b, self.b.let(self.first + row, "at")
        return b.let(load(self.low, at), "low"), b.let(load(self.high, at), "high")

    def join(self) -> None:
        self.all.join(self.span, self.held, self.exp)

    # -- a block of keys

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        b, keys = self.b, self.keys
        sources = [self.call.source(i, slot) for i in self.call.passing]
        with b.loop(stop, start - start % keys, step=keys, name="k0") as k0:
            seen = b.let(minimum(stop - k0, keys), "seen")
            self.take_keys(seen, *(x(k0).row(b, k0) for x in sources))
            self.sweep(k0, seen)

    def take_keys(self, count: Expr, k: Reader, v: Reader | None = None) -> None:
        """Packs `count` <= `keys` keys (and values, where they cannot be read in place)."""
        b, lanes, depth = self.b, self.lanes, const(self.depth)
        pack = Packer(b, k.source, k.base, self.kt, self.keys, lanes, dt.float32)
        last = b.let(count - 1, "last_key")
        if k.s_k == 1:
            pack.turned(k.s_row, depth, self.keys, last, self.depth % lanes == 0)
        elif k.s_row == 1:
            pack.columns((k.s_k, 1), depth, self.keys, count)
        else:
            pack.scalars((k.s_k, k.s_row), depth, const(self.keys), (None, last))
        self._scale_keys(k, last)
        if v is None:
            return
        self.values = v
        if not self.in_place[V]:
            self.values = self._packed(v, self.vs, count, const(self.wide))
            self._scale_rows(v, count)

    def _scale_keys(self, k: Reader, last: Expr) -> None:
        """Packed codes become keys: each column times its scale."""
        if k.scales is None:
            return
        b, lanes = self.b, self.lanes
        with b.loop(self.keys, name="j") as j:
            b.store(self.by, j, k.scales.read(minimum(j, last), 0))
        with b.loop(self.depth, name="d") as d, b.loop(self.keys, step=lanes, name="c") as c:
            at = b.let(d * self.keys + c, "at")
            b.store(self.kt, at, load(self.kt, at, lanes) * load(self.by, c, lanes))

    def _scale_rows(self, v: Reader, count: Expr) -> None:
        """Packed codes become values: each row times its scale."""
        if v.scales is None:
            return
        b, lanes = self.b, self.lanes
        with b.loop(count, name="j") as j:
            by = b.let(splat(v.scales.read(j, 0), lanes), "by")
            with b.loop(self.wide, step=lanes, name="c") as c:
                at = b.let(j * self.wide + c, "at")
                b.store(self.vs, at, load(self.vs, at, lanes) * by)

    def sweep(self, k0: Expr, count: Expr) -> None:
        """Every row tile meets the keys just taken, k0 .. k0 + count."""
        b = self.b
        with b.loop(self.count, step=MR, name="r") as r:
            rows = [b.let(minimum(r + i, self.last), "row") for i in range(MR)]
            bounds = [self.limits(row) for row in rows]
            low, high = zip(*bounds)
            far = b.let(reduce(maximum, high), "far")
            near = reduce(minimum, low)
            end = b.let(k0 + count, "end")
            with b.when((far > k0) & (near < end)):
                self._products(rows)
                cut = (reduce(minimum, high) < k0 + self.keys) | (reduce(maximum, low) > k0)
                with b.when(cut):
                    self.scores.hide(const(0), self.keys, k0, bounds)
                self._weigh(r, b.let(minimum(far - k0, count), "seen"))

    # -- one tile

    def _products(self, rows: Sequence[Expr]) -> None:
        """s[i][key] = q_i . k_key, scaled."""
        b, lanes = self.b, self.lanes
        vectors = 4 if self.big else 2
        while self.keys % (vectors * lanes):
            vectors //= 2
        starts = [b.let(self.query.at(r, 0), "q") for r in rows]

        def left(d: Expr) -> list[Expr]:
            return [load(self.query.source, start + d) for start in starts]

        def keep(i: int, column: Expr, dot: Expr) -> None:
            value = capped(b, dot, self.scale, self.softcap)
            b.store(self.scores.s, column + i * self.keys, value)

        against(b, MR, self.depth, left, self.kt, 0, self.keys, vectors, lanes, keep)

    def _weigh(self, r: Expr, seen: Expr) -> None:
        """Scores become weights under the rows' new maxima; sums and outputs move on."""
        b, lanes, s = self.b, self.lanes, self.scores
        fade = s.weigh(self.span, r, const(0), MR, self.keys)
        if self.call.statistics:
            return

        def left(j: Expr) -> list[Expr]:
            return [load(s.s, j + i * self.keys) for i in range(MR)]

        def right(j: Expr, columns: range) -> list[Expr]:
            spot = b.let(self.values.at(j, 0), "spot")
            masks = (self.tail if (c + 1) * lanes > self.depth else None for c in columns)
            return [
                load(self.values.source, spot + c * lanes, lanes, m) for c, m in zip(columns, masks)
            ]

        most, fades = 5 if self.big else 2, s.spread(fade, MR, "fade")
        add(b, self.span.o, r, MR, self.wide, lanes, most, seen, left, right, fades)

    # -- results

    def _write(self) -> None:
        b, call, em = self.b, self.call, self.em
        if call.statistics:
            with b.loop(self.count, name="r") as r, em.scope():
                state = (load(x, r) for x in (self.all.top, self.all.total))
                call.write_state(call.index(b.let(self.at + r, "at")), *state)
            return

        def out(r: Expr, column: int, value: Expr, mask: Expr | None) -> None:
            with em.scope():
                index = call.index(b.let(self.at + r, "at"))
                call.write(index, em.lane(self.lanes) + column, value, mask)

        def whole(r: Expr, top: Expr, total: Expr) -> Expr:
            return call.whole(call.index(b.let(self.at + r, "at")), top, total)

        self.all.write(self.count, self.depth, whole, out)

    def finish(self) -> None:
        """Rows are written where their slot ends."""
