"""Images of another size: Resize, one axis after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.importers.onnx.table import NodeCall, ints, op
from weft.importers.onnx.values import places
from weft.tensor.core import Tensor
from weft.tensor.resize import resample


@op("Resize", host=(1, 2, 3))
def resize(
    call: NodeCall, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Tensor:
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
        at = _coordinates(mode, places(out, "Resize"), n, out, scale, ends)
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
def upsample(call: NodeCall, x: Tensor, scales: Any = None) -> Tensor:
    """Before opset 10: nearest or linear, without an offset."""
    ratios = np.array(call.need("scales"), np.float32) if scales is None else scales
    older = NodeCall(call.op, call.attrs, 10, call.outputs, call.run, call.frame)
    made: Tensor = resize(older, x, ratios)
    return made


def _by_sizes(
    call: NodeCall, x: Tensor, axes: list[int], sizes: tuple[int, ...]
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
    """The position in the input of each element of the output."""
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        last = n * scale - 1  # the last position; n * scale may be fractional
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


def _along(call: NodeCall, x: Tensor, axis: int, at: np.ndarray, scale: float) -> Tensor:
    """x at places `at` of an axis."""
    n, mode = x.shape[axis], call.get("mode", "nearest")
    if mode == "nearest":
        return resample(x, axis, _nearest(call, at, n).astype(np.int64)[None])
    return resample(x, axis, *_taps(call, at, n, scale, mode))


def _nearest(call: NodeCall, at: np.ndarray, n: int) -> np.ndarray:
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


def _taps(
    call: NodeCall, at: np.ndarray, n: int, scale: float, mode: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(index, weights, inside) [taps, places] of the neighbours that count."""
    stretch = min(scale, 1.0) if call.get("antialias", 0) else 1.0
    reach = (1.0 if mode == "linear" else 2.0) / stretch
    base = np.floor(at).astype(np.int64)
    span = math.ceil(reach)
    places(2 * span * at.size, "the neighbours of Resize")
    index = base + np.arange(1 - span, span + 1)[:, None]
    weight = _kernel(call, (index - at) * stretch, mode)
    if call.get("exclude_outside", 0):
        weight = np.where((index < 0) | (index >= n), 0.0, weight)
    weight = weight / weight.sum(0)
    used = weight.any(1)
    used[0] |= not used.any()  # An empty result keeps one element.
    some = call.get("antialias", 0) or call.get("exclude_outside", 0)
    return index[used].clip(0, n - 1), weight[used], weight[used] != 0 if some else None


def _kernel(call: NodeCall, distance: np.ndarray, mode: str) -> np.ndarray:
    """The triangle, or the cubic of Keys (1981)."""
    d = np.abs(distance)
    if mode == "linear":
        made: np.ndarray = np.maximum(1 - d, 0)
        return made
    a = call.get("cubic_coeff_a", -0.75)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    made = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    return made
