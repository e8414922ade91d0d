"""Dynamic time warping: which moment of a sound belongs to which token."""

from __future__ import annotations

import numpy as np

MEDIAN = 7  # width of the filter over time


def median_filter(x: np.ndarray, width: int = MEDIAN) -> np.ndarray:
    """Returns the medians of `width` neighbours along the last axis, with mirrored ends."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    wide = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], "reflect")
    near = np.lib.stride_tricks.sliding_window_view(wide, width, -1)
    return np.asarray(np.sort(near, -1)[..., half])


def token_frames(weights: np.ndarray) -> np.ndarray:
    """Returns the frame where each token begins, int64 [N], by attention weights of heads
    [heads, N, frames], of which each is normalised over the tokens and smoothed over time."""
    spread = weights.std(1, keepdims=True)
    x = (weights - weights.mean(1, keepdims=True)) / np.where(spread == 0, 1, spread)
    tokens, frames = warp(-median_filter(x).mean(0))
    first = np.diff(tokens, prepend=-1) > 0
    return frames[first]


def warp(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cheapest path through cost [N, M] from the first corner to the last, as rows and
    columns, int64 [steps]. Cells of a diagonal are computed at once."""
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf, np.float32)
    total[0, 0] = 0
    trace = np.full((n + 1, m + 1), 2, np.int8)
    trace[:, 0] = 1
    trace[0, :] = 2
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        both, up, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        choice = np.where((both < up) & (both < left), 0, np.where((up < both) & (up < left), 1, 2))
        trace[i, j] = choice
        total[i, j] = cost[i - 1, j - 1] + np.choose(choice, (both, up, left))
    i, j = n, m
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = trace[i, j]
        i, j = i - (step != 2), j - (step != 1)
    rows, columns = np.array(path[::-1]).T
    return rows, columns
