"""How a weight's buffer is made of the weight: part of it, or its rows in another order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import ShapeError

_PIECE = 1 << 20  # bytes that are brought into order at a time


class Recipe(NamedTuple):
    """A weight buffer holds rows of the weight `whole`, which has `rows` of them: from `start` on,
    as many as fit. Where `lanes` > 1 so many rows are interleaved: of w[N, K] the buffer is
    [N / lanes, K, lanes], in which element (i, k, l) is w[i * lanes + l, k]."""

    whole: str
    start: int
    rows: int
    lanes: int = 1

    def sound(self, shape: tuple[int, ...]) -> bool:
        """Whether a buffer of this shape can hold what the recipe says."""
        if self.lanes == 1:
            return bool(shape) and self.start + shape[0] <= self.rows
        whole = len(shape) == 3 and shape[2] == self.lanes
        return whole and self.start + shape[0] * self.lanes <= self.rows

    def pieces(self, value: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
        """What a buffer of `shape` holds, piece by piece along axis 0 (the last ones are views of
        `value` in another order). Raises ShapeError for anything but the weight on the host."""
        inner = shape[1:] if self.lanes == 1 else (shape[1],)
        wanted = (self.rows, *inner)
        if not isinstance(value, np.ndarray) or value.shape != wanted:
            raise ShapeError(
                f"weight {self.whole!r} is an array of shape {list(wanted)} on the host, got "
                f"{type(value).__name__} {list(getattr(value, 'shape', ()))}"
            )
        rows = value[self.start : self.start + shape[0] * self.lanes]
        if self.lanes == 1:
            return [rows]
        bands = rows.reshape(shape[0], self.lanes, shape[1]).transpose(0, 2, 1)
        step = max(_PIECE // max(bands[:1].nbytes, 1), 1)
        return [bands[i : i + step] for i in range(0, shape[0], step)]
