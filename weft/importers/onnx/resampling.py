"""Images of another size, or seen at other places: Resize, GridSample, RoiAlign, DeformConv."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.importers.onnx.table import Call, ints, op
from weft.tensor.core import Tensor

# -- Resize: one axis after the other -------------------------------------------------------------


@op("Resize", host=(1, 2, 3))
def resize(call: Call, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    if call.version < 11:
        roi, scales = None, roi
    axes = [a % x.ndim for a in call.get("axes") or range(x.ndim)]
    if sizes is not None and sizes.size:
        wanted, ratios = _by_sizes(call, x, axes, ints(sizes))
    elif scales is not None and scales.size == len(axes):
        ratios = [float(s) for s in scales.reshape(-1)]
        wanted = [math.floor(x.shape[a] * s) for a, s in zip(axes, ratios)]
    else:
        raise ShapeError(f"Resize of {list(x.shape)} needs a scale or a size for {len(axes)} axes")
    mode = call.get(
        "coordinate_transformation_mode", "asymmetric" if call.version < 11 else "half_pixel"
    )
    wide = x.cast(dt.float32) if x.dtype.is_int else x
    area = (
        None if roi is None or mode != "tf_crop_and_resize" else [float(r) for r in roi.reshape(-1)]
    )
    outside: Any = None
    for i, axis in enumerate(axes):
        n, out, scale = x.shape[axis], wanted[i], ratios[i]
        ends = (0.0, 1.0) if area is None else (area[i], area[i + len(axes)])
        at = _coordinates(mode, np.arange(out), n, out, scale, ends)
        if mode == "tf_crop_and_resize":
            wrong = ((at < 0) | (at > n - 1)).reshape(
                [-1 if k == axis else 1 for k in range(x.ndim)]
            )
            outside = wrong if outside is None else outside | wrong
        if n != out or scale != 1.0 or area is not None:
            wide = _along(call, wide, axis, at, scale)
    if outside is not None and outside.any():
        wide = call.tensor(outside).where(float(call.get("extrapolation_value", 0.0)), wide)
    if x.dtype.is_int:
        info = weft.iinfo(x.dtype)
        wide = wide.round().maximum(float(info.min)).minimum(float(info.max))
    return wide.cast(x.dtype)


@op("Upsample", host=(1,))
def upsample(call: Call, x: Tensor, scales: Any = None) -> Tensor:
    """Before opset 10: nearest or linear, without an offset."""
    ratios = np.array(call.need("scales"), np.float32) if scales is None else scales
    older = Call(call.op, call.attrs, 10, call.outputs, call.run, call.frame)
    made: Tensor = resize(older, x, ratios)
    return made


def _by_sizes(
    call: Call, x: Tensor, axes: list[int], sizes: tuple[int, ...]
) -> tuple[list[int], list[float]]:
    if len(sizes) != len(axes):
        raise ShapeError(f"Resize: {len(sizes)} sizes for {len(axes)} axes")
    ratios = [s / x.shape[a] for s, a in zip(sizes, axes)]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(x.shape[a] * ratio + 0.5) for a in axes], [ratio] * len(axes)


def _coordinates(
    mode: str, i: np.ndarray, n: int, out: int, scale: float, ends: tuple[float, float]
) -> np.ndarray:
    """Where in the input each element of the output lies."""
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        last = n * scale - 1  # of a size that need not be whole
        return i * ((n - 1) / last) if last else i * 0.0
    if mode == "pytorch_half_pixel" and out == 1:
        return i * 0.0
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if mode == "tf_crop_and_resize":
        a, z = ends
        if out == 1:
            return i * 0.0 + 0.5 * (a + z) * (n - 1)
        return a * (n - 1) + i * (z - a) * (n - 1) / (out - 1)
    if mode == "half_pixel_symmetric":
        middle = n / 2 * (1 - out / (n * scale))
        return middle + (i + 0.5) / scale - 0.5
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise UsageError(f"the coordinates {mode!r:.40} of Resize")
    return (i + 0.5) / scale - 0.5


def _along(call: Call, x: Tensor, axis: int, at: np.ndarray, scale: float) -> Tensor:
    """x at places `at` of an axis."""
    n, mode = x.shape[axis], call.get("mode", "nearest")
    if mode == "nearest":
        return x.take(_nearest(call, at, n).astype(np.int64), axis)
    weights = _weights(call, at, n, scale, mode)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    total: Any = None
    for index, weight in weights:
        column = call.tensor(weight.astype(np.float32)).reshape(shape)
        share = x.take(index, axis) * column.cast(x.dtype)
        total = share if total is None else total + share
    made: Tensor = total
    return made


def _nearest(call: Call, at: np.ndarray, n: int) -> np.ndarray:
    how = call.get("nearest_mode", "floor" if call.version < 11 else "round_prefer_floor")
    ways: dict[str, Any] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    }
    if how not in ways:
        raise UsageError(f"nearest_mode {how!r:.40} of Resize")
    found = ways[how](at)
    made: np.ndarray = np.clip(found, 0, n - 1)
    return made


def _weights(
    call: Call, at: np.ndarray, n: int, scale: float, mode: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(index, weight) of each neighbour that counts, for all places."""
    stretch = min(scale, 1.0) if call.get("antialias", 0) else 1.0
    reach = (1.0 if mode == "linear" else 2.0) / stretch
    base = np.floor(at).astype(np.int64)
    span = math.ceil(reach)
    found = []
    for offset in range(1 - span, span + 1):
        index = base + offset
        weight = _kernel(call, (index - at) * stretch, mode)
        if call.get("exclude_outside", 0):
            weight = np.where((index < 0) | (index >= n), 0.0, weight)
        found.append((index.clip(0, n - 1), weight))
    total = sum(w for _, w in found)
    return [(i, w / total) for i, w in found if w.any()]


def _kernel(call: Call, distance: np.ndarray, mode: str) -> np.ndarray:
    """The triangle, or the cubic of Keys (1981)."""
    d = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - d, 0)
    a = call.get("cubic_coeff_a", -0.75)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    made: np.ndarray = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return made


# -- places that are data -------------------------------------------------------------------------


@op("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    """x[N, C, ...] at the places grid[N, ..., rank] holds, -1 to 1, the last axis of x first."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(
        call.get("mode", "linear"), call.get("mode", "linear")
    )
    padding, corners = call.get("padding_mode", "zeros"), call.get("align_corners", 0)
    size = x.shape[2:]
    rank = len(size)
    wide = grid.cast(dt.compute_dtype(grid.dtype))
    at = []
    for i, n in enumerate(size):
        g = wide[..., rank - 1 - i]
        at.append((g + 1.0) * ((n - 1) / 2) if corners else ((g + 1.0) * n - 1.0) * 0.5)
    if mode == "nearest":
        return sampled(call, x, [a.round() for a in at], padding, corners)
    taps = [(0, 1)] * rank if mode == "bilinear" else [(-1, 0, 1, 2)] * rank
    if mode == "bilinear" and padding != "zeros":
        at = [_inside(a, n, padding, corners) for a, n in zip(at, size)]
    base = [a.floor() for a in at]
    total: Any = None
    for offsets in itertools.product(*taps):
        places = [b + float(o) for b, o in zip(base, offsets)]
        weight = functools.reduce(
            lambda a, b: a * b, (_share(p - a, mode) for p, a in zip(places, at))
        )
        share = sampled(call, x, places, padding, corners) * weight.unsqueeze(1).cast(x.dtype)
        total = share if total is None else total + share
    made: Tensor = total
    return made


def _share(distance: Tensor, mode: str) -> Tensor:
    d = distance.abs()
    if mode == "bilinear":
        return (1.0 - d).maximum(0.0)
    a = -0.75
    near = ((a + 2) * d - (a + 3)) * d * d + 1.0
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return (d <= 1.0).where(near, (d < 2.0).where(far, 0.0))


def _inside(at: Tensor, n: int, padding: str, corners: int) -> Tensor:
    """Places moved inside: to the border, or mirrored at it."""
    if padding == "reflection":
        low, span = (0.0, float(n - 1)) if corners else (-0.5, float(n))
        if not span:
            return at * 0.0
        off = (at - low).abs()
        turns = (off / span).floor()
        rest = off - turns * span
        at = (turns % 2.0 == 0.0).where(rest, span - rest) + low
    return at.maximum(0.0).minimum(float(n - 1))


def sampled(call: Call, x: Tensor, places: list[Tensor], padding: str, corners: int) -> Tensor:
    """x[N, C, ...] at whole places [N, ...]: [N, C, ...]; zeros outside where padding says so."""
    n, c, *size = x.shape
    seen: Any = None
    flat: Any = None
    for at, width in zip(places, size):
        if padding == "zeros":
            ok = (at >= 0.0) & (at <= width - 1.0)
            seen = ok if seen is None else seen & ok
        one = _inside(at, width, padding, corners).cast(dt.int32)
        flat = one if flat is None else flat * width + one
    rows = flat.reshape(n, 1, -1).expand(n, c, math.prod(flat.shape[1:]))
    found = x.reshape(n, c, -1).take_along_axis(rows, 2).reshape(n, c, *flat.shape[1:])
    return found if seen is None else seen.unsqueeze(1).where(found, 0.0)


@op("RoiAlign")
def roi_align(call: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    """The average (or largest) of bilinear samples in each cell of each region."""
    modern = call.version >= 16
    mode = call.get(
        "coordinate_transformation_mode", "half_pixel" if modern else "output_half_pixel"
    )
    h, w = call.get("output_height", 1), call.get("output_width", 1)
    scale, ratio = call.get("spatial_scale", 1.0), call.get("sampling_ratio", 0)
    offset = 0.5 if mode == "half_pixel" else 0.0
    boxes = rois * scale - offset
    x0, y0, x1, y1 = (boxes[:, i] for i in range(4))
    wide, high = x1 - x0, y1 - y0
    if mode != "half_pixel":
        wide, high = wide.maximum(1.0), high.maximum(1.0)
    if ratio > 0:
        return _roi_cells(call, x, batch, (y0, x0), (high, wide), (h, w), (ratio, ratio))
    counts = [
        np.ceil(call.host(v, "the size of regions") / m).astype(int)
        for v, m in ((high, h), (wide, w))
    ]
    rows = []
    for i, (rows_, columns) in enumerate(zip(*counts)):
        one = slice(i, i + 1)
        start, extent = (y0[one], x0[one]), (high[one], wide[one])
        samples = (max(int(rows_), 1), max(int(columns), 1))
        rows.append(_roi_cells(call, x, batch[one], start, extent, (h, w), samples))
    return weft.concat(rows, axis=0)


def _roi_cells(
    call: Call, x: Tensor, batch: Tensor, start: tuple[Tensor, Tensor], size: tuple[Tensor, Tensor],
    cells: tuple[int, int], samples: tuple[int, int],
) -> Tensor:  # fmt: skip
    images = x.take(batch.cast(dt.int32), 0)
    places = []
    for low, extent, count, each in zip(start, size, cells, samples):
        line = (np.arange(count * each) + 0.5) / (count * each)
        places.append(low.unsqueeze(1) + extent.unsqueeze(1) * call.tensor(line.astype(np.float32)))
    r, c = images.shape[:2]
    rows, columns = places[0].shape[1], places[1].shape[1]
    y = places[0].unsqueeze(2).expand(r, rows, columns)
    z = places[1].unsqueeze(1).expand(r, rows, columns)
    outside = [(v < -1.0) | (v > float(n)) for v, n in zip((y, z), x.shape[2:])]
    at = [v.maximum(0.0).minimum(float(n - 1)) for v, n in zip((y, z), x.shape[2:])]
    base = [a.floor() for a in at]
    mode = call.get("mode", "avg")
    parts = []
    for offsets in itertools.product((0.0, 1.0), repeat=2):
        near = [b + o for b, o in zip(base, offsets)]
        weight = _share(near[0] - at[0], "bilinear") * _share(near[1] - at[1], "bilinear")
        parts.append(sampled(call, images, near, "border", 1) * weight.unsqueeze(1))
    whole = functools.reduce(lambda a, b: a.maximum(b) if mode == "max" else a + b, parts)
    whole = (outside[0] | outside[1]).unsqueeze(1).where(0.0, whole)
    grouped = whole.reshape(r, c, cells[0], samples[0], cells[1], samples[1])
    return grouped.max((3, 5)) if mode == "max" else grouped.mean((3, 5))


@op("MaxRoiPool", host=(1,))
def max_roi_pool(call: Call, x: Tensor, rois: np.ndarray) -> Tensor:
    """The largest in each cell of each region [image, x0, y0, x1, y1]."""
    h, w = call.need("pooled_shape")
    scale = call.get("spatial_scale", 1.0)
    made = []
    for row in rois:
        x0, y0, x1, y1 = (round(float(v) * scale) for v in row[1:])
        high, wide = max(y1 - y0 + 1, 1), max(x1 - x0 + 1, 1)
        cells = []
        for i, j in itertools.product(range(h), range(w)):
            top, bottom = (
                min(max(y0 + v, 0), x.shape[2]) for v in (i * high // h, -(-(i + 1) * high // h))
            )
            left, right = (
                min(max(x0 + v, 0), x.shape[3]) for v in (j * wide // w, -(-(j + 1) * wide // w))
            )
            cell = x[int(row[0]), :, top:bottom, left:right]
            cells.append(cell.max((1, 2)) if 0 not in cell.shape else x[0, :, 0, 0] * 0.0)
        made.append(weft.stack(cells, 1).reshape(x.shape[1], h, w))
    return weft.stack(made, 0)


@op("DeformConv")
def deform_conv(
    call: Call, x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A convolution over two axes whose window is taken at places moved by `offset`."""
    kernel = weight.shape[2:]
    strides, dilations = call.get("strides") or [1, 1], call.get("dilations") or [1, 1]
    pads, groups = call.get("pads") or [0, 0, 0, 0], call.get("group", 1)
    parts = call.get("offset_group", 1)
    n, c = x.shape[:2]
    high, wide = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    moved = offset.reshape(n, parts, taps, 2, high, wide)
    weights = None if mask is None else mask.reshape(n, parts, taps, high, wide)
    images = x.reshape(n * parts, c // parts, *x.shape[2:])
    columns = []
    for tap, (i, j) in enumerate(itertools.product(range(kernel[0]), range(kernel[1]))):
        lines = [
            np.arange(m) * s + k * d - p
            for m, s, k, d, p in zip((high, wide), strides, (i, j), dilations, pads[:2])
        ]
        at = [
            moved[:, :, tap, axis].reshape(n * parts, high, wide)
            + call.tensor(line.astype(np.float32)).reshape((-1, 1) if axis == 0 else (1, -1))
            for axis, line in enumerate(lines)
        ]
        base = [a.floor() for a in at]
        total: Any = None
        for near in itertools.product((0.0, 1.0), repeat=2):
            places = [b + o for b, o in zip(base, near)]
            share = _share(places[0] - at[0], "bilinear") * _share(places[1] - at[1], "bilinear")
            part = sampled(call, images, places, "zeros", 1) * share.unsqueeze(1)
            total = part if total is None else total + part
        if weights is not None:
            total = total * weights[:, :, tap].reshape(n * parts, 1, high, wide)
        columns.append(total.reshape(n, c, high * wide))
    seen = weft.stack(columns, 2).reshape(n, groups, c // groups * taps, high * wide)
    rows = weight.reshape(1, groups, weight.shape[0] // groups, -1)
    out = (rows @ seen).reshape(n, weight.shape[0], high, wide)
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)
