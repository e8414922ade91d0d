"""Weights on a device in another order than the checkpoint's."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.mapped import release
from weft.program.device import Buffer, Device
from weft.program.program import BufferSpec
from weft.program.recipe import Recipe
from weft.program.values import check_fit

_PIECE = 1 << 20  # bytes that are brought into order at a time


def interleaved(recipe: Recipe, spec: BufferSpec, value: Any, device: Device) -> Buffer:
    """A new buffer with rows of the weight `value` interleaved by `recipe` (spec.shape is
    [rows / lanes, K, lanes]). Pages of a mapped file are given back: there is one copy of the
    model at a time. Raises ShapeError, DTypeError or OutOfMemoryError."""
    bands, depth, lanes = spec.shape
    rows = recipe.rows_of(value, (depth,), bands * lanes)
    check_fit(spec, spec.shape, as_dtype(rows.dtype), None)
    turned = rows.reshape(bands, lanes, depth).transpose(0, 2, 1)
    step = max(_PIECE // (spec.nbytes // bands), 1)
    buffer = device.alloc(spec.nbytes)
    for start in range(0, bands, step):
        piece = np.ascontiguousarray(turned[start : start + step])
        device.write(buffer, piece, start * piece[:1].nbytes)
    release(value)
    return buffer
