"""The derivative of attention on a CPU: the parts that its kernels share.

A kernel holds a block of query rows (of q, and of g, the gradient of the output) and some
keys in scratch as f32: K and V turned, in blocks of [D][keys], and K as it is, [key][D]. Every
matrix product is one register tile, MR rows by a few vectors: weights p and ds = p (g v^T - delta)
by vectors of keys, then dq, dk and dv by vectors of components. Sums run over ascending rows or
keys, so results are the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
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
    select,
    splat,
)
from weft.kernel.ir import Type
from weft.templates.attention.flash import Operand
from weft.templates.attention.softmax import FLOOR, HIDDEN
from weft.templates.product.pack import Packer, fold_lanes

MR = 4  # rows per register tile
Write = Callable[[Expr, int, Expr | None, Expr], None]  # row, first column, mask, values


@dataclass(frozen=True)
class Sizes:
    """`rows` query rows (whole tiles), `keys` keys per turned block, `span` keys that p and ds hold
    (whole blocks); `vectors` of keys and `chunk` vectors of components per register tile."""

    lanes: int
    rows: int
    keys: int
    span: int
    vectors: int
    chunk: int

    @property
    def ld(self) -> int:
        """Elements from one row of p or ds to the next: not a power of two, so that a column's
        elements fall into different cache sets."""
        return self.span + self.lanes

    def spanning(self, s: int) -> Sizes:
        """The same with room for all of `s` keys."""
        return replace(self, span=-(-s // self.keys) * self.keys)


def sizes_of(caps: Caps, config: Mapping[str, Any], t: int, s: int, rows: int) -> Sizes:
    """Sizes for blocks of at most `rows` query rows and one block of keys at a time."""
    lanes = min(caps.lanes, 16)
    big = caps.registers >= 32
    keys = max(config.get("keys", 64), lanes)
    while keys > lanes and keys >= 2 * s:
        keys //= 2
    vectors = config.get("vectors", 4 if big else 2)
    while keys % (vectors * lanes):
        vectors //= 2
    rows = -(-min(config.get("rows", rows), t) // MR) * MR
    return Sizes(lanes, rows, keys, keys, vectors, config.get("chunk", 5 if big else 2))


class Tiles:
    """Emits the parts of a kernel. Arrays of rows are [row][wide], p and ds [row][ld]."""

    def __init__(self, b: Builder, size: Sizes, depth: int, scale: float, softcap: float) -> None:
        self.b, self.size, self.depth = b, size, depth
        self.scale, self.softcap = scale, softcap
        self.lanes = lanes = size.lanes
        self.wide = -(-depth // lanes) * lanes  # D padded to whole vectors
        self.zero = Type(dt.float32, lanes)

    def rows_array(self, name: str, rows: int) -> ir.Array:
        return self.b.array(name, dt.float32, rows * self.wide)

    def scores_array(self, name: str) -> ir.Array:
        return self.b.array(name, dt.float32, self.size.rows * self.size.ld)

    # -- operands

    def pack(
        self, source: Operand, base: Expr, target: ir.Array, count: Expr, padded: Expr | int
    ) -> None:
        """target = `count` rows of the operand from element `base`, then zeros up to row `padded`;
        zeros beyond D."""
        b, lanes = self.b, self.lanes
        packer = Packer(b, source.buffer, b.let(base), target, self.wide, lanes, dt.float32)
        if source.step == 1:
            packer.rows(source.row, count, const(self.depth), self.depth % lanes == 0)
        else:
            if self.wide != self.depth:
                self.clear(target, const(0), count)
            packer.scalars((source.row, source.step), count, const(self.depth), None)
        self.clear(target, count, padded)

    def clear(self, target: ir.Array, first: Expr, stop: Expr | int) -> None:
        """Zeros in rows first .. stop."""
        b = self.b
        with b.loop(stop, first, name="r") as r:
            at = b.let(r * self.wide, "at")
            for c in range(0, self.wide, self.lanes):
                b.store(target, at + c, const(0.0, self.zero))

    def turn(self, source: ir.Array, first: Expr, target: ir.Array, at: Expr) -> None:
        """A block of keys [key][wide], the first in row `first`, as [D][keys] from element `at`."""
        base = self.b.let(first * self.wide, "row")
        packer = Packer(
            self.b, source, base, target, self.size.keys, self.lanes, dt.float32, self.b.let(at)
        )
        packer.turned(self.wide, const(self.wide), self.size.keys, None, True)

    def scale_rows(self, x: ir.Array, r: Expr, by: Expr) -> None:
        """Rows r .. r + MR times the lanes of `by`."""
        b = self.b
        for i in range(MR):
            factor = b.let(splat(extract(by, i), self.lanes), "by")
            row = b.let((r + i) * self.wide, "row")
            for c in range(0, self.wide, self.lanes):
                b.store(x, row + c, load(x, row + c, self.lanes) * factor)

    # -- the register tile

    def _multiply(
        self, acc: Sequence[Sequence[ir.Var]], count: Expr,
        left: ir.Array, start: Expr, row: int, step: int, right: ir.Array, base: Expr, ld: int,
    ) -> None:  # fmt: skip
        """acc[i][v] += sum over k < count of left[start + i row + k step] * right[base + k ld + v
        lanes ...]."""
        b, lanes = self.b, self.lanes
        with b.loop(count, name="k") as k:
            spot = b.let(base + k * ld, "spot")
            ys = [b.let(load(right, spot + v * lanes, lanes), "y") for v in range(len(acc[0]))]
            at = b.let(start + k * step, "at")
            for i, line in enumerate(acc):
                x = b.let(splat(load(left, at + i * row), lanes), "x")
                for var, y in zip(line, ys):
                    b.assign(var, fma(x, y, var))

    def _fresh(self, vectors: int) -> list[list[ir.Var]]:
        zero = const(0.0, self.zero)
        return [[self.b.var(zero, "acc") for _ in range(vectors)] for _ in range(MR)]

    def _chunks(self) -> Iterator[range]:
        """The vectors of a row of D, a tile's worth at a time."""
        count = self.wide // self.lanes
        parts = -(-count // self.size.chunk)
        for i in range(parts):
            yield range(count * i // parts, count * (i + 1) // parts)

    def against_keys(
        self, x: ir.Array, r: Expr, turned: ir.Array, at: Expr, k0: Expr,
        finish: Callable[[int, Expr, Expr], None],
    ) -> None:  # fmt: skip
        """Rows r .. r + MR of x times the turned block at element `at`: finish(i, element of p,
        products) for each vector; k0 is where the block's keys stand in p."""
        b, size = self.b, self.size
        start = b.let(r * self.wide, "x0")
        with b.loop(size.keys, step=size.vectors * self.lanes, name="c") as c:
            acc = self._fresh(size.vectors)
            base = b.let(at + c, "block")
            depth = const(self.depth)
            self._multiply(acc, depth, x, start, self.wide, 1, turned, base, size.keys)
            spot = b.let(r * size.ld + k0 + c, "at")
            for i, line in enumerate(acc):
                for v, var in enumerate(line):
                    finish(i, b.let(spot + (i * size.ld + v * self.lanes), "at"), var)

    # -- weights

    def scores(
        self, x: ir.Array, r: Expr, turned: ir.Array, at: Expr, k0: Expr, p: ir.Array,
        slope: ir.Array | None,
    ) -> None:  # fmt: skip
        """p = the (capped) scores of rows r .. r + MR; `slope` gets the cap's derivative."""
        b = self.b

        def finish(i: int, spot: Expr, value: Expr) -> None:
            if slope is None:
                b.store(p, spot, value * self.scale)
                return
            bent = b.let(math.tanh(b, b.let(value * (self.scale / self.softcap), "s")), "bent")
            b.store(p, spot, bent * self.softcap)
            b.store(slope, spot, fma(-bent, bent, const(1.0, self.zero)))

        self.against_keys(x, r, turned, at, k0, finish)

    def hide(
        self, p: ir.Array, r: Expr, k0: Expr, first: Expr, low: Sequence[Expr], high: Sequence[Expr]
    ) -> None:
        """The scores of keys that a row does not see; key k0 of p is key number `first`."""
        b, size, lanes = self.b, self.size, self.lanes
        with b.loop(size.keys, step=lanes, name="c") as c:
            key = b.let(splat(first + c, lanes) + iota(lanes), "key")
            for i in range(MR):
                at = b.let((r + i) * size.ld + k0 + c, "at")
                seen = (key >= splat(low[i], lanes)) & (key < splat(high[i], lanes))
                b.store(p, at, select(seen, load(p, at, lanes), HIDDEN))

    def row_tops(self, p: ir.Array, r: Expr, first: Expr, stop: Expr) -> Expr:
        """The largest of p in columns first .. stop (whole vectors), a lane per row (bound)."""
        b, lanes = self.b, self.lanes
        floor = const(FLOOR, self.zero)
        tops = [b.var(floor, "top") for _ in range(MR)]
        with b.loop(stop, first, step=lanes, name="c") as c:
            for i, var in enumerate(tops):
                at = (r + i) * self.size.ld + c
                b.assign(var, maximum(var, load(p, at, lanes)))
        return b.let(fold_lanes(b, tops, "max"), "tops")

    def exponents(
        self, p: ir.Array, r: Expr, first: Expr, stop: Expr, tops: Sequence[Expr]
    ) -> list[ir.Var]:
        """p = exp(p - top) in columns first .. stop; the rows' sums, lane by lane."""
        b, lanes = self.b, self.lanes
        wide = [b.let(splat(top, lanes), "top") for top in tops]
        sums = [b.var(const(0.0, self.zero), "sum") for _ in range(MR)]
        with b.loop(stop, first, step=lanes, name="c") as c:
            for i, total in enumerate(sums):
                at = b.let((r + i) * self.size.ld + c, "at")
                gap = b.let(load(p, at, lanes) - wide[i], "gap")
                weight = b.let(math.exp(b, gap), "p")
                b.store(p, at, weight)
                b.assign(total, total + weight)
        return sums

    def slopes(
        self, g: ir.Array, r: Expr, turned: ir.Array, at: Expr, k0: Expr,
        p: ir.Array, ds: ir.Array, delta: ir.Array,
    ) -> None:  # fmt: skip
        """ds = p (g v^T - delta), times the cap's derivative that ds held."""
        b, lanes = self.b, self.lanes
        deltas = [b.let(splat(load(delta, r + i), lanes), "delta") for i in range(MR)]

        def finish(i: int, spot: Expr, value: Expr) -> None:
            change = load(p, spot, lanes) * (value - deltas[i])
            if self.softcap:
                change = change * load(ds, spot, lanes)
            b.store(ds, spot, change)

        self.against_keys(g, r, turned, at, k0, finish)

    def settle(
        self, p: ir.Array, ds: ir.Array, slope: ir.Array | None, by: Expr,
        r: Expr, first: Expr, stop: Expr,
    ) -> None:  # fmt: skip
        """ds = p (ds - delta) times the slope, where ds held g v^T and delta is its mean under the
        weights p * by; for rows r .. r + MR and columns first .. stop (whole vectors)."""
        b, lanes = self.b, self.lanes
        sums = [b.var(const(0.0, self.zero), "sum") for _ in range(MR)]
        with b.loop(stop, first, step=lanes, name="c") as c:
            for i, total in enumerate(sums):
                at = b.let((r + i) * self.size.ld + c, "at")
                b.assign(total, fma(load(p, at, lanes), load(ds, at, lanes), total))
        delta = b.let(fold_lanes(b, sums) * by, "delta")
        deltas = [b.let(splat(extract(delta, i), lanes), "delta") for i in range(MR)]
        with b.loop(stop, first, step=lanes, name="c") as c:
            for i, mean in enumerate(deltas):
                at = b.let((r + i) * self.size.ld + c, "at")
                change = load(p, at, lanes) * (load(ds, at, lanes) - mean)
                b.store(ds, at, change if slope is None else change * load(slope, at, lanes))

    # -- products with the weights

    def add_keys(
        self, ds: ir.Array, r: Expr, first: Expr, stop: Expr, keys: ir.Array, target: ir.Array,
        fresh: bool,
    ) -> None:  # fmt: skip
        """target[r .. r + MR] = (or, not fresh, +=) ds[.., first .. stop] . keys[first .. stop]."""
        b, lanes, ld = self.b, self.lanes, self.size.ld
        count = b.let(stop - first, "count")
        start = b.let(r * ld + first, "w0")
        for columns in self._chunks():
            acc = self._fresh(len(columns))
            place = b.let(r * self.wide + columns.start * lanes, "o")
            if not fresh:
                self._fetch(target, place, acc)
            base = b.let(first * self.wide + columns.start * lanes, "base")
            self._multiply(acc, count, ds, start, ld, 1, keys, base, self.wide)
            self._keep(target, place, acc)

    def add_rows(
        self, p: ir.Array, j: Expr, first: Expr, stop: Expr, rows: ir.Array, target: ir.Array
    ) -> None:
        """target[j .. j + MR] += p[first .. stop, j ..]^T . rows[first .. stop]."""
        b, lanes, ld = self.b, self.lanes, self.size.ld
        count = b.let(stop - first, "count")
        start = b.let(first * ld + j, "w0")
        for columns in self._chunks():
            acc = self._fresh(len(columns))
            place = b.let(j * self.wide + columns.start * lanes, "o")
            self._fetch(target, place, acc)
            base = b.let(first * self.wide + columns.start * lanes, "base")
            self._multiply(acc, count, p, start, 1, ld, rows, base, self.wide)
            self._keep(target, place, acc)

    def _fetch(self, target: ir.Array, place: Expr, acc: list[list[ir.Var]]) -> None:
        for i, line in enumerate(acc):
            for v, var in enumerate(line):
                at = place + (i * self.wide + v * self.lanes)
                self.b.assign(var, load(target, at, self.lanes))

    def _keep(self, target: ir.Array, place: Expr, acc: list[list[ir.Var]]) -> None:
        for i, line in enumerate(acc):
            for v, var in enumerate(line):
                self.b.store(target, place + (i * self.wide + v * self.lanes), var)

    # -- results

    def write(self, x: ir.Array, first: Expr, count: Expr, factor: float, write: Write) -> None:
        """write(row, first column, mask, values * factor) for `count` rows of x from `first`."""
        b, lanes, depth = self.b, self.lanes, self.depth
        tail = b.let(iota(lanes) < depth % lanes, "tail") if depth % lanes else None
        with b.loop(count, name="r") as r:
            for c in range(0, depth, lanes):
                value = load(x, (first + r) * self.wide + c, lanes)
                if factor != 1.0:
                    value = value * factor
                write(r, c, tail if c + lanes > depth else None, b.let(value, "y"))
