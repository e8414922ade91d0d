"""Pools of images of one to three axes: maxima, averages and norms of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.ops.conv import Sides, window_counts
from weft.ops.primitive import aval
from weft.ops.rules import want
from weft.ops.windows import least
from weft.tensor.convolution import Padding, Sizes, image_axes, sides, sizes, want_image
from weft.tensor.core import Tensor
from weft.tensor.distances import root
from weft.tensor.keys import place_like

Window = dict[str, Any]  # kernel, stride, padding, dilation: one per axis


def _window(
    name: str, x: Tensor, rank: int, kernel: Sizes, stride: Sizes | None, padding: Padding,
    dilation: Sizes, ceil_mode: bool,
) -> tuple[Window, Sides]:  # fmt: skip
    """The parameters of a pool (the stride defaults to the kernel), and how far its last windows
    reach beyond the padding."""
    want_image(name, x, rank)
    if isinstance(padding, str):
        raise UsageError(f"{name}: padding is sizes, not {padding!r}")
    k = sizes("kernel_size", kernel, rank)
    found: Window = {
        "kernel": k,
        "stride": k if stride is None else sizes("stride", stride, rank),
        "padding": sides("padding", padding, rank),
        "dilation": sizes("dilation", dilation, rank),
    }
    if any(2 * p > n for pair, n in zip(found["padding"], k) for p in pair):
        raise ShapeError(
            f"{name}: x {list(x.shape)}, kernel {k}, padding {found['padding']}; expected a "
            "padding of at most half the kernel"
        )
    more = ((0, _beyond(*at)) for at in zip(x.shape[2:], *found.values()))
    return found, tuple(more) if ceil_mode else ((0, 0),) * rank


def _beyond(n: int, k: int, s: int, p: tuple[int, int], d: int) -> int:
    """The elements by which the last window of ceil_mode exceeds the padding of an axis. A window
    counts when it starts inside (PyTorch's rule)."""
    reach, wide = d * (k - 1) + 1, n + sum(p)
    last = max(-(-(wide - reach) // s), 0) * s
    last -= s if last >= n + p[0] else 0
    return max(last + reach - wide, 0)


def _widened(x: Tensor, more: Sides, value: float = 0.0) -> Tensor:
    return x.pad([(0, 0), (0, 0), *more], value) if any(map(any, more)) else x


# -- maxima ---------------------------------------------------------------------------------------


def _max_pool(rank: int) -> Callable[..., Any]:
    name = f"max_pool{rank}d"

    def pool(
        x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0,
        dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        at, more = _window(name, x, rank, kernel_size, stride, padding, dilation, ceil_mode)
        want(name, aval(x.value), "numeric")
        out = _widened(x, more, least(x.dtype))._call("max_pool", **at)
        return (out, places(x, out, _reads(x, at, more))) if return_indices else out

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""The largest in each window of x{image_axes(rank)}; stride defaults to
    the kernel, padding is sizes or a (before, after) pair per axis. The first of equals gets the
    gradient. With ceil_mode the last window may reach beyond the padding. With return_indices also
    where each stands in its image, counted row by row (int32), as PyTorch counts.

    >>> F.{name}(weft.ones((1, 1{", 4" * rank})), 2).shape
    (1, 1{", 2" * rank})
    """
    return pool


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))


def _reads(x: Tensor, at: Window, more: Sides) -> list[np.ndarray]:
    """Per axis what each window reads, [windows, places]; outside the image in the padding."""
    around = tuple((p[0], p[1] + m[1]) for p, m in zip(at["padding"], more))
    window = (at["kernel"], at["stride"], around, at["dilation"])
    counts = window_counts("max_pool", x.shape[2:], *window)
    return [
        (np.arange(count) * s - p[0])[:, None] + np.arange(k) * d
        for count, k, s, p, d in zip(counts, *window)
    ]


def places(
    x: Tensor, largest: Tensor, reads: Sequence[np.ndarray], steps: Sequence[int] | None = None
) -> Tensor:
    """The place in the image of each window's largest element: the first of equals, or of NaN, and
    never in the padding. Places are counted row by row, or `steps` apart along each axis."""
    rank, size = len(reads), x.shape[2:]
    counts = [len(r) for r in reads]
    line, inside = np.zeros((*counts, 1), np.int64), np.ones((*counts, 1), bool)
    other = line
    for i, (n, index) in enumerate(zip(size, reads)):
        shape = [1] * rank
        shape[i] = counts[i]
        index = index.reshape(*shape, 1, -1)
        grown = _grown(line, index)
        line = (line[..., None] * n + index).reshape(grown)
        other = (other[..., None] + index * (steps[i] if steps else 0)).reshape(grown)
        inside = (inside[..., None] & (index >= 0) & (index < n)).reshape(grown)
    flat = x.detach().flatten(2)
    where = np.where(inside, line, 0).astype(np.int32)
    seen = flat.take(where.reshape(-1), 2).reshape(*x.shape[:2], *where.shape)
    top = largest.detach().unsqueeze(-1)
    real = x._wrap(place_like(x, inside))
    hit = ((seen == top) | (seen.isnan() & top.isnan())) & real
    first = hit.cast(dt.int32).argmax(-1)
    numbers = where if steps is None else np.where(inside, other, 0).astype(np.int32)
    table = x._wrap(place_like(x, numbers)).expand(*x.shape[:2], *where.shape)
    return table.take_along_axis(first.unsqueeze(-1), -1).squeeze(-1)


def _grown(a: np.ndarray, b: np.ndarray) -> tuple[int, ...]:
    """The shape of a[..., None] with b, its last two axes as one."""
    lead = np.broadcast_shapes(a.shape[:-1], b.shape[:-2])
    return (*lead, a.shape[-1] * b.shape[-1])


# -- averages and norms ---------------------------------------------------------------------------


def _avg_pool(rank: int) -> Callable[..., Tensor]:
    name = f"avg_pool{rank}d"

    def pool(
        x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        if divisor_override == 0:
            raise UsageError(f"{name}: a divisor_override of 0")
        at, more = _window(name, x, rank, kernel_size, stride, padding, 1, ceil_mode)
        wide = x.cast(dt.compute_dtype(x.dtype))
        seen = _widened(wide, more)
        beyond, padded = any(map(any, more)), any(map(any, at["padding"]))
        if divisor_override is not None or not (beyond or (padded and not count_include_pad)):
            count = divisor_override or math.prod(at["kernel"])
            return (seen._call("sum_pool", **at) * (1.0 / count)).cast(x.dtype)
        ones = np.ones((1, 1, *x.shape[2:]), wide.dtype.numpy)
        rim = [(0, 0), (0, 0), *at["padding"]]
        inside = np.pad(ones, rim, constant_values=float(count_include_pad))
        inside = np.pad(inside, [(0, 0), (0, 0), *more])
        counts = ops.call("sum_pool", inside, **{**at, "padding": ((0, 0),) * rank})
        total = seen._call("sum_pool", **at)
        return (total / wide._wrap(place_like(wide, counts))).cast(x.dtype)

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""The average of each window of x{image_axes(rank)}; stride defaults to
    the kernel, padding is sizes or a (before, after) pair per axis. Padding zeros count as elements
    unless count_include_pad=False; `divisor_override` is divided by instead of the count. With
    ceil_mode the last window may reach beyond the padding; that part never counts.

    >>> F.{name}(weft.ones((1, 1{", 4" * rank})), 2).shape
    (1, 1{", 2" * rank})
    """
    return pool


avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))
_MAX = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}
_AVG = {1: avg_pool1d, 2: avg_pool2d, 3: avg_pool3d}


def _lp_pool(rank: int) -> Callable[..., Tensor]:
    name = f"lp_pool{rank}d"

    def pool(
        x: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:  # fmt: skip
        p = float(norm_type)
        if not p or math.isnan(p):
            raise UsageError(f"{name}: a norm_type of {norm_type}; expected a number other than 0")
        at = (kernel_size, stride, 0)
        if math.isinf(p):
            sign = math.copysign(1.0, p)
            made: Tensor = _MAX[rank](x.abs() * sign, *at, ceil_mode=ceil_mode) * sign
            return made
        wide = x.cast(dt.compute_dtype(x.dtype))
        mean = _AVG[rank](wide * wide if p == 2 else wide if p == 1 else wide**p, *at, ceil_mode)
        return root(mean * float(math.prod(sizes("kernel_size", kernel_size, rank))), p).cast(
            x.dtype
        )

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""(sum of x^p)^(1 / p) over each window of x{image_axes(rank)}, p being
    norm_type: the largest |x| for inf, the smallest for -inf, the sum for 1, NaN where a power or a
    root is not real. Stride defaults to the kernel. With ceil_mode the last window may reach beyond
    the image; its sum is scaled to that of a whole window, as in PyTorch. The gradient of a sum of
    0 is 0.

    >>> F.{name}(weft.ones((1, 1{", 4" * rank})), 2, 2).shape
    (1, 1{", 2" * rank})
    """
    return pool


lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))


# -- as many windows as wanted --------------------------------------------------------------------

Wanted = int | Sequence[int | None] | None


def _targets(name: str, x: Tensor, wanted: Wanted, rank: int) -> tuple[int, ...]:
    want_image(name, x, rank)
    given = wanted if isinstance(wanted, Sequence) else (wanted,) * rank
    if len(given) != rank:
        sizes("output_size", given, rank)
    found = [n if m is None else m for n, m in zip(x.shape[2:], given)]
    size = sizes("output_size", found, rank)
    if min(size) < 1:
        raise ShapeError(f"{name}: {list(x.shape)} to {list(size)} windows")
    return size


def _spans(n: int, windows: int) -> list[tuple[int, int]]:
    """Window i covers floor(i n / windows) to ceil((i + 1) n / windows)."""
    return [(i * n // windows, -(-(i + 1) * n // windows)) for i in range(windows)]


def _covered(n: int, windows: int) -> np.ndarray:
    """[windows, places]: what each reads; one shorter than the longest reads its last again."""
    spans = _spans(n, windows)
    most = max(stop - start for start, stop in spans)
    rows = [[min(start + j, stop - 1) for j in range(most)] for start, stop in spans]
    return np.array(rows, np.int32)


def _adaptive_avg_pool(rank: int) -> Callable[..., Tensor]:
    name = f"adaptive_avg_pool{rank}d"

    def pool(x: Tensor, output_size: Wanted) -> Tensor:
        target = _targets(name, x, output_size, rank)
        if all(n % m == 0 for n, m in zip(x.shape[2:], target)):
            split = [d for n, m in zip(x.shape[2:], target) for d in (m, n // m)]
            return x.reshape(*x.shape[:2], *split).mean(tuple(range(3, 3 + 2 * rank, 2)))
        wide = x.cast(dt.compute_dtype(x.dtype))
        for axis, m in enumerate(target, 2):
            wide = _averaged(wide, axis, m)
        return wide.cast(x.dtype)

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""x{image_axes(rank)} averaged to output_size windows per axis: window i
    of n covers elements floor(i size / n) to ceil((i + 1) size / n). None keeps x's size.

    >>> F.{name}(weft.ones((1, 1{", 4" * rank})), 2).shape
    (1, 1{", 2" * rank})
    """
    return pool


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg_pool, (1, 2, 3))


def _averaged(x: Tensor, axis: int, windows: int) -> Tensor:
    """The averages of windows along an axis. An element counts in its windows alone: a product
    with zeros elsewhere would carry an infinity into all of them."""
    n = x.shape[axis]
    counts = np.array([stop - start for start, stop in _spans(n, windows)])
    index = _covered(n, windows)
    seen = x.take(index.reshape(-1), axis)
    seen = seen.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    behind = (1,) * (x.ndim - axis - 1)
    inside = np.arange(index.shape[1]) < counts[:, None]
    if not inside.all():
        real = x._wrap(place_like(x, inside.reshape(*index.shape, *behind)))
        seen = real.expand(seen.shape).where(seen, 0.0)
    shares = (1.0 / counts).astype(x.dtype.numpy).reshape(-1, *behind)
    return seen.sum(axis + 1) * x._wrap(place_like(x, shares))


def _adaptive_max_pool(rank: int) -> Callable[..., Any]:
    name = f"adaptive_max_pool{rank}d"

    def pool(x: Tensor, output_size: Wanted, return_indices: bool = False) -> Any:
        target = _targets(name, x, output_size, rank)
        reads = [_covered(n, m) for n, m in zip(x.shape[2:], target)]
        out = x
        for axis, index in reversed(list(enumerate(reads, 2))):
            seen = out.take(index.reshape(-1), axis)
            shape = (*out.shape[:axis], *index.shape, *out.shape[axis + 1 :])
            out = seen.reshape(shape).max(axis + 1)
        return (out, places(x, out, reads)) if return_indices else out

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""The largest in each of output_size windows per axis of
    x{image_axes(rank)}, which lie as those of adaptive_avg_pool{rank}d. With
    return_indices also where each stands in its image, counted row by row (int32).

    >>> F.{name}(weft.ones((1, 1{", 4" * rank})), 2).shape
    (1, 1{", 2" * rank})
    """
    return pool


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max_pool, (1, 2, 3))
