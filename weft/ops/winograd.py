"""Convolutions with windows of 3 x 3 by fewer products, used where weights are known beforehand.

The compiler makes them from `conv` (compile/channels_last). The method is F(2x2, 3x3) of Winograd
(1980) and Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). Tiles of 4 x
4 places, two apart, become 16 sums and differences each. They are multiplied by 16 matrices made
from the weights; sums and differences of the products are the 2 x 2 results. It takes 16 products
in place of 36. Results differ from a direct sum's by roundings of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.errors import ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.conv import Sides, window_counts
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want
from weft.ops.windows import windows

WINOGRAD = "winograd_last"
KERNEL, TILE, STEP = 3, 4, 2  # places of a window, a tile and between tiles, each way
# Rows of the matrices that act on both axes of a tile, a window and its products: (place, sign).
ENTER = (((0, 1), (2, -1)), ((1, 1), (2, 1)), ((2, 1), (1, -1)), ((1, 1), (3, -1)))
LEAVE = (((0, 1), (1, 1), (2, 1)), ((1, 1), (2, -1), (3, -1)))
WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)

Row = Sequence[tuple[int, int]]


def _abstract(x: Aval, u: Aval, *, channels: int, padding: Sides) -> Aval:
    """u[16, B, C, L]: of each matrix B bands of L outputs, of which the first `channels` are
    real."""
    want(WINOGRAD, x, "float")
    fits = len(x.shape) == 4 and len(u.shape) == 4 and u.dtype == x.dtype
    if not fits or u.shape[0] != TILE**2 or u.shape[2] != x.shape[3]:
        raise ShapeError(
            f"{WINOGRAD}: x {x!r}, weights {u!r}; expected [N, H, W, C], [16, B, C, L]"
        )
    if not 0 < channels <= u.shape[1] * u.shape[3]:
        raise ShapeError(f"{WINOGRAD}: {channels} channels of weights {u!r}")
    size = window_counts(WINOGRAD, x.shape[1:3], (KERNEL,) * 2, (1, 1), padding, (1, 1))
    return Aval((x.shape[0], *size, channels), x.dtype)


def _winograd(x: Value, u: Value, *, channels: int, padding: Sides) -> Value:
    n, high, wide, _ = _abstract(aval(x), aval(u), channels=channels, padding=padding).shape
    tiles = [-(-d // STEP) for d in (high, wide)]
    low = [p[0] for p in padding]
    more = [STEP * t + 2 - d - p for t, d, p in zip(tiles, aval(x).shape[1:3], low)]
    seen = f.pad(compute(x), (0, *low, 0), (0, *more, 0))
    for axis in (2, 1):
        seen = windows(seen, axis, TILE, STEP)
    for axis in (1, 3):  # [N, 4, tiles, 4, tiles, C]
        seen = _acted(seen, axis, ENTER)
    count, _, depth, _ = aval(u).shape
    rows = f.reshape(f.transpose(seen, (1, 3, 0, 2, 4, 5)), (count, -1, depth))
    columns = f.reshape(f.transpose(compute(u), (0, 2, 1, 3)), (count, depth, -1))
    columns = f.slice_(columns, (0, 0, 0), (count, depth, channels))
    made = f.reshape(f.dot(rows, columns), (TILE, TILE, n, *tiles, channels))
    for axis in (0, 1):
        made = _acted(made, axis, LEAVE)
    made = f.transpose(made, (2, 3, 0, 4, 1, 5))
    made = f.reshape(made, (n, STEP * tiles[0], STEP * tiles[1], channels))
    return f.cast(f.slice_(made, (0,) * 4, (n, high, wide, channels)), aval(x).dtype)


def _acted(x: Value, axis: int, matrix: Sequence[Row]) -> Value:
    """The product of a matrix and an axis."""
    shape = aval(x).shape
    spots = [
        f.slice_(
            x, [i if a == axis else 0 for a in range(len(shape))],
            [i + 1 if a == axis else d for a, d in enumerate(shape)],
        )
        for i in range(shape[axis])
    ]  # fmt: skip
    made = []
    for row in matrix:
        total = spots[row[0][0]]
        for place, sign in row[1:]:
            total = (f.add if sign > 0 else f.sub)(total, spots[place])
        made.append(total)
    return f.concat(made, axis)


register_composite(Composite(WINOGRAD, _abstract, _winograd, {"channels": None, "padding": None}))
