"""Blocked attention with an online softmax, for a CPU: what both attention templates share.

A group owns a block of query rows of one head. For each block of keys it packs K transposed
([D][keys], f32) into scratch, then takes the query rows four at a time: scores by a register tile,
running maximum and sum per row, weights, and weights times V added to the rows' accumulators
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", 2022). The T x T matrix never exists.

Blocks and spans of keys stand at fixed places and a block in which a row sees nothing leaves it
unchanged, so a row's result does not depend on the rows around it (weft/core/order.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.order import KEY_SPAN, KEYS, STRANDS
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
    const,
    extract,
    fma,
    iota,
    load,
    maximum,
    minimum,
    select,
    splat,
)
from weft.kernel.ir import Type
from weft.templates.attention.softmax import (
    FLOOR,
    HIDDEN,
    Exp,
    capped,
    fold_strands,
    follow,
    inverse,
    join,
    joined,
    product,
)
from weft.templates.product.pack import Packer, fold_lanes

Limits = Callable[[Expr], tuple[Expr, Expr]]

MR = 4  # query rows per register tile


@dataclass(frozen=True)
class Operand:
    """A head of q, k or v in memory: rows `row` elements apart, components `step` apart."""

    buffer: ir.Buffer
    row: int
    step: int

    @property
    def plain(self) -> bool:
        """Whether rows can be read as f32 vectors in place."""
        return self.step == 1 and self.buffer.dtype == dt.float32


class Flash:
    """Emits the parts of a blocked attention kernel over at most `length` keys: `rows` is the most
    query rows of a group."""

    def __init__(
        self,
        b: Builder,
        caps: Caps,
        operands: tuple[Operand, Operand, Operand],
        depth: int,
        rows: int,
        length: int,
        scale: float,
        softcap: float,
    ) -> None:
        self.b, self.depth = b, depth
        self.lanes = lanes = min(caps.lanes, STRANDS)
        self.keys = min(KEYS, -(-length // self.step) * self.step)
        self.big = caps.registers >= 32
        self.q, self.k, self.v = operands
        self.scale, self.softcap = scale, softcap
        self.wide = -(-depth // lanes) * lanes  # D padded to whole vectors
        padded = -(-rows // self.tile) * self.tile
        self._arrays(padded)
        self.o, self.top, self.total = self._sums(padded)
        self.spans = length > KEY_SPAN
        if self.spans:
            self.all_o, self.all_top, self.all_total = self._sums(padded)

    tile, step = MR, STRANDS  # query rows that are taken at once; blocks hold multiples of `step`
    exp: Exp = staticmethod(math.exp)

    def _arrays(self, rows: int) -> None:
        """Scratch memory for blocks of `rows` query rows."""
        b, keys = self.b, self.keys
        if not self.q.plain:
            self.qs = b.array("q", dt.float32, rows * self.wide)
        self.kt = b.array("kt", dt.float32, self.wide * keys)
        if not self.v.plain:
            self.vs = b.array("v", dt.float32, keys * self.wide)
        self.s = b.array("s", dt.float32, MR * keys)

    def _sums(self, rows: int) -> tuple[ir.Array, ir.Array, ir.Array]:
        """Weighted values, maxima and sums of weights of `rows` query rows."""
        sizes = {"o": rows * self.wide, "top": rows, "total": rows}
        o, top, total = (self.b.array(n, dt.float32, size) for n, size in sizes.items())
        return o, top, total

    # -- a block of query rows

    def start(self, base: Expr, count: Expr) -> None:
        """Takes up `count` query rows, the first at element `base` of q (bound)."""
        b, lanes = self.b, self.lanes
        self.q_base, self.count, self.held = base, count, count
        self.last = b.let(count - 1, "last_row")
        if not self.q.plain:
            packer = Packer(b, self.q.buffer, base, self.qs, self.wide, lanes, dt.float32)
            if self.q.step == 1:
                packer.rows(self.q.row, count, const(self.depth), self.depth % lanes == 0)
            else:
                packer.scalars((self.q.row, self.q.step), count, const(self.depth), None)

    def walk(self, bases: Sequence[Expr], start: Expr, stop: Expr, limits: Limits) -> None:
        """The rows of `start` meet keys start .. stop (bound), block by block and span by span.
        Key 0 and its value are at `bases` (bound); `limits(row)` gives the first key that a row
        sees and the one after its last (row: 0 .. count of `start`)."""
        b, keys = self.b, self.keys
        first = b.let(start - start % keys, "first")

        def blocks(begin: Expr, end: Expr) -> None:
            self._nothing_seen(self.o, self.top, self.total)
            with b.loop(end, begin, step=keys, name="k0") as k0:
                seen = b.let(minimum(end - k0, keys), "seen")
                k_base = b.let(bases[0] + k0 * self.k.row, "k")
                v_base = b.let(bases[1] + k0 * self.v.row, "v")
                self.take_keys(k_base, v_base, seen)
                self.sweep(k0, seen, limits)

        if not self.spans:
            blocks(first, stop)
            return
        self._nothing_seen(self.all_o, self.all_top, self.all_total)
        with b.loop(stop, start - start % KEY_SPAN, step=KEY_SPAN, name="span") as span:
            blocks(maximum(span, first), b.let(minimum(span + KEY_SPAN, stop), "end"))
            self._join()

    def _nothing_seen(self, o: ir.Array, top: ir.Array, total: ir.Array) -> None:
        b, lanes = self.b, self.lanes
        zero = const(0.0, Type(dt.float32, lanes))
        with b.loop(self.held, step=MR, name="r") as r:
            b.store(top, r, const(FLOOR, Type(dt.float32, MR)))
            b.store(total, r, const(0.0, Type(dt.float32, MR)))
            with b.loop(MR * self.wide, step=lanes, name="c") as c:
                b.store(o, r * self.wide + c, zero)

    def _join(self) -> None:
        """The span just walked joins the rows' totals."""
        b, lanes = self.b, self.lanes
        with b.loop(self.held, step=MR, name="r") as r:
            new, fade, by = join(b, load(self.all_top, r, MR), load(self.top, r, MR), self.exp)
            b.store(self.all_top, r, new)
            old = load(self.all_total, r, MR)
            b.store(self.all_total, r, joined(old, load(self.total, r, MR), fade, by))
            for i in range(MR):
                fades, bys = (b.let(splat(extract(x, i), lanes), "by") for x in (fade, by))
                start = b.let((r + i) * self.wide, "o")
                with b.loop(self.wide, step=lanes, name="c") as c:
                    at = b.let(start + c, "at")
                    old = load(self.all_o, at, lanes)
                    b.store(self.all_o, at, joined(old, load(self.o, at, lanes), fades, bys))

    def take_keys(self, k_base: Expr, v_base: Expr, count: Expr) -> None:
        """Packs `count` <= `keys` keys (and values, when not plain); bases are bound."""
        b, lanes = self.b, self.lanes
        self.v_base = v_base
        pack = Packer(b, self.k.buffer, k_base, self.kt, self.keys, lanes, dt.float32)
        last = b.let(count - 1, "last_key")
        if self.k.step == 1:
            pack.turned(self.k.row, const(self.depth), self.keys, last, self.depth % lanes == 0)
        elif self.k.row == 1:
            pack.columns(self.k.step, const(self.depth), self.keys, count)
        else:
            pack.scalars((self.k.step, self.k.row), const(self.depth), const(self.keys), last)
        if self.v.plain:
            return
        pack = Packer(b, self.v.buffer, v_base, self.vs, self.wide, lanes, dt.float32)
        if self.v.step == 1:
            pack.rows(self.v.row, count, const(self.depth), self.depth % lanes == 0)
        else:
            pack.scalars((self.v.row, self.v.step), count, const(self.wide), const(self.depth - 1))

    def sweep(self, k0: Expr, count: Expr, limits: Limits) -> None:
        """Every row tile meets the keys just taken, k0 .. k0 + count."""
        b = self.b
        with b.loop(self.count, step=MR, name="r") as r:
            rows = [b.let(minimum(r + i, self.last), "row") for i in range(MR)]
            pairs = [limits(row) for row in rows]
            low = [b.let(p[0], "low") for p in pairs]
            high = [b.let(p[1], "high") for p in pairs]
            far = b.let(_fold(maximum, high), "far")
            near = _fold(minimum, low)
            end = b.let(k0 + count, "end")
            with b.when((far > k0) & (near < end)):
                self._scores(rows)
                cut = (_fold(minimum, high) < k0 + self.keys) | (_fold(maximum, low) > k0)
                with b.when(cut):
                    self._hide(k0, low, high)
                self._weigh(r, b.let(minimum(far - k0, count), "seen"))

    # -- one tile

    def _scores(self, rows: Sequence[Expr]) -> None:
        """s[i][key] = q_i . k_key, scaled."""
        b, lanes = self.b, self.lanes
        vectors = 4 if self.big else 2
        while self.keys % (vectors * lanes):
            vectors //= 2
        source, base, row = (
            (self.q.buffer, self.q_base, self.q.row)
            if self.q.plain
            else (self.qs, const(0), self.wide)
        )
        starts = [b.let(base + r * row, "q") for r in rows]
        zero = const(0.0, Type(dt.float32, lanes))
        with b.loop(self.keys, step=vectors * lanes, name="c") as c:

            def chain(part: range) -> list[ir.Var]:
                acc = [[b.var(zero, "s", zero.type) for _ in range(vectors)] for _ in starts]
                with b.loop(part.stop, part.start, name="d") as d:
                    spot = b.let(d * self.keys + c, "spot")
                    ks = [b.let(load(self.kt, spot + v * lanes, lanes)) for v in range(vectors)]
                    for start, line in zip(starts, acc):
                        x = b.let(splat(load(source, start + d), lanes), "x")
                        for var, k in zip(line, ks):
                            b.assign(var, fma(x, k, var))
                return [var for line in acc for var in line]

            for i, sum_ in enumerate(product(b, self.depth, chain)):
                at = c + (i // vectors * self.keys + i % vectors * lanes)
                b.store(self.s, at, capped(b, sum_, self.scale, self.softcap))

    def _hide(self, k0: Expr, low: Sequence[Expr], high: Sequence[Expr]) -> None:
        b, lanes = self.b, self.lanes
        with b.loop(self.keys, step=lanes, name="c") as c:
            key = b.let(splat(k0 + c, lanes) + iota(lanes), "key")
            for i, (first, stop) in enumerate(zip(low, high)):
                seen = (key >= splat(first, lanes)) & (key < splat(stop, lanes))
                at = b.let(c + i * self.keys, "at")
                b.store(self.s, at, select(seen, load(self.s, at, lanes), HIDDEN))

    def _weigh(self, r: Expr, seen: Expr) -> None:
        """Scores become weights under the rows' new maxima; sums and outputs move on."""
        b, lanes = self.b, self.lanes
        floor, zero = (const(x, Type(dt.float32, lanes)) for x in (HIDDEN, 0.0))
        tops = [b.var(floor, "top", floor.type) for _ in range(MR)]
        with b.loop(self.keys, step=lanes, name="c") as c:
            for i, var in enumerate(tops):
                b.assign(var, maximum(var, load(self.s, c + i * self.keys, lanes)))
        new, shrink = follow(b, b.let(load(self.top, r, MR), "old"), fold_lanes(b, tops, "max"))
        b.store(self.top, r, new)
        tops = [b.let(splat(extract(new, i), lanes), "top") for i in range(MR)]  # type: ignore[misc]
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
        old = load(self.total, r, MR)
        b.store(self.total, r, fma(old, shrink, fold_strands(b, strands)))
        chunk = -(-self.wide // lanes)
        parts = -(-chunk // (5 if self.big else 2))
        start = 0
        for part in range(parts):
            stop = chunk * (part + 1) // parts
            self._values(r, range(start, stop), fade, seen)
            start = stop

    def _values(self, r: Expr, columns: range, fade: Sequence[Expr], seen: Expr) -> None:
        """o[i] = o[i] * fade[i] + sum over keys of p[i][key] * v[key], for some columns."""
        b, lanes = self.b, self.lanes
        source, base, row = (
            (self.v.buffer, self.v_base, self.v.row)
            if self.v.plain
            else (self.vs, const(0), self.wide)
        )
        first = b.let(r * self.wide, "o")
        acc = []
        for i in range(MR):
            line = []
            for c in columns:
                old = load(self.o, first + (i * self.wide + c * lanes), lanes)
                line.append(b.var(old * fade[i], "acc"))
            acc.append(line)
        tail = None
        if self.v.plain and columns.stop * lanes > self.depth:
            tail = b.let(iota(lanes) < self.depth % lanes, "tail")
        with b.loop(seen, name="j") as j:
            spot = b.let(base + j * row, "spot")
            vs = []
            for c in columns:
                mask = tail if (c + 1) * lanes > self.depth else None
                value = load(source, spot + c * lanes, lanes, mask)
                vs.append(b.let(value, "v"))
            for i, line in enumerate(acc):
                p = b.let(splat(load(self.s, j + i * self.keys), lanes), "p")
                for var, v in zip(line, vs):
                    b.assign(var, fma(p, v, var))
        for i, line in enumerate(acc):
            for c, var in zip(columns, line):
                b.store(self.o, first + (i * self.wide + c * lanes), var)

    # -- results

    def finish(self, write: Callable[[Expr, int, Expr | None, Expr], None]) -> None:
        """write(row, first column, mask, values) for every row and vector of columns."""
        b, lanes, depth = self.b, self.lanes, self.depth
        tail = None
        if depth % lanes:
            tail = b.let(iota(lanes) < depth % lanes, "tail")
        o, total = (self.all_o, self.all_total) if self.spans else (self.o, self.total)
        with b.loop(self.count, name="r") as r:
            by = b.let(splat(inverse(b, b.let(load(total, r), "sum")), lanes), "by")
            for c in range(0, depth, lanes):
                value = b.let(load(o, r * self.wide + c, lanes) * by, "y")
                write(r, c, tail if c + lanes > depth else None, value)


def _fold(op: Callable[[Expr, Expr], Expr], xs: Sequence[Expr]) -> Expr:
    result = xs[0]
    for x in xs[1:]:
        result = op(result, x)
    return result
