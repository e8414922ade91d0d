"""Images seen at places that are data: GridSample, RoiAlign, DeformConv."""

from __future__ import annotations

import functools
import itertools
import operator

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.importers.onnx.nets import steps_of
from weft.importers.onnx.table import MICROSOFT, NodeCall, op
from weft.importers.onnx.values import places
from weft.tensor.core import Tensor
from weft.tensor.sampling import weighted


@op("GridSample", domain=MICROSOFT)
@op("GridSample")
def grid_sample(call: NodeCall, x: Tensor, grid: Tensor) -> Tensor:
    """x[N, C, ...] at the places grid[N, ..., rank] holds, -1 to 1, the last axis of x first."""
    mode = call.get("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    corners = bool(call.get("align_corners", 0))
    return weft.functional.grid_sample(x, grid, mode, call.get("padding_mode", "zeros"), corners)


@op("RoiAlign")
def roi_align(call: NodeCall, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
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
        if min(rows_, columns) <= 0:  # an empty region has no samples
            rows.append(weft.zeros((1, x.shape[1], h, w), x.dtype))
            continue
        one = slice(i, i + 1)
        start, extent = (y0[one], x0[one]), (high[one], wide[one])
        samples = (int(rows_), int(columns))
        rows.append(_roi_cells(call, x, batch[one], start, extent, (h, w), samples))
    return weft.concat(rows, axis=0)


def _roi_cells(
    call: NodeCall, x: Tensor, batch: Tensor, start: tuple[Tensor, Tensor],
    size: tuple[Tensor, Tensor], cells: tuple[int, int], samples: tuple[int, int],
) -> Tensor:  # fmt: skip
    images = x.take(batch.cast(dt.int32), 0)
    centres = []
    for low, extent, count, each in zip(start, size, cells, samples):
        line = (places(count * each, "RoiAlign") + 0.5) / (count * each)
        shares = call.tensor(line.astype(np.float32))
        centres.append(low.unsqueeze(1) + extent.unsqueeze(1) * shares)
    r, c = images.shape[:2]
    rows, columns = centres[0].shape[1], centres[1].shape[1]
    y = centres[0].unsqueeze(2).expand(r, rows, columns)
    z = centres[1].unsqueeze(1).expand(r, rows, columns)
    outside = [(v < -1.0) | (v > float(n)) for v, n in zip((y, z), x.shape[2:])]
    at = [v.maximum(0.0).minimum(float(n - 1)) for v, n in zip((y, z), x.shape[2:])]
    mode = call.get("mode", "avg")
    parts = weighted(images, at, padding="border")
    whole = functools.reduce(lambda a, b: a.maximum(b) if mode == "max" else a + b, parts)
    whole = (outside[0] | outside[1]).unsqueeze(1).where(0.0, whole)
    grouped = whole.reshape(r, c, cells[0], samples[0], cells[1], samples[1])
    return grouped.max((3, 5)) if mode == "max" else grouped.mean((3, 5))


def _away(x: np.ndarray) -> np.ndarray:
    """The nearest whole numbers, halves away from zero, as C's round gives."""
    whole = np.trunc(x)
    made: np.ndarray = whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1.0, x), 0.0)
    return made


@op("MaxRoiPool", host=(1,))
def max_roi_pool(call: NodeCall, x: Tensor, rois: np.ndarray) -> Tensor:
    """The largest in each cell of each region [image, x0, y0, x1, y1]."""
    h, w = call.need("pooled_shape")
    scale = call.get("spatial_scale", 1.0)
    made = []
    nothing = call.tensor(np.zeros(x.shape[1], x.dtype.numpy))
    for row in rois:
        x0, y0, x1, y1 = map(int, _away(row[1:].astype(np.float32) * np.float32(scale)))
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
            cells.append(cell.max((1, 2)) if 0 not in cell.shape else nothing)
        made.append(weft.stack(cells, 1).reshape(x.shape[1], h, w))
    return weft.stack(made, 0)


@op("DeformConv")
def deform_conv(
    call: NodeCall, x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A convolution over two axes whose window reads places moved by `offset`."""
    kernel = weight.shape[2:]
    strides, dilations = steps_of(call, x, weight)
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
        total = functools.reduce(operator.add, weighted(images, at))
        if weights is not None:
            total = total * weights[:, :, tap].reshape(n * parts, 1, high, wide)
        columns.append(total.reshape(n, c, high * wide))
    seen = weft.stack(columns, 2).reshape(n, groups, c // groups * taps, high * wide)
    rows = weight.reshape(1, groups, weight.shape[0] // groups, -1)
    out = (rows @ seen).reshape(n, weight.shape[0], high, wide)
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)
