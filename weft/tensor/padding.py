"""Axes made longer or shorter: by a value, or by elements of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.ops.rules import integers
from weft.tensor.core import Tensor

# PyTorch's names of modes -> numpy.pad's
MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
Widths = Sequence[tuple[int, int]]


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """x with its last axes made longer. `pad` is (left, right, top, bottom, ...), a pair per axis
    from the last one on; a negative width takes elements away.

    `mode` is "constant" (`value` is added), "reflect" (elements mirrored at the outer one),
    "replicate" (the outer one again) or "circular" (those of the other end). x has any dtype.
    Raises ShapeError for widths that an axis cannot give, UsageError for an unknown mode.

    >>> F.pad(weft.tensor([1.0, 2.0, 3.0]), (1, 2), "reflect").tolist()
    [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]
    """
    given = integers("pad", "pad", pad)
    if mode not in MODES:
        raise UsageError(f"pad: mode {mode!r:.40}; expected one of {', '.join(MODES)}")
    if len(given) % 2 or len(given) > 2 * x.ndim:
        raise ShapeError(f"pad: {len(given)} widths; expected a pair for each of {x.ndim} axes")
    pairs = list(zip(given[::2], given[1::2]))[::-1]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    for n, pair in zip(x.shape, widths):
        most = {"reflect": n - 1, "circular": n}.get(mode, max(pair))
        if max(pair) > max(most, 0) or n + sum(pair) < 0 or (mode == "replicate" and any(pair) > n):
            raise ShapeError(f"pad: widths {pair} of mode {mode!r} do not fit an axis of {n}")
    if mode == "circular" and any(w < 0 for pair in widths for w in pair):  # what is left repeats
        x = _cut(x, widths)
        widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    return padded(x, widths, MODES[mode], value)


def padded(x: Tensor, widths: Widths, mode: str, value: float = 0.0) -> Tensor:
    """x with elements before and after each axis, as numpy.pad has them for `mode`; then a
    negative width takes elements away."""
    grow = [(max(a, 0), max(b, 0)) for a, b in widths]
    if mode == "constant":
        if any(map(any, grow)):
            is_bool = x.dtype.kind == "bool"
            x = x.cast("int32").pad(grow, value).cast("bool") if is_bool else x.pad(grow, value)
        return _cut(x, widths)
    for axis, pair in enumerate(widths):
        if any(pair):
            at = np.pad(np.arange(x.shape[axis]), grow[axis], mode)  # type: ignore[call-overload]
            low, high = (max(-w, 0) for w in pair)
            x = x.take(at[low : len(at) - high].astype(np.int32), axis)
    return x


def _cut(x: Tensor, widths: Widths) -> Tensor:
    for axis, (a, b) in enumerate(widths):
        low, high = max(-a, 0), max(-b, 0)
        if low or high:
            x = x.narrow(axis, low, x.shape[axis] - low - high)
    return x
