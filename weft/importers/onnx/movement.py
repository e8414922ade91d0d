"""Operators that give, join, cut and move elements, and those that make tensors of shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft
from weft.core.errors import FileFormatError, LimitError, ShapeError
from weft.importers.onnx.run import SMALL
from weft.importers.onnx.table import MICROSOFT, NodeCall, Value, ints, is_host, lib, op, scalar
from weft.importers.onnx.values import MOST_PLACES, numpy_dtype, numpy_type, places
from weft.tensor.core import Tensor
from weft.tensor.padding import padded as axes_padded


@op("Constant")
def constant(call: NodeCall) -> Value:
    """One whose value a function's caller gives; others are constants of their graph."""
    from weft.importers.onnx.graph import as_array

    found = [(k, v) for k, v in call.attrs.items()]
    if len(found) != 1:
        raise FileFormatError(f"a Constant has one value, not {len(found)}")
    return as_array(*found[0])


@op("Shape", raw=True)
def shape(call: NodeCall, x: Value) -> np.ndarray:
    start, stop = call.get("start", 0), call.get("end")
    return np.array(x.shape[start:stop], np.int64)


@op("Size", raw=True)
def size(call: NodeCall, x: Value) -> np.ndarray:
    return np.array(math.prod(x.shape), np.int64)


@op("Reshape", host=(1,), either=True)
def reshape(call: NodeCall, x: Value, wanted: np.ndarray) -> Value:
    """To a shape in which 0 keeps a size (unless allowzero) and -1 is what is left."""
    sizes = list(ints(wanted))
    if not call.get("allowzero", 0):
        if any(d == 0 and i >= len(x.shape) for i, d in enumerate(sizes)):
            raise ShapeError(f"shape {sizes} keeps an axis that {list(x.shape)} lacks")
        sizes = [x.shape[i] if d == 0 else d for i, d in enumerate(sizes)]
    if -1 in sizes:
        known = math.prod(d for d in sizes if d != -1)
        sizes[sizes.index(-1)] = math.prod(x.shape) // known if known else 0
    return x.reshape(sizes)


@op("Flatten", either=True)
def flatten(call: NodeCall, x: Value) -> Value:
    axis = call.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _axes(call: NodeCall, given: Any) -> tuple[int, ...] | None:
    """Axes: an operand since opset 13, an attribute before."""
    axes = call.get("axes") if call.version < 13 or given is None else given
    return None if axes is None else ints(axes)


@op("Squeeze", host=(1,), either=True)
def squeeze(call: NodeCall, x: Value, axes: Any = None) -> Value:
    chosen = _axes(call, axes)
    if chosen is None:
        return x.reshape([d for d in x.shape if d != 1])
    return x.squeeze(chosen)


@op("Unsqueeze", host=(1,), either=True)
def unsqueeze(call: NodeCall, x: Value, axes: Any = None) -> Value:
    chosen = _axes(call, axes) or ()
    rank = x.ndim + len(chosen)
    places = {a + rank if a < 0 else a for a in chosen}
    if len(places) < len(chosen) or not all(0 <= a < rank for a in places):
        raise ShapeError(f"axes {list(chosen)} for {rank} axes")
    sizes = iter(x.shape)
    return x.reshape([1 if i in places else next(sizes) for i in range(rank)])


@op("ExpandDims", domain=MICROSOFT, host=(1,), either=True)
def expand_dims(call: NodeCall, x: Value, axis: np.ndarray) -> Value:
    at, rank = int(scalar(axis)), x.ndim + 1
    if not -rank <= at < rank:
        raise ShapeError(f"axis {at} for {rank} axes")
    at %= rank
    return x.reshape([*x.shape[:at], 1, *x.shape[at:]])


@op("Transpose", either=True)
def transpose(call: NodeCall, x: Value) -> Value:
    order = call.get("perm") or list(range(x.ndim))[::-1]
    return x.transpose(order) if is_host(x) else x.permute(order)


@op("Concat", either=True)
def concat(call: NodeCall, *parts: Value) -> Value:
    return lib(*parts).concat(list(parts), axis=call.need("axis"))


@op("Split", host=(1,), either=True)
def split(call: NodeCall, x: Value, sizes: Any = None) -> tuple[Value, ...]:
    axis = call.get("axis", 0)
    given = call.get("split") if sizes is None else sizes
    count = call.get("num_outputs", len(call.outputs))
    n = x.shape[axis]
    each = -(-n // count)
    lengths = (
        ints(given)
        if given is not None
        else [min(each, max(n - i * each, 0)) for i in range(count)]
    )
    if sum(lengths) != n or min(lengths, default=0) < 0 or len(lengths) != len(call.outputs):
        raise ShapeError(f"sizes {list(lengths)} of an axis of {n}")
    return tuple(cut(x, axis, sum(lengths[:i]), size) for i, size in enumerate(lengths))


def cut(x: Value, axis: int, start: int, length: int) -> Value:
    """`length` elements along an axis."""
    if not is_host(x):
        return x.narrow(axis, start, length)
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, start + length),)]


@op("Slice", host=(1, 2, 3, 4), either=True)
def slice_(
    call: NodeCall,
    x: Value,
    starts: Any = None,
    ends: Any = None,
    axes: Any = None,
    steps: Any = None,
) -> Value:
    if call.version < 10:
        starts, ends, axes = call.need("starts"), call.need("ends"), call.get("axes")
    first, last = ints(starts), ints(ends)
    chosen = range(len(first)) if axes is None else ints(axes)
    by = [1] * len(first) if steps is None else ints(steps)
    key = [slice(None)] * x.ndim
    for axis, a, z, s in zip(chosen, first, last, by):
        # Through the first element going back is an end below all, which Python writes as None.
        stop = None if s < 0 and z < -x.shape[axis] else z
        key[axis] = slice(a, stop, s)
    return x[tuple(key)]


@op("Gather", either=True)
def gather(call: NodeCall, x: Value, indices: Value) -> Value:
    axis = call.get("axis", 0)
    if is_host(x) and is_host(indices):
        return np.take(x, indices, axis)
    return x.take(indices, axis)


@op("Expand", host=(1,), either=True)
def expand(call: NodeCall, x: Value, wanted: np.ndarray) -> Value:
    full = np.broadcast_shapes(x.shape, ints(wanted))
    return lib(x).broadcast_to(x, full)


@op("Tile", host=(1,), either=True)
def tile(call: NodeCall, x: Value, times: np.ndarray) -> Value:
    if is_host(x) and math.prod(x.shape) * math.prod(ints(times)) > SMALL:
        x = call.tensor(x)
    return np.tile(x, ints(times)) if is_host(x) else weft.tile(x, ints(times))


@op("ConstantOfShape", host=(0,), either=True)
def constant_of_shape(call: NodeCall, wanted: np.ndarray) -> Value:
    value = call.get("value")
    one = np.zeros((), np.float32) if value is None else value.reshape(())
    return np.broadcast_to(one, ints(wanted))


@op("Range", host=(0, 1, 2), either=True)
def range_(call: NodeCall, start: np.ndarray, stop: np.ndarray, step: np.ndarray) -> Value:
    if not scalar(step):
        raise ShapeError("a Range with a step of 0")
    first, by = start.reshape(()), step.reshape(())
    count = max(math.ceil((scalar(stop) - scalar(start)) / scalar(step)), 0)
    return (first + places(count, "a Range").astype(start.dtype) * by).astype(start.dtype)


@op("EyeLike", either=True)
def eye_like(call: NodeCall, x: Value) -> Value:
    dtype = numpy_type(call.attrs["dtype"], "dtype") if "dtype" in call.attrs else numpy_dtype(x)
    return np.eye(x.shape[0], x.shape[1], call.get("k", 0), dtype)


@op("Trilu", domain=MICROSOFT, host=(1,), either=True)
@op("Trilu", host=(1,), either=True)
def trilu(call: NodeCall, x: Value, k: Any = None) -> Value:
    offset = 0 if k is None else scalar(k)
    upper = call.get("upper", 1)
    if is_host(x):
        return np.triu(x, offset) if upper else np.tril(x, offset)
    rows, columns = x.shape[-2:]
    seen = np.triu(np.ones((rows, columns), bool), offset) if upper else np.tril(
        np.ones((rows, columns), bool), offset
    )  # fmt: skip
    return call.tensor(seen).where(x, False if numpy_dtype(x) == np.bool_ else 0)


@op("Pad", host=(1, 2, 3))
def pad(call: NodeCall, x: Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    if call.version < 11:
        pads, fill = call.need("pads"), call.get("value", 0.0)
    else:
        fill = 0 if value is None or not value.size else scalar(value)
    given = ints(pads)
    chosen = list(range(x.ndim)) if axes is None else [a % x.ndim for a in ints(axes)]
    if len(given) != 2 * len(chosen):
        raise ShapeError(f"{len(given)} pads for {len(chosen)} axes")
    mode = call.get("mode", "constant")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        widths[axis] = (given[i], given[i + len(chosen)])
    return padded(x, widths, mode, fill)


def padded(x: Tensor, widths: list[tuple[int, int]], mode: str, fill: Any = 0) -> Tensor:
    """Elements added before and after each axis, or taken away where a width is negative: `fill`,
    or those of x at its "edge", mirrored ("reflect"), or from its other end ("wrap")."""
    for axis, (low, high) in enumerate(widths):
        low, high, n = min(low, 0), min(high, 0), x.shape[axis]
        if low or high:
            x = x.narrow(axis, -low, n + low + high)
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    if not any(a or b for a, b in widths):
        return x
    if max(n + a + b for n, (a, b) in zip(x.shape, widths)) > MOST_PLACES:
        raise LimitError(f"{list(x.shape)} padded by {widths}: at most {MOST_PLACES} along an axis")
    return axes_padded(x, widths, mode, int(fill) if x.dtype.is_int else float(fill))


@op("DepthToSpace")
def depth_to_space(call: NodeCall, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = call.need("blocksize")
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // (b * b), h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(call: NodeCall, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = call.need("blocksize")
    x = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.permute(order).reshape(n, c * b * b, h // b, w // b)


@op("ReverseSequence", host=(1,))
def reverse_sequence(call: NodeCall, x: Tensor, lengths: np.ndarray) -> Tensor:
    time, batch = call.get("time_axis", 0), call.get("batch_axis", 1)
    steps = np.arange(x.shape[time])
    at = np.stack([np.where(steps < n, n - 1 - steps, steps) for n in ints(lengths)])
    at = at if batch < time else at.T
    sizes = [d if i in (time, batch) else 1 for i, d in enumerate(x.shape)]
    index = call.tensor(at.astype(np.int32)).reshape(sizes).expand(x.shape)
    return x.take_along_axis(index, time)


@op("CenterCropPad", host=(1,))
def center_crop_pad(call: NodeCall, x: Tensor, wanted: np.ndarray) -> Tensor:
    axes = call.get("axes") or range(x.ndim)
    for axis, size in zip(axes, ints(wanted)):
        have = x.shape[axis]
        if size < have:
            x = x.narrow(axis, (have - size) // 2, size)
        elif size > have:
            low = (size - have) // 2
            sides = [(0, 0)] * x.ndim
            sides[axis] = (low, size - have - low)
            x = padded(x, sides, "constant")
    return x


@op("OneHot", host=(1,))
def one_hot(call: NodeCall, indices: Tensor, depth: np.ndarray, values: Tensor) -> Tensor:
    """Values[1] at each index, of which -depth..-1 count from the end, and values[0] elsewhere."""
    n = int(scalar(depth))
    axis = call.get("axis", -1)
    axis += indices.ndim + 1 if axis < 0 else 0
    at = indices.cast("int32").unsqueeze(axis)
    sizes = [n if i == axis else 1 for i in range(indices.ndim + 1)]
    line = call.tensor(places(n, "OneHot").astype(np.int32)).reshape(sizes)
    hit = (at < 0).where(at + n, at) == line
    return hit.where(values[1:2].reshape(()), values[0:1].reshape(()))
