"""The recipe of a weight's buffer: part of the weight, or its rows in another order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import ShapeError

ITEMS = (1, 4)  # elements, of one byte each where they are several


class Recipe(NamedTuple):
    """The rows of the weight `whole` that a buffer holds, and their order.

    The weight has `rows` rows; the buffer holds them from `start` on, as many as fit. If `lanes` >
    1, that many rows are interleaved, `item` elements of each at a time. For w[N, K] the buffer is
    [ceil(N / lanes), K / item, lanes * item]. Its element (i, j, l * item + u) is w[i * lanes + l,
    j * item + u], or 0 beyond the last row.
    """

    whole: str
    start: int
    rows: int
    lanes: int = 1
    item: int = 1

    def sound(self, shape: tuple[int, ...]) -> bool:
        """True if a buffer of this shape can hold the recipe's rows."""
        if self.lanes == 1:
            return bool(shape) and self.start + shape[0] <= self.rows
        whole = len(shape) == 3 and self.item in ITEMS and shape[2] == self.lanes * self.item
        bands = -(-(self.rows - self.start) // self.lanes)
        return whole and self.start % self.lanes == 0 and shape[0] == bands

    def rows_of(self, value: Any, inner: tuple[int, ...], count: int) -> np.ndarray:
        """The `count` rows of the weight from `start` on, as far as there are any, each of shape
        `inner`. Raises ShapeError for anything but the whole weight on the host. Its first axis may
        be in two, as that of several matrices is."""
        wanted = (self.rows, *inner)
        if isinstance(value, np.ndarray) and value.ndim == len(wanted) + 1:
            value = value.reshape(-1, *value.shape[2:])
        if not isinstance(value, np.ndarray) or value.shape != wanted:
            raise ShapeError(
                f"weight {self.whole!r} is an array of shape {list(wanted)} on the host, got "
                f"{type(value).__name__} {list(getattr(value, 'shape', ()))}"
            )
        return value[self.start : self.start + count]
