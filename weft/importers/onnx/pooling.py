"""Windows of images [N, C, ...]: the largest, the average, the norm; and those taken back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import LimitError, ShapeError
from weft.importers.onnx.nets import Sides, sides_of
from weft.importers.onnx.table import NodeCall, ints, op
from weft.importers.onnx.values import places
from weft.tensor.core import Tensor
from weft.tensor.distances import power, root
from weft.tensor.pooling import places as window_places
from weft.tensor.spatial import MOST_NEIGHBOURS


@dataclass(frozen=True)
class Window:
    """The windows of a node: sizes, steps, padding (with what ceil_mode adds), and how many."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    sides: Sides
    beyond: tuple[int, ...]  # the part of the padding after each axis that only ceil_mode adds
    count: tuple[int, ...]


def window_of(call: NodeCall, size: Sequence[int]) -> Window:
    """The windows over axes of the given sizes."""
    rank = len(size)
    kernel = tuple(call.need("kernel_shape"))
    strides = tuple(call.get("strides") or [1] * rank)
    dilations = tuple(call.get("dilations") or [1] * rank)
    if not all(rank == len(v) and min(v, default=1) > 0 for v in (kernel, strides, dilations)):
        raise ShapeError(f"a window of {kernel}, {strides} apart, over {rank} axes")
    sides = sides_of(call, size, kernel, strides, dilations)
    ceil = call.get("ceil_mode", 0)
    whole, beyond, count = [], [], []
    for n, k, s, d, (low, high) in zip(size, kernel, strides, dilations, sides):
        room = n + low + high - d * (k - 1) - 1
        windows = (-(-room // s) if ceil else room // s) + 1
        # the window would start in the padding after the axis
        if ceil and (windows - 1) * s >= n + low:
            windows -= 1
        more = max((windows - 1) * s + d * (k - 1) + 1 - n - low - high, 0)
        places(n + low + high + more, call.op)
        if windows < 1 or min(low, high) < 0:
            raise ShapeError(f"a window of {k} elements {d} apart in {n + low + high}")
        whole.append((low, high + more))
        beyond.append(more)
        count.append(windows)
    return Window(kernel, strides, dilations, whole, tuple(beyond), tuple(count))


def joined(x: Tensor, window: Window, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """All places of each window of a padded x joined, one axis after the other."""
    if max(window.kernel) > MOST_NEIGHBOURS:
        raise LimitError(f"a window of {window.kernel}; at most {MOST_NEIGHBOURS} along an axis")
    for axis, (k, s, d, n) in enumerate(
        zip(window.kernel, window.strides, window.dilations, window.count), 2
    ):
        total: Any = None
        for i in range(k):
            key = [slice(None)] * x.ndim
            key[axis] = slice(i * d, i * d + (n - 1) * s + 1, s)
            total = x[tuple(key)] if total is None else join(total, x[tuple(key)])
        x = total
    return x


_MEAN = (weft.functional.avg_pool1d, weft.functional.avg_pool2d, weft.functional.avg_pool3d)


def _pool(functions: Sequence[Any], x: Tensor) -> Any:
    """weft's own pool for images like x; None where it has none."""
    return functions[x.ndim - 3] if 3 <= x.ndim <= 5 and x.dtype.is_float else None


def summed(x: Tensor, window: Window) -> Tensor:
    """The sum of each window, of x padded with zeros."""
    x = x.pad([(0, 0), (0, 0), *window.sides])
    pool = _pool(_MEAN, x)
    if pool is not None and set(window.dilations) == {1}:
        made: Tensor = pool(x, window.kernel, window.strides, divisor_override=1)
        return made
    return joined(x, window, lambda a, b: a + b)


@op("AveragePool")
def average_pool(call: NodeCall, x: Tensor) -> Tensor:
    window = window_of(call, x.shape[2:])
    wide = x.cast(dt.compute_dtype(x.dtype))
    return (summed(wide, window) * call.tensor(_shares(call, x, window))).cast(x.dtype)


def _shares(call: NodeCall, x: Tensor, window: Window) -> np.ndarray:
    """1 / the count of each window: elements, and padding if the node says so; never the part that
    ceil_mode adds."""
    total = np.ones((), np.float64)
    include = call.get("count_include_pad", 0)
    facts = zip(
        x.shape[2:], window.kernel, window.strides, window.dilations, window.sides, window.beyond,
        window.count,
    )  # fmt: skip
    for n, k, s, d, (low, high), more, count in facts:
        at = places(count * k, call.op).reshape(count, k)
        at = at // k * s + at % k * d
        seen = at < low + n + high - more if include else (at >= low) & (at < low + n)
        total = total[..., None] * seen.sum(1)
    made: np.ndarray = (1.0 / np.maximum(total, 1)).astype(np.float32)
    return made


@op("MaxPool")
def max_pool(call: NodeCall, x: Tensor) -> Any:
    """The largest of each window, and its number in the flattened x: row-major, or column-major
    within an image."""
    window = window_of(call, x.shape[2:])
    largest: Tensor = x._call(
        "max_pool", kernel=window.kernel, stride=window.strides, padding=tuple(window.sides),
        dilation=window.dilations,
    )  # fmt: skip
    if not call.wants(1):
        return largest
    if math.prod(window.kernel) > MOST_NEIGHBOURS:
        raise LimitError(f"indices of windows of {window.kernel}; at most {MOST_NEIGHBOURS} places")
    size, rank = x.shape[2:], x.ndim - 2
    facts = zip(window.count, window.kernel, window.strides, window.dilations, window.sides)
    reads = [
        (np.arange(count) * s - low)[:, None] + np.arange(k) * d
        for count, k, s, d, (low, _) in facts
    ]
    by_column = bool(call.get("storage_order", 0))
    steps = [math.prod(size[:i]) for i in range(rank)] if by_column else None
    index = window_places(x, largest, reads, steps)
    n, c = x.shape[:2]
    base = call.tensor((np.arange(n * c) * math.prod(size)).astype(np.int32))
    return largest, index + base.reshape(n, c, *([1] * rank))


@op("LpPool")
def lp_pool(call: NodeCall, x: Tensor) -> Tensor:
    wide, p = x.cast(dt.compute_dtype(x.dtype)), float(call.get("p", 2))
    return root(summed(power(wide, p), window_of(call, x.shape[2:])), p).cast(x.dtype)


def _everywhere(name: str, fn: Callable[[NodeCall, Tensor, tuple[int, ...]], Tensor]) -> None:
    op(name)(lambda call, x: fn(call, x, tuple(range(2, x.ndim))))


_everywhere("GlobalAveragePool", lambda call, x, axes: x.mean(axes, keepdims=True))
_everywhere("GlobalMaxPool", lambda call, x, axes: x.max(axes, keepdims=True))
_everywhere("GlobalLpPool", lambda call, x, axes: weft.functional.vector_norm(
    x, float(call.get("p", 2)), axes, keepdims=True))  # fmt: skip


@op("MaxUnpool", host=(2,))
def max_unpool(call: NodeCall, x: Tensor, indices: Tensor, wanted: Any = None) -> Tensor:
    """Each element of x at its index in a larger tensor of zeros."""
    kernel = call.need("kernel_shape")
    strides = call.get("strides") or [1] * len(kernel)
    pads = call.get("pads") or [0] * (2 * len(kernel))
    size = [
        (n - 1) * s + k - pads[i] - pads[i + len(kernel)]
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel))
    ]
    inner = (*x.shape[:2], *size)
    flat = weft.zeros((math.prod(inner),), x.dtype)  # indices count in the whole batch
    filled = weft.functional.update(flat, indices.reshape(-1).cast("int32"), x.reshape(-1)).reshape(
        inner
    )
    if wanted is None:
        return filled
    whole = ints(wanted)  # indices are of the smaller shape; the rest is zeros behind
    return filled.pad([(0, w - n) for w, n in zip(whole, inner)])
