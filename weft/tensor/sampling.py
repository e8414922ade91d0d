"""Images at places that are tensors, and images as columns of their blocks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from functools import reduce

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor.base import values
from weft.tensor.convolution import Sizes, sizes, want_image
from weft.tensor.core import Tensor
from weft.tensor.create import zeros_like
from weft.tensor.keys import place_like
from weft.tensor.resize import CUBIC

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:  # fmt: skip
    """x[N, C, (D,) H, W] at the places grid[N, ..., 2 or 3], whose last axis holds x, y (and z)
    from -1 to 1 (Jaderberg et al., arXiv:1506.02025): [N, C, ...]. Outside are zeros, the border or
    reflections; the ends are the outer pixels' centres with `align_corners`, else their edges.
    Raises ShapeError and UsageError.

    >>> grid = weft.zeros((1, 1, 1, 2))  # the middle
    >>> F.grid_sample(weft.arange(4.0).reshape(1, 1, 2, 2), grid, align_corners=True).item()
    1.5
    """
    rank = x.ndim - 2
    expected = (x.shape[0], *grid.shape[1:-1], rank)
    if rank not in (1, 2, 3) or grid.shape != expected or len(expected) != x.ndim:
        raise ShapeError(
            f"grid_sample: x {list(x.shape)}, grid {list(grid.shape)}; expected x[N, C, (D,) H, W] "
            "and a grid [N, ..., axes] of as many axes"
        )
    if mode not in MODES or padding_mode not in PADDINGS or (mode == "bicubic" and rank != 2):
        raise UsageError(
            f"grid_sample: mode {mode!r:.40}, padding_mode {padding_mode!r:.40}; expected one of "
            f"{MODES} (bicubic with two axes) and of {PADDINGS}"
        )
    wide = grid.cast(dt.compute_dtype(grid.dtype)) + 1.0
    at = []
    for i, n in enumerate(x.shape[2:]):
        g = wide[..., rank - 1 - i]
        at.append(g * ((n - 1) / 2) if align_corners else (g * n - 1.0) * 0.5)
    if mode != "bicubic" and padding_mode != "zeros":
        at = [_inside(a, n, padding_mode, align_corners) for a, n in zip(at, x.shape[2:])]
    if mode == "nearest":
        return _picked(x, [a.round() for a in at], padding_mode, align_corners)
    return reduce(operator.add, weighted(x, at, mode, padding_mode, align_corners))


def weighted(
    x: Tensor, at: Sequence[Tensor], mode: str = "bilinear", padding: str = "zeros",
    corners: bool = True,
) -> list[Tensor]:  # fmt: skip
    """The contributions of the pixels near the places to the samples there, one [N, C, ...] per
    near pixel. x is [N, C, ...]; `at` has the coordinates along each axis, [N, ...], in pixels."""
    taps = (0, 1) if mode == "bilinear" else (-1, 0, 1, 2)
    base = [a.floor() for a in at]
    parts = []
    for offsets in itertools.product(taps, repeat=len(at)):
        places = [b + float(o) for b, o in zip(base, offsets)]
        weight = reduce(lambda a, b: a * b, (_share(p - a, mode) for p, a in zip(places, at)))
        # A corner outside has zero weight, and its value must not be multiplied.
        picked = _picked(x, places, "zeros" if mode == "bilinear" else padding, corners)
        parts.append(picked * weight.unsqueeze(1).cast(x.dtype))
    return parts


def _share(distance: Tensor, mode: str) -> Tensor:
    """The weight of a pixel at that distance; cubic ones use Keys' kernel
    (doi:10.1109/TASSP.1981.1163711)."""
    d = distance.abs()
    if mode == "bilinear":
        return (1.0 - d).maximum(0.0)
    near = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1.0
    far = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
    return (d <= 1.0).where(near, (d < 2.0).where(far, 0.0))


def _inside(at: Tensor, n: int, padding: str, corners: bool) -> Tensor:
    """Places moved inside: to the border, or mirrored at it."""
    if padding == "reflection":
        low, span = (0.0, float(n - 1)) if corners else (-0.5, float(n))
        if not span:
            return zeros_like(at)
        off = (at - low).abs()
        turns = (off / span).floor()
        rest = off - turns * span
        at = (turns % 2.0 == 0.0).where(rest, span - rest) + low
    return at.maximum(0.0).minimum(float(n - 1))


def _picked(x: Tensor, places: Sequence[Tensor], padding: str, corners: bool) -> Tensor:
    """x[N, C, ...] at whole places [N, ...]: [N, C, ...]; zeros outside where padding says so."""
    n, c, *size = x.shape
    flat: Tensor | None = None
    seen: Tensor | None = None
    for at, width in zip(places, size):
        if padding == "zeros":
            ok = (at >= 0.0) & (at <= width - 1.0)
            seen = ok if seen is None else seen & ok
        one = _inside(at, width, padding, corners).cast(dt.int32)
        flat = one if flat is None else flat * width + one
    assert flat is not None
    rows = flat.flatten(1).unsqueeze(1)
    rows = rows.expand(n, c, rows.shape[2])
    found = x.flatten(2).take_along_axis(rows, 2).reshape(n, c, *flat.shape[1:])
    return found if seen is None else seen.unsqueeze(1).where(found, 0.0)


# -- blocks as columns


def _blocks(
    name: str, size: Sequence[int], kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> tuple[np.ndarray, list[int]]:
    """The position of each element of each block in the flattened padded image, [prod(kernel),
    blocks], and the padding of each axis."""
    lines = []
    pads = list(sizes("padding", padding, 2))
    options = (sizes("kernel_size", kernel, 2), sizes("dilation", dilation, 2),
               sizes("stride", stride, 2))  # fmt: skip
    for n, k, d, s, p in zip(size, *options, pads):
        count = (n + 2 * p - d * (k - 1) - 1) // s + 1
        if count < 1:
            raise ShapeError(f"{name}: no block of {k} (dilation {d}) fits {n} with padding {p}")
        lines.append(np.arange(k)[:, None] * d + np.arange(count)[None] * s)
    width = size[1] + 2 * pads[1]
    total = lines[0][:, None, :, None] * width + lines[1][None, :, None, :]
    return total.reshape(lines[0].shape[0] * lines[1].shape[0], -1).astype(np.int32), pads


def unfold(
    x: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The blocks of x[N, C, H, W], as a convolution meets them, as columns: [N, C kh kw, L].

    >>> F.unfold(weft.ones((1, 3, 4, 4)), 2).shape
    (1, 12, 9)
    """
    want_image("unfold", x, 2)
    at, (ph, pw) = _blocks("unfold", x.shape[2:], kernel_size, dilation, padding, stride)
    n, c = x.shape[:2]
    flat = x.pad([(0, 0), (0, 0), (ph, ph), (pw, pw)]).flatten(2)
    return flat.take(at.reshape(-1), 2).reshape(n, c * at.shape[0], at.shape[1])


def fold(
    x: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The sum of columns x[N, C kh kw, L] at the positions of their blocks in images [N, C, H,
    W].

    >>> F.fold(weft.ones((1, 4, 4)), (3, 3), 2).tolist()
    [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
    """
    size = sizes("output_size", output_size, 2)
    at, (ph, pw) = _blocks("fold", size, kernel_size, dilation, padding, stride)
    k, count = at.shape
    if x.ndim != 3 or x.shape[1] % k or x.shape[2] != count:
        raise ShapeError(f"fold: x {list(x.shape)}; expected [N, C {k}, {count}]")
    n, c = x.shape[0], x.shape[1] // k
    high, wide = size[0] + 2 * ph, size[1] + 2 * pw
    rows = x.reshape(n * c, k * count).permute((1, 0))
    table = x._wrap(place_like(x, np.zeros((high * wide, n * c), x.dtype.numpy)))
    index = x._wrap(place_like(x, at.reshape(-1)))
    summed = Tensor(ops.scatter_add(*values("fold", (table, index, rows))))
    image = summed.permute((1, 0)).reshape(n, c, high, wide)
    return image[:, :, ph : ph + size[0], pw : pw + size[1]]
