"""The order of vectors of a picture that is cut into tiles: line by line, over all tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.vision.answers import resampled
from weft.vision.tiles import Prepared


def packed(
    parts: Sequence[np.ndarray], prepared: Prepared, newline: np.ndarray, most: int = 0
) -> np.ndarray:
    """LLaVA-NeXT: returns float32 [N, width]: the vectors of the whole picture, parts[0], and those
    of its tiles as one grid, without what was padding, with `newline` [width] after each line. A
    grid of clearly more vectors than `most` tiles have (0: any) is resampled to as many."""
    if len(parts) == 1:
        return np.concatenate([parts[0], newline.reshape(1, -1)])
    whole, tiles = parts[0], np.stack(parts[1:])
    grid = _unpadded(_grid(tiles, prepared.rows, prepared.columns), *prepared.original)
    by = math.sqrt(grid.shape[0] * grid.shape[1] / ((most or grid.size) * tiles.shape[1]))
    if by > 1.1:
        grid = resampled(grid, (int(grid.shape[0] // by), int(grid.shape[1] // by)))
    return np.concatenate([whole, _lines(grid, newline)])


def sheeted(parts: Sequence[np.ndarray], prepared: Prepared) -> np.ndarray:
    """Phi-4: returns float32 [N, width]: the vectors of the tiles as far as the picture fills them,
    line by line, then those of the whole picture, parts[0]. The last two of each part are what ends
    a line, and what comes after the tiles."""
    newline, between = parts[0][-2:]
    whole, tiles = parts[0][:-2], np.stack([part[:-2] for part in parts[1:]])
    fills = prepared.filled[1:]
    tall = sum(-(-rows // 2) for rows, _ in fills[:: prepared.columns])
    wide = sum(-(-columns // 2) for _, columns in fills[: prepared.columns])
    grid = _grid(tiles, prepared.rows, prepared.columns)[:tall, :wide]
    last = _lines(_grid(whole[None], 1, 1), newline)
    return np.concatenate([_lines(grid, newline), between[None], last])


def _grid(tiles: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Returns the vectors [tiles, N * N, width] of square tiles as one grid, [H, W, width]."""
    across = round(tiles.shape[1] ** 0.5)
    grid = tiles.reshape(rows, columns, across, across, -1).transpose(0, 2, 1, 3, 4)
    return grid.reshape(rows * across, columns * across, -1)


def _lines(grid: np.ndarray, newline: np.ndarray) -> np.ndarray:
    """Returns a grid [H, W, width] line by line, `newline` [width] after each."""
    ends = np.broadcast_to(newline, (len(grid), 1, newline.shape[0]))
    return np.concatenate([grid, ends], 1).reshape(-1, newline.shape[0])


def _unpadded(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns the part of a grid that a picture of this size fills; the rest was padding."""
    tall, wide, _ = grid.shape
    if width / height > wide / tall:
        edge = (tall - int(round(height * (wide / width), 7))) // 2
        return grid[edge : tall - edge]
    edge = (wide - int(round(width * (tall / height), 7))) // 2
    return grid[:, edge : wide - edge]
