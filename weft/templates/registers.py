"""Vectors in registers: squares transposed, lanes interleaved, folded and masked."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.builder import Builder
from weft.kernel.expr import Value, as_expr, binary, extract, iota, shuffle, splat
from weft.kernel.ir import Expr


def transpose_block(b: Builder, rows: Sequence[Expr], width: int = 1) -> list[Expr]:
    """A square block of `len(rows)` vectors, transposed. Each vector holds len(rows) items of
    `width` adjacent lanes that move together (2 for pairs of bf16).

    First whole quarters of four items are exchanged by the butterfly, then squares of 4 x 4 turned
    within each: shuffles that a CPU has, and no more live vectors than the block's.
    """
    n, rows = len(rows), list(rows)

    def mix(x: Expr, y: Expr, lanes: Sequence[int]) -> Expr:
        """Items `lanes` of x ++ y."""
        return b.let(shuffle([i * width + w for i in lanes for w in range(width)], x, y), "t")

    s = n // 2
    while s >= (4 if n >= 4 else 1):
        for i in range(n):
            if not i & s:
                x, y = rows[i], rows[i + s]
                rows[i] = mix(x, y, [j if not j & s else n + j - s for j in range(n)])
                rows[i + s] = mix(x, y, [j + s if not j & s else n + j for j in range(n)])
        s //= 2
    if n < 4:
        return rows

    def woven(x: Expr, y: Expr, first: int, run: int) -> Expr:
        """In each quarter: `run` items of x from `first` on and as many of y, in turn."""
        turns = [first + t for t in range(2 // run)] if run == 1 else [first]
        spots = [(side, t * run + r) for t in turns for side in (0, n) for r in range(run)]
        return mix(x, y, [side + q + j for q in range(0, n, 4) for side, j in spots])

    for q in range(0, n, 4):
        top, low = [
            [woven(x, y, first, 1) for first in (0, 2)]
            for x, y in ((rows[q], rows[q + 1]), (rows[q + 2], rows[q + 3]))
        ]
        rows[q : q + 4] = [woven(top[h], low[h], f, 2) for h in (0, 1) for f in (0, 1)]
    return rows


def interleave(b: Builder, x: Expr, y: Expr) -> Expr:
    """x0 y0 x1 y1 ... of two vectors."""
    n = x.type.lanes
    return shuffle([i // 2 + (i % 2) * n for i in range(2 * n)], x, y)


def fold_lanes(b: Builder, vectors: Sequence[Expr], op: str = "add") -> Expr:
    """Lane i of the result combines the lanes of vectors[i] (a power of two of them, at most as
    many as lanes) by `op`. Halves are folded, lane l with lane l + width / 2, so the order does
    not depend on how many vectors there are."""
    rows, vectors = 1, list(vectors)
    width = vectors[0].type.lanes
    while width > 1:
        half, pairs = width // 2, len(vectors) > 1
        step = 2 if pairs else 1
        low_lanes = [r * width + i for r in range(rows * step) for i in range(half)]
        high_lanes = [i + half for i in low_lanes]
        folded = []
        for i in range(0, len(vectors), step):
            x = vectors[i]
            if len(low_lanes) == 1:
                low, high = extract(x, low_lanes[0]), extract(x, high_lanes[0])
            else:
                y = vectors[i + 1] if pairs else None
                low, high = shuffle(low_lanes, x, y), shuffle(high_lanes, x, y)
            folded.append(b.let(binary(op, low, high), "fold"))
        vectors, rows, width = folded, rows * step, half
    return vectors[0]


def tail_mask(start: Expr, limit: Value, lanes: int) -> Expr:
    """Returns a mask of the `lanes` consecutive positions from `start` that are below `limit`."""
    return splat(as_expr(limit), lanes) > splat(start, lanes) + iota(lanes)
