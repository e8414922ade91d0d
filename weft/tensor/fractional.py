"""Pools of maxima whose windows lie at random, so that sizes shrink by any ratio."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor.base import place
from weft.tensor.convolution import Sizes, image_axes, sizes, want_image
from weft.tensor.core import Tensor
from weft.tensor.keys import place_like
from weft.tensor.random import rand
from weft.tensor.shapes import cat

Ratios = float | Sequence[float] | None


def _counts(
    name: str, size: Sequence[int], kernel: Sequence[int], wanted: Sizes | None, ratio: Ratios
) -> tuple[int, ...]:
    """The number of windows per axis."""
    rank = len(size)
    if (wanted is None) == (ratio is None):
        raise UsageError(f"{name}: give either output_size or output_ratio")
    if wanted is not None:
        found = sizes("output_size", wanted, rank)
    else:
        found = tuple(int(n * r) for n, r in zip(size, ratios(name, ratio, rank)))
    if any(not 1 <= m <= n - k + 1 for n, k, m in zip(size, kernel, found)):
        raise ShapeError(
            f"{name}: {list(found)} windows of {list(kernel)} on {list(size)}; expected 1 to "
            "size - kernel + 1 per axis"
        )
    return found


def ratios(name: str, ratio: Ratios, rank: int) -> Sequence[float]:
    """One ratio per axis. Raises UsageError unless all are within 0..1."""
    parts = ratio if isinstance(ratio, Sequence) else [ratio or 0.0] * rank
    if len(parts) != rank or not all(0 < r < 1 for r in parts):
        raise UsageError(f"{name}: output_ratio {ratio}; expected one or {rank} within 0..1")
    return parts


def _reads(u: Tensor, n: int, k: int, count: int) -> Tensor:
    """The places that windows of k read on an axis of n, [N, C, count, k] in int32. Their steps are
    of nearly equal length, moved by the number u[N, C] in 0..1, with the last window at the
    end."""
    last = u._wrap(place_like(u, np.full((1, 1, 1), n - k, np.int32))).expand(*u.shape, 1)
    if count > 1:
        step, one = (n - k) / (count - 1), u.unsqueeze(-1)
        line = u._wrap(place_like(u, np.arange(count - 1, dtype=u.dtype.numpy)))
        first = ((one + line) * step).cast(dt.int32) - (one * step).cast(dt.int32)
        last = cat([first, last], -1)
    return last.unsqueeze(-1) + u._wrap(place_like(u, np.arange(k, dtype=np.int32)))


def _fractional_max_pool(rank: int) -> Callable[..., Any]:
    name = f"fractional_max_pool{rank}d"

    def pool(
        x: Tensor, kernel_size: Sizes, output_size: Sizes | None = None,
        output_ratio: Ratios = None, return_indices: bool = False, samples: Tensor | None = None,
    ) -> Any:  # fmt: skip
        want_image(name, x, rank)
        size, kernel = x.shape[2:], sizes("kernel_size", kernel_size, rank)
        counts = _counts(name, size, kernel, output_size, output_ratio)
        u = rand(*x.shape[:2], rank, device=place(x)) if samples is None else samples
        if u.shape != (*x.shape[:2], rank):
            raise ShapeError(
                f"{name}: samples {list(u.shape)}; expected {[*x.shape[:2], rank]}, one per axis"
            )
        order = range(rank) if rank == 3 else reversed(range(rank))  # of PyTorch's samples
        at: Any = 0
        for axis, (n, k, m, i) in enumerate(zip(size, kernel, counts, order)):
            one = [1] * (2 * rank)
            one[axis], one[rank + axis] = m, k
            at = at * n + _reads(u[:, :, i], n, k, m).reshape(*x.shape[:2], *one)
        many, lead = math.prod(counts), x.shape[:2]
        at = at.reshape(*lead, *counts, math.prod(kernel))
        flat = x.reshape(*lead, math.prod(size))
        seen = flat.detach().take_along_axis(at.reshape(*lead, many * at.shape[-1]))
        seen = seen.reshape(at.shape)
        where = at.take_along_axis(seen.argmax(-1).unsqueeze(-1)).squeeze(-1)
        out = flat.take_along_axis(where.reshape(*lead, many)).reshape(where.shape)
        return (out, where) if return_indices else out

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""The largest in each of output_size windows (or output_ratio of x's size) of
    x{image_axes(rank)}, which lie at random and may overlap (Graham, arXiv:1412.6071). `samples`
    [N, C, {rank}], numbers in 0..1, place the windows; without them weft draws them. With
    return_indices also where each stands in its image, counted row by row (int32). Raises
    UsageError unless one size or ratio is given, ShapeError for more windows than fit.

    >>> F.{name}(weft.ones((1, 1{", 5" * rank})), 2, output_size=3).shape
    (1, 1{", 3" * rank})
    """
    return pool


fractional_max_pool2d, fractional_max_pool3d = map(_fractional_max_pool, (2, 3))
