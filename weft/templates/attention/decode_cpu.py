"""A few query rows over a KV cache on a CPU: each key and value is read once, at bandwidth.

One group takes one row and one key/value head with the query heads that share it, or a part of
many, which have more to compute than to read. Keys are transposed in registers, so that scores run
along keys as in `forward_vector`. Blocks, spans and sums are the same, so bits are the same as
among many rows, and in any batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from weft.core import dtypes as dt
from weft.core.order import KEYS, STRANDS
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, fma, iota, load, minimum, select, shuffle, splat
from weft.kernel.ir import Expr, Type
from weft.templates.attention.forward import ForwardKernel, ForwardWorker, K, V
from weft.templates.attention.softmax import HIDDEN, SoftmaxState, capped, product
from weft.templates.attention.tile import ScoreRows, add
from weft.templates.operand import Reader, widen
from weft.templates.registers import transpose_block

_HEADS = 8  # query heads that keep one core busy while their keys and values arrive


class DecodeForward(ForwardWorker):
    """One thread with vectors; `rows` query heads of one row that share a key/value head."""

    threads = (1,)

    def __init__(self, call: ForwardKernel) -> None:
        super().__init__(call)
        b, caps, self.depth = self.b, call.caps, call.depth
        self.rows = call.share
        while self.rows > _HEADS and self.rows % 2 == 0:
            self.rows //= 2
        self.length = call.length
        self.lanes = lanes = min(caps.lanes, STRANDS)
        self.big = caps.registers >= 32
        self.block = min(KEYS, -(-self.length // STRANDS) * STRANDS)
        self.vectors = -(-self.depth // lanes)
        self.wide = self.vectors * lanes
        self.qs = b.array("q", dt.float32, self.rows * self.wide)
        s = b.array("s", dt.float32, self.rows * self.block)
        self.scores = ScoreRows(b, s, self.block, lanes)
        self.fade = b.array("fade", dt.float32, self.rows)
        self.span = self.all = SoftmaxState.of(b, self.rows, self.wide, lanes)
        if call.spans:
            self.all = SoftmaxState.of(b, self.rows, self.wide, lanes)
        self.tail = None
        if self.depth % lanes:
            self.tail = b.let(iota(lanes) < self.depth % lanes, "tail")

    def _columns(self, vector: int) -> Expr | None:
        return self.tail if (vector + 1) * self.lanes > self.depth else None

    def hold(self) -> None:
        """Widens the query heads into scratch."""
        b, lanes = self.b, self.lanes
        queries = self.call.queries()
        with b.loop(self.rows, name="h") as h, self.em.scope():
            query = queries.row(b, self.call.first + h)
            for v in range(self.vectors):
                value = query.read(0, v * lanes, lanes, self._columns(v))
                b.store(self.qs, h * self.wide + v * lanes, value)
        self.span.clear(const(self.rows))
        if self.all is not self.span:
            self.all.clear(const(self.rows))

    @contextlib.contextmanager
    def slots(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        self.row = row = self.call.item(self.call.first)
        self.sources = [self.call.source(i, row.slot) for i in (K, V)]
        yield row.slot, row.low, row.high

    def join(self) -> None:
        self.all.join(self.span, const(self.rows))

    # -- a block of keys

    def meet(self, slot: Expr, start: Expr, stop: Expr) -> None:
        with self.b.loop(stop, start - start % self.block, step=self.block, name="k0") as k0:
            self._block(k0, self.b.let(minimum(stop - k0, self.block), "seen"))

    def _block(self, k0: Expr, seen: Expr) -> None:
        b, row, params = self.b, self.row, self.call.params
        self.k, self.v = (source(k0) for source in self.sources)
        padded = b.let((seen + (STRANDS - 1)) // STRANDS * STRANDS, "padded")
        room = 8 if self.big else 4
        with b.loop(padded, step=self.lanes, name="c") as c:
            first = b.let(k0 + c, "first")
            key = b.let(splat(first, self.lanes) + iota(self.lanes), "key")
            visible = b.let((key >= row.low) & (key < row.high), "visible")
            keys = self._keys(first)
            for i in range(0, self.rows, room):
                heads = range(i, min(i + room, self.rows))
                scores = product(b, self.depth, self._chain(first, keys, heads))
                for n, score in zip(heads, scores):
                    score = capped(b, score, params["scale"], params["softcap"])
                    b.store(self.scores.s, c + n * self.block, select(visible, score, HIDDEN))
        with b.loop(self.rows, name="h") as h:
            self._weigh(h, padded)
        self._values(k0, seen)

    def _keys(self, first: Expr) -> list[Reader]:
        """`lanes` keys from `first`; those beyond the cache repeat its last."""
        last, keys = self.length - 1, []
        for t in range(self.lanes):
            at = first + t if self.length % STRANDS == 0 else minimum(first + t, last)
            keys.append(self.k.row(self.b, at))
        return keys

    def _ask_values(self, first: Expr, d: Expr) -> None:
        """Asks memory for the values of keys from `first` at the line of components `d`; where a
        line holds the components of several steps, for some of them in each."""
        source, lanes = self.v.buffer, self.lanes
        turns = max(64 // source.dtype.itemsize // lanes, 1)
        base = self.b.let(first + d // lanes % turns, "ask")
        for t in range(0, lanes, turns):
            self.b.prefetch(source, self.v.at(base + t, d))

    def _ask_keys(self, keys: Reader, key: Expr, vectors: range) -> None:
        """Asks memory for some components of a key of the next block."""
        row, line = keys.row(self.b, key), 64 // keys.buffer.dtype.itemsize
        first, end = (x * self.lanes for x in (vectors.start, vectors.stop))
        for d in range(-(-first // line) * line, min(end, self.depth), line):
            self.b.prefetch(row.buffer, row.at(0, d))

    def _chain(
        self, first: Expr, keys: Sequence[Reader], heads: range
    ) -> Callable[[range], list[ir.Var]]:
        """See `product`: q_h . k for some heads and `lanes` keys."""
        b, lanes = self.b, self.lanes
        zero = const(0.0, Type(dt.float32, lanes))

        def chain(part: range) -> list[ir.Var]:
            accs = [b.var(zero, "acc") for _ in heads]
            whole = part.stop - len(part) % lanes
            if whole > part.start:
                with b.loop(whole, part.start, step=lanes, name="d") as d:
                    step(d, lanes, accs)
            if whole < part.stop:
                step(const(whole), part.stop - whole, accs)
            return accs

        def step(d: Expr, count: int, accs: list[ir.Var]) -> None:
            if heads.start == 0:
                self._ask_values(first, d)
            for i, components in enumerate(self._turned(keys, d, count)):
                for h, acc in zip(heads, accs):
                    x = splat(load(self.qs, d + (h * self.wide + i)), lanes)
                    b.assign(acc, fma(x, components, acc))

        return chain

    def _turned(self, keys: Sequence[Reader], d: Expr, count: int) -> list[Expr]:
        """Components d .. d + count of the keys, a vector of each."""
        b = self.b
        plain = self.k.s_k == 1 and self.k.scales is None
        if self.lanes == 16 and plain and count == 16:
            return _transposed_16(b, self.k.buffer, [b.let(x.at(0, d), "k") for x in keys])
        mask = self.tail if count < self.lanes else None
        rows = [b.let(x.read(0, d, self.lanes, mask), "k") for x in keys]
        return transpose_block(b, rows)[:count]

    def _weigh(self, h: Expr, count: Expr) -> None:
        """Scores of one head become weights."""
        base = self.b.let(h * self.block, "s")
        self.b.store(self.fade, h, self.scores.weigh(self.span, h, base, 1, count))

    def _values(self, k0: Expr, seen: Expr) -> None:
        """o[h] = o[h] * fade + sum over keys of p[h][key] * v[key]: V is read once for a few heads
        at a time, then again from the cache."""
        b, lanes, s = self.b, self.lanes, self.scores.s
        room = 16 if self.big else 8
        columns, heads = min(self.vectors, room), 1
        if self.vectors > room:  # widened once for several heads
            columns = room // 4
        while heads * 2 * columns <= room and self.rows % (heads * 2) == 0:
            heads *= 2

        after = b.let(k0 + self.block, "after")
        following = self.sources[0](minimum(after, self.length - 1))

        def right(j: Expr, part: range) -> list[Expr]:
            row = self.v.row(b, k0 + j)
            self._ask_keys(following, after + j, part)
            return [row.read(0, v * lanes, lanes, self._columns(v)) for v in part]

        with b.loop(self.rows, step=heads, name="h") as h:
            taken = [b.let(h + i, "h") for i in range(heads)]
            fades = [b.let(splat(load(self.fade, i), lanes), "fade") for i in taken]

            def left(j: Expr) -> list[Expr]:
                return [load(s, i * self.block + j) for i in taken]

            o = self.span.o
            add(b, o, h, heads, self.wide, lanes, columns, seen, left, right, fades)

    # -- results

    def finish(self) -> None:
        call, em = self.call, self.em

        def out(h: Expr, column: int, value: Expr, mask: Expr | None) -> None:
            with em.scope():
                call.write(call.index(call.first + h), em.lane(self.lanes) + column, value, mask)

        def whole(h: Expr, top: Expr, total: Expr) -> Expr:
            return call.whole(call.index(call.first + h), top, total)

        self.all.write(const(self.rows), self.depth, whole, out)


# -- turning 16 rows of memory, for a CPU with vectors of 16 lanes


def _transposed_16(b: Builder, source: ir.Buffer, starts: Sequence[Expr]) -> list[Expr]:
    """Sixteen f32 vectors (bound), vector i of elements starts[0] + i, starts[1] + i, ...

    Four rows at a time are loaded into the quarters of a vector, so that only squares of 4 x 4
    items are left to turn: half the shuffles of a butterfly (`transpose_block`). An item is
    32 bits, two elements of a narrow dtype.
    """
    width = 4 // source.dtype.itemsize
    found = []
    for c in range(0, 16, 4 * width):
        rows = [_quarters(b, source, starts[r::4], c, 4 * width) for r in range(4)]
        for items in _turn_quarters(b, rows, width):
            for i in range(width):
                found.append(b.let(widen(items, width, i, dt.float32), "k"))
    return found


def _quarters(
    b: Builder, source: ir.Buffer, starts: Sequence[Expr], first: int, lanes: int
) -> Expr:
    """`lanes` elements from each of four places, side by side."""
    parts = [b.let(load(source, at + first, lanes), "k") for at in starts]
    pairs = [shuffle(range(2 * lanes), *parts[i : i + 2]) for i in (0, 2)]
    return b.let(shuffle(range(4 * lanes), *[b.let(x, "k") for x in pairs]), "k")


def _turn_quarters(b: Builder, rows: Sequence[Expr], width: int) -> list[Expr]:
    """Four vectors, each quarter of them a square of 4 x 4 items of `width` lanes that is
    transposed on its own."""

    def mix(x: Expr, y: Expr, picks: tuple[int, ...]) -> Expr:
        items = [q + (p if p < 4 else p + 12) for q in range(0, 16, 4) for p in picks]
        return b.let(shuffle([i * width + w for i in items for w in range(width)], x, y), "t")

    (x, y), (z, w) = ([mix(rows[i], rows[i + 1], p) for i in (0, 2)] for p in _HALVES)
    return [mix(*pair, picks) for pair in ((x, y), (z, w)) for picks in _PAIRS]


_HALVES = ((0, 4, 1, 5), (2, 6, 3, 7))  # rows of two squares: items 0 and 1, items 2 and 3
_PAIRS = ((0, 1, 4, 5), (2, 3, 6, 7))
