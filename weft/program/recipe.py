"""How a weight's buffer is made of the weight: part of it, or its rows in another order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import ShapeError

ITEMS = (1, 4)  # elements, of one byte each where they are several


class Recipe(NamedTuple):
    """A weight buffer holds rows of the weight `whole`, which has `rows` of them: from `start` on,
    as many as fit. Where `lanes` > 1 so many rows are interleaved, `item` elements of each at a
    time: of w[N, K] the buffer is [N / lanes, K / item, lanes * item], in which element
    (i, j, l * item + u) is w[i * lanes + l, j * item + u]."""

    whole: str
    start: int
    rows: int
    lanes: int = 1
    item: int = 1

    def sound(self, shape: tuple[int, ...]) -> bool:
        """Whether a buffer of this shape can hold what the recipe says."""
        if self.lanes == 1:
            return bool(shape) and self.start + shape[0] <= self.rows
        whole = len(shape) == 3 and self.item in ITEMS and shape[2] == self.lanes * self.item
        return whole and self.start + shape[0] * self.lanes <= self.rows

    def rows_of(self, value: Any, inner: tuple[int, ...], count: int) -> np.ndarray:
        """The `count` rows of the weight from `start` on, each of shape `inner`. Raises ShapeError
        for anything but the whole weight on the host."""
        wanted = (self.rows, *inner)
        if not isinstance(value, np.ndarray) or value.shape != wanted:
            raise ShapeError(
                f"weight {self.whole!r} is an array of shape {list(wanted)} on the host, got "
                f"{type(value).__name__} {list(getattr(value, 'shape', ()))}"
            )
        return value[self.start : self.start + count]
