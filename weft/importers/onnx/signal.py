"""Transforms of signals: DFT and STFT as products with matrices of cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft.core.errors import LimitError, ShapeError
from weft.importers.onnx.table import NodeCall, op, scalar
from weft.importers.onnx.values import numpy_type, places
from weft.tensor.core import Tensor

MOST = 1 << 26  # elements of a matrix of cosines


def _matrices(call: NodeCall, n: int, count: int, sign: float) -> tuple[Tensor, Tensor]:
    """cos and sin [n, count] of sign 2 pi i k / n."""
    if n * count > MOST:
        raise LimitError(
            f"a transform of {n} points; weft multiplies by matrices of at most {MOST}"
        )
    turns = np.outer(np.arange(n), np.arange(count)) % n * (sign * 2 * np.pi / n)
    return tuple(call.tensor(f(turns).astype(np.float32)) for f in (np.cos, np.sin))  # type: ignore[return-value]


@op("DFT", host=(1, 2))
def dft(call: NodeCall, x: Tensor, length: Any = None, axis: Any = None) -> Tensor:
    """Along an axis of x[..., 1 or 2] (reals, or reals and imaginaries)."""
    at = call.get("axis", 1) if call.version < 20 else -2 if axis is None else int(scalar(axis))
    at %= x.ndim
    inverse, half = call.get("inverse", 0), call.get("onesided", 0)
    turned = x.transpose(at, -2)
    n = turned.shape[-2] if length is None else int(scalar(length))
    if inverse and half:
        return _real_inverse(call, turned, n if length is not None else 2 * (n - 1)).transpose(
            at, -2
        )
    turned = _fitted(turned, n)
    count = n // 2 + 1 if half else n
    made = _transform(call, turned, n, count, 1.0 if inverse else -1.0)
    return (made / float(n) if inverse else made).transpose(at, -2)


def _fitted(x: Tensor, n: int) -> Tensor:
    """Cut to n points, or with zeros behind."""
    have = x.shape[-2]
    if have >= n:
        return x.narrow(-2, 0, n)
    return x.pad([(0, 0)] * (x.ndim - 2) + [(0, n - have), (0, 0)])


def _transform(call: NodeCall, x: Tensor, n: int, count: int, sign: float) -> Tensor:
    cos, sin = _matrices(call, n, count, sign)
    cos, sin = cos.cast(x.dtype), sin.cast(x.dtype)
    real = x[..., 0]
    a, b = real @ cos, real @ sin
    if x.shape[-1] == 2:
        imaginary = x[..., 1]
        a, b = a - imaginary @ sin, b + imaginary @ cos
    return weft.stack([a, b], -1)


def _real_inverse(call: NodeCall, x: Tensor, n: int) -> Tensor:
    """The reals whose transform begins with x: the rest of it is the mirror image."""
    x = _fitted(x, n // 2 + 1)
    mirror = x.narrow(-2, 1, (n - 1) // 2).flip(-2)
    other = weft.stack([mirror[..., 0], -mirror[..., 1]], -1) if (n - 1) // 2 else mirror
    whole = weft.concat([x, other], axis=-2)
    return (_transform(call, whole, n, n, 1.0) / float(n))[..., :1]


@op("STFT", host=(1, 3))
def stft(
    call: NodeCall, x: Tensor, step: np.ndarray, window: Tensor | None = None, length: Any = None
) -> Tensor:
    """Frames of x[N, T, 1 or 2], times the window, each transformed: [N, frames, bins, 2]."""
    size = int(scalar(length)) if length is not None else window.shape[0]  # type: ignore[union-attr]
    hop = int(scalar(step))
    count = (x.shape[1] - size) // hop + 1
    if hop < 1 or size < 1 or count < 1:
        raise ShapeError(f"frames of {size}, {hop} apart, of {x.shape[1]} samples")
    at = places(count * size, "STFT").reshape(count, size)
    at = at // size * hop + at % size
    frames = x.take(at.astype(np.int32), 1)
    frames = frames if window is None else frames * window.reshape(-1, 1)
    half = call.get("onesided", 1)
    return _transform(call, frames, size, size // 2 + 1 if half else size, -1.0)


def _window(name: str, terms: tuple[float, ...]) -> None:
    """A sum of cosines over n points, of a period of n, or of n - 1 where it is symmetric."""

    def run(call: NodeCall, size: np.ndarray) -> np.ndarray:
        n = int(scalar(size))
        period = n if call.get("periodic", 1) else n - 1
        turns = places(n, name) * (2 * np.pi / max(period, 1))
        made = sum(a * (-1) ** k * np.cos(k * turns) for k, a in enumerate(terms))
        out: np.ndarray = np.asarray(made).astype(numpy_type(call.get("output_datatype", 1), name))
        return out

    op(name, host=(0,), either=True)(run)


_window("HannWindow", (0.5, 0.5))
_window("HammingWindow", (25 / 46, 21 / 46))
_window("BlackmanWindow", (0.42, 0.5, 0.08))


@op("MelWeightMatrix", host=(-1,), either=True)
def mel_weight_matrix(call: NodeCall, *operands: np.ndarray) -> np.ndarray:
    """[bins of the transform, mels]: triangles between edges that are even on the mel scale."""
    mels, size, rate, low, high = (scalar(v) for v in operands)
    bins = size // 2 + 1
    places(bins * (mels + 2), "MelWeightMatrix")
    ends = [2595 * np.log10(1 + f / 700) for f in (low, high)]
    edges = 700 * (10 ** (np.linspace(ends[0], ends[1], mels + 2, endpoint=False) / 2595) - 1)
    at = np.floor((size + 1) * edges / rate).astype(int)
    out = np.zeros((bins, mels))
    for i in range(mels):
        a, peak, z = at[i : i + 3]
        out[a : peak + 1, i] = (np.arange(a, peak + 1) - a) / (peak - a) if peak > a else 1.0
        out[peak:z, i] = (z - np.arange(peak, z)) / max(z - peak, 1)
    return out.astype(numpy_type(call.get("output_datatype", 1), "output_datatype"))
