"""Attention in a CPU's vectors (see `forward`).

For each block of keys a group packs K transposed ([D][keys], f32) into scratch, then takes its
query rows four at a time: scores by a register tile, running maximum and sum per row, weights, and
weights times V added to the rows' accumulators (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The T x T matrix never exists.

Rows that stand side by side and ask the same slot form a run: they share the packed keys. Of a
cache rows need not be in order, and a group takes its runs in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from weft.core import dtypes as dt
from weft.core.order import KEYS, STRANDS
from weft.kernel import ir, math
from weft.kernel.expr import (
    ceil_div,
    const,
    extract,
    fma,
    iota,
    load,
    maximum,
    minimum,
    ne,
    select,
    splat,
)
from weft.kernel.ir import I32, Expr, Type
from weft.templates.attention.forward import Call, K, Q, Team, V
from weft.templates.attention.softmax import (
    HIDDEN,
    Exp,
    State,
    capped,
    fold_strands,
    follow,
    product,
)
from weft.templates.operand import Reader
from weft.templates.product.pack import Packer
from weft.templates.registers import fold_lanes

MR = 4  # query rows per register tile


def rows_of(call: Call, config: Mapping[str, Any]) -> int:
    """Query rows per group: large blocks share a packed K, small ones fill the cores."""
    if call.few:
        return call.share
    count, planes = call.count, call.heads * (1 if call.cached else call.n)
    rows: int = config.get("rows", 128)
    while rows > 16 and planes * -(-count // rows) < 4 * call.caps.cores:
        rows //= 2
    return min(rows, count)


class Vector(Team):
    """One thread with vectors; state of `rows` query rows in scratch."""

    threads = (1,)
    tile, step = MR, STRANDS  # query rows that are taken at once; blocks hold multiples of `step`
    exp: Exp = staticmethod(math.exp)

    def __init__(self, call: Call, config: Mapping[str, Any]) -> None:
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
        self.span = self.all = State.of(b, padded, self.wide, lanes)
        if call.spans:
            self.all = State.of(b, padded, self.wide, lanes)

    def _arrays(self, rows: int) -> None:
        """Scratch memory for blocks of `rows` query rows."""
        b, keys = self.b, self.keys
        if not self.in_place[Q]:
            self.qs = b.array("q", dt.float32, rows * self.wide)
        self.kt = b.array("kt", dt.float32, self.wide * keys)
        if not self.in_place[V]:
            self.vs = b.array("v", dt.float32, keys * self.wide)
        self.s = b.array("s", dt.float32, MR * keys)

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
        """Whether a run begins with this row."""
        before = maximum(r - 1, 0)
        return (r < 1) | ne(load(self.slot, r), load(self.slot, before))

    def _run(self, first: Expr, slot: Expr) -> tuple[Expr, Expr, Expr]:
        """Where the run that begins at row `first` ends, and the keys that it sees (bound)."""
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
        """`count` rows in f32; where components lie apart `columns` of them, the last repeated."""
        b, lanes, depth = self.b, self.lanes, self.depth
        packer = Packer(b, source.source, source.base, target, self.wide, lanes, dt.float32)
        if source.s_k == 1:
            packer.rows(source.s_row, count, const(depth), depth % lanes == 0)
        else:
            packer.scalars((source.s_row, source.s_k), count, columns, const(depth - 1))
        return Reader(target, const(0), self.wide, 1, dt.float32)

    def limits(self, row: Expr) -> tuple[Expr, Expr]:
        """The first key that a row of those taken sees, and the one after the last (bound)."""
        b, at = self.b, self.b.let(self.first + row, "at")
        return b.let(load(self.low, at), "low"), b.let(load(self.high, at), "high")

    def join(self) -> None:
        self.all.join(self.span, self.held, self.exp)

    # -- a block of keys

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        b, keys = self.b, self.keys
        keys_of, values_of = (self.call.source(i, slot) for i in (K, V))
        with b.loop(stop, start - start % keys, step=keys, name="k0") as k0:
            seen = b.let(minimum(stop - k0, keys), "seen")
            self.take_keys(keys_of.row(b, k0), values_of.row(b, k0), seen)
            self.sweep(k0, seen)

    def take_keys(self, k: Reader, v: Reader, count: Expr) -> None:
        """Packs `count` <= `keys` keys (and values, where they cannot be read in place)."""
        b, lanes, depth = self.b, self.lanes, const(self.depth)
        pack = Packer(b, k.source, k.base, self.kt, self.keys, lanes, dt.float32)
        last = b.let(count - 1, "last_key")
        if k.s_k == 1:
            pack.turned(k.s_row, depth, self.keys, last, self.depth % lanes == 0)
        elif k.s_row == 1:
            pack.columns(k.s_k, depth, self.keys, count)
        else:
            pack.scalars((k.s_k, k.s_row), depth, const(self.keys), last)
        self.values = v
        if not self.in_place[V]:
            self.values = self._packed(v, self.vs, count, const(self.wide))

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
                self._scores(rows)
                cut = (reduce(minimum, high) < k0 + self.keys) | (reduce(maximum, low) > k0)
                with b.when(cut):
                    self._hide(k0, const(0), bounds)
                self._weigh(r, b.let(minimum(far - k0, count), "seen"))

    # -- one tile

    def _scores(self, rows: Sequence[Expr]) -> None:
        """s[i][key] = q_i . k_key, scaled."""
        b, lanes = self.b, self.lanes
        vectors = 4 if self.big else 2
        while self.keys % (vectors * lanes):
            vectors //= 2
        starts = [b.let(self.query.at(r, 0), "q") for r in rows]
        zero = const(0.0, Type(dt.float32, lanes))
        with b.loop(self.keys, step=vectors * lanes, name="c") as c:

            def chain(part: range) -> list[ir.Var]:
                acc = [[b.var(zero, "s", zero.type) for _ in range(vectors)] for _ in starts]
                with b.loop(part.stop, part.start, name="d") as d:
                    spot = b.let(d * self.keys + c, "spot")
                    ks = [b.let(load(self.kt, spot + v * lanes, lanes)) for v in range(vectors)]
                    for start, line in zip(starts, acc):
                        x = b.let(splat(load(self.query.source, start + d), lanes), "x")
                        for var, k in zip(line, ks):
                            b.assign(var, fma(x, k, var))
                return [var for line in acc for var in line]

            for i, sum_ in enumerate(product(b, self.depth, chain)):
                at = c + (i // vectors * self.keys + i % vectors * lanes)
                b.store(self.s, at, capped(b, sum_, self.scale, self.softcap))

    def _hide(
        self, k0: Expr, base: Expr, bounds: Sequence[tuple[Expr, Expr]], value: float = HIDDEN,
        change: Callable[[Expr], Expr] | None = None,
    ) -> None:  # fmt: skip
        """Scores from `base` on of keys that a row does not see become `value`, others change."""
        b, lanes = self.b, self.lanes
        with b.loop(self.keys, step=lanes, name="c") as c:
            key = b.let(splat(k0 + c, lanes) + iota(lanes), "key")
            for i, (low, high) in enumerate(bounds):
                seen = (key >= splat(low, lanes)) & (key < splat(high, lanes))
                at = b.let(base + c + i * self.keys, "at")
                s = load(self.s, at, lanes)
                s = s if change is None else change(b.let(s, "s"))
                b.store(self.s, at, select(seen, s, value))

    def _best(self, base: Expr) -> Expr:
        """The largest score of each of MR rows, whose scores begin at `base`."""
        b, lanes = self.b, self.lanes
        floor = const(HIDDEN, Type(dt.float32, lanes))
        tops = [b.var(floor, "top") for _ in range(MR)]
        with b.loop(self.keys, step=lanes, name="c") as c:
            for i, var in enumerate(tops):
                b.assign(var, maximum(var, load(self.s, base + c + i * self.keys, lanes)))
        return fold_lanes(b, tops, "max")

    def _weigh(self, r: Expr, seen: Expr) -> None:
        """Scores become weights under the rows' new maxima; sums and outputs move on."""
        b, lanes, span = self.b, self.lanes, self.span
        zero = const(0.0, Type(dt.float32, lanes))
        new, shrink = follow(b, b.let(load(span.top, r, MR), "old"), self._best(const(0)))
        b.store(span.top, r, new)
        tops = [b.let(splat(extract(new, i), lanes), "top") for i in range(MR)]
        fade = [b.let(splat(extract(shrink, i), lanes), "fade") for i in range(MR)]
        strands = [[b.var(zero, "strand") for _ in range(0, STRANDS, lanes)] for _ in range(MR)]
        with b.loop(self.keys, step=STRANDS, name="c") as c:
            for i, line in enumerate(strands):
                for v, strand in enumerate(line):
                    at = b.let(c + (i * self.keys + v * lanes), "at")
                    gap = b.let(load(self.s, at, lanes) - tops[i], "gap")
                    p = b.let(math.exp(b, gap), "p")
                    b.store(self.s, at, p)
                    b.assign(strand, strand + p)
        old = load(span.total, r, MR)
        b.store(span.total, r, fma(old, shrink, fold_strands(b, strands)))
        chunk = -(-self.wide // lanes)
        parts = -(-chunk // (5 if self.big else 2))
        start = 0
        for part in range(parts):
            stop = chunk * (part + 1) // parts
            self._values(r, range(start, stop), fade, seen)
            start = stop

    def _values(self, r: Expr, columns: range, fade: Sequence[Expr], seen: Expr) -> None:
        """o[i] = o[i] * fade[i] + sum over keys of p[i][key] * v[key], for some columns."""
        b, lanes, o = self.b, self.lanes, self.span.o
        first = b.let(r * self.wide, "o")
        acc = []
        for i in range(MR):
            line = []
            for c in columns:
                old = load(o, first + (i * self.wide + c * lanes), lanes)
                line.append(b.var(old * fade[i], "acc"))
            acc.append(line)
        tail = None
        if self.in_place[V] and columns.stop * lanes > self.depth:
            tail = b.let(iota(lanes) < self.depth % lanes, "tail")
        with b.loop(seen, name="j") as j:
            spot = b.let(self.values.at(j, 0), "spot")
            vs = []
            for c in columns:
                mask = tail if (c + 1) * lanes > self.depth else None
                value = load(self.values.source, spot + c * lanes, lanes, mask)
                vs.append(b.let(value, "v"))
            for i, line in enumerate(acc):
                p = b.let(splat(load(self.s, j + i * self.keys), lanes), "p")
                for var, v in zip(line, vs):
                    b.assign(var, fma(p, v, var))
        for i, line in enumerate(acc):
            for c, var in zip(columns, line):
                b.store(o, first + (i * self.wide + c * lanes), var)

    # -- results

    def _write(self) -> None:
        call, em = self.call, self.em

        def out(r: Expr, column: int, value: Expr, mask: Expr | None) -> None:
            with em.scope():
                index = call.index(self.b.let(self.at + r, "at"))
                call.write(index, em.lane(self.lanes) + column, value, mask)

        self.all.write(self.count, self.depth, out)

    def finish(self) -> None:
        """Rows are written where their slot ends."""
