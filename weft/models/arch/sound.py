"""The convolutions by which encoders take sound, as products of rows: Whisper's over mels,
Moonshine's over samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import ops
from weft.core.dtypes import DType, float32, int32
from weft.models.arch.layers import activate, linear
from weft.models.arch.seq2seq_config import SAMPLED

Value = Any  # np.ndarray or graph Node
Weights = Mapping[str, Value]

EPS = 1e-5


def from_mels(act: DType, w: Weights, features: Value) -> Value:
    """Returns the input of Whisper's first layer, float32 [T, hidden], of features [2 T, mels]."""
    x = features
    for name, stride in (("conv1", 1), ("conv2", 2)):
        x = activate("gelu", _convolved(act, w, name, ops.pad(x, (1, 0), (1, 0)), stride))
    return ops.add(x, ops.cast(w["pos"], float32))


def from_samples(act: DType, w: Weights, samples: Value, count: Value) -> Value:
    """Returns the input of Moonshine's first layer, float32 [T, hidden], of samples [n, 1]. The
    first `count` [1] results of the first convolution are sound, the others padding."""
    first, second, third = (stride for _, stride in SAMPLED)
    x = ops.tanh(_convolved(act, w, "conv1", samples, first))
    x = _levelled(w, x, count)
    x = activate("gelu", _convolved(act, w, "conv2", x, second))
    return activate("gelu", _convolved(act, w, "conv3", x, third))


def _convolved(act: DType, w: Weights, name: str, x: Value, stride: int) -> Value:
    """Returns the convolution [out, O] of rows x[R, C] by a weight [O, C, K]."""
    _, wide, kernel = ops.aval(w[f"{name}.w"]).shape
    taps = ops.reshape(ops.transpose(w[f"{name}.w"], (0, 2, 1)), (-1, kernel * wide))
    return linear(act, _side_by_side(x, kernel, stride), taps, w.get(f"{name}.b"))


def _side_by_side(x: Value, kernel: int, stride: int) -> Value:
    """Returns windows of `kernel` rows of x[R, C], `stride` rows apart: [out, kernel * C]."""
    rows, wide = ops.aval(x).shape
    out = (rows - kernel) // stride + 1
    starts = range(0, kernel, stride)
    x = ops.pad(x, (0, 0), (max(0, starts[-1] + out * stride - rows), 0))
    parts = []
    for start in starts:
        part = ops.slice_(x, (start, 0), (start + out * stride, wide))
        part = ops.reshape(part, (out, stride * wide))
        parts.append(ops.slice_(part, (0, 0), (out, min(stride, kernel - start) * wide)))
    return ops.concat(parts, 1)


def _levelled(w: Weights, x: Value, count: Value) -> Value:
    """Returns x[R, C] with mean 0 and deviation 1 over its first `count` rows together."""
    shape = ops.aval(x).shape
    inside = ops.less(ops.iota(shape, 0, int32), _spread(count, shape))
    size = ops.mul(ops.cast(count, float32), float(shape[1]))

    def mean(v: Value) -> Value:
        total = ops.reshape(ops.sum_(ops.sum_(ops.where(inside, v, 0.0), 1), 0), (1,))
        return ops.div(total, size)

    apart = ops.sub(x, _spread(mean(x), shape))
    scale = ops.div(1.0, ops.sqrt(ops.add(mean(ops.mul(apart, apart)), EPS)))
    unit = ops.mul(apart, _spread(scale, shape))
    rows = (ops.cast(ops.reshape(w[f"level.{part}"], (1, -1)), float32) for part in "wb")
    weight, bias = (ops.broadcast(row, shape) for row in rows)
    return ops.add(ops.mul(unit, weight), bias)


def _spread(v: Value, shape: tuple[int, ...]) -> Value:
    return ops.broadcast(ops.reshape(v, (1, 1)), shape)
