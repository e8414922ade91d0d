"""LLaVA-NeXT's order of a picture's vectors: all of the picture, then its tiles line by line."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.vision.answers import resampled
from weft.vision.tiles import Prepared


def packed(
    parts: Sequence[np.ndarray], prepared: Prepared, newline: np.ndarray, most: int = 0
) -> np.ndarray:
    """Returns float32 [N, width]: the vectors of the whole picture, parts[0], and those of its
    tiles as one grid, without what was padding, with `newline` [width] after each line. A grid of
    clearly more vectors than `most` tiles have (0: any) is resampled to as many."""
    if len(parts) == 1:
        return np.concatenate([parts[0], newline.reshape(1, -1)])
    whole, tiles = parts[0], np.stack(parts[1:])
    across = round(tiles.shape[1] ** 0.5)
    grid = tiles.reshape(prepared.rows, prepared.columns, across, across, -1)
    grid = grid.transpose(0, 2, 1, 3, 4)
    grid = grid.reshape(prepared.rows * across, prepared.columns * across, -1)
    grid = _unpadded(grid, *prepared.original)
    by = math.sqrt(grid.shape[0] * grid.shape[1] / ((most or grid.size) * across**2))
    if by > 1.1:
        grid = resampled(grid, (int(grid.shape[0] // by), int(grid.shape[1] // by)))
    ends = np.broadcast_to(newline, (len(grid), 1, newline.shape[0]))
    lines = np.concatenate([grid, ends], 1)
    return np.concatenate([whole, lines.reshape(-1, newline.shape[0])])


def _unpadded(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns the part of a grid that a picture of this size fills; the rest was padding."""
    tall, wide, _ = grid.shape
    if width / height > wide / tall:
        edge = (tall - int(round(height * (wide / width), 7))) // 2
        return grid[edge : tall - edge]
    edge = (wide - int(round(width * (tall / height), 7))) // 2
    return grid[:, edge : wide - edge]
