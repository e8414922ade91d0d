"""Packed weights of a checkpoint by role: kept packed, or widened to floats while loading, some
rows at a time, so that memory holds little more than the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import DType, float16
from weft.core.errors import ModelError
from weft.core.packed import Packed, dequantized
from weft.host.pages import fresh
from weft.importers.packed.checkpoint import PackedCheckpoint
from weft.importers.packed.layer import Read
from weft.models.arch.config import Layout, WeightSpec
from weft.models.arch.weights import Value, Weight
from weft.models.weights.names import bind_names, parts_of, read_weight

_STEP = 1 << 20  # elements widened at a time


def packed_weights(
    layout: Layout, checkpoint: PackedCheckpoint, dtype: DType | None
) -> dict[str, Weight]:
    """Returns role -> weight. Plain floats are unchanged; packed weights are in `dtype`, or Packed
    if that is None. Without a form for them, or with reordered columns (act-order), they are
    float16."""
    names, reader = bind_names(layout, checkpoint), Reader(checkpoint, dtype)
    specs = layout.weights
    return {r: Weight(specs[r], partial(reader.read, specs[r], names[r])) for r in names}


class Reader:
    """Reads weights of a checkpoint, packed ones packed or in a dtype."""

    def __init__(self, checkpoint: PackedCheckpoint, dtype: DType | None) -> None:
        self._checkpoint, self._dtype = checkpoint, dtype

    def read(self, spec: WeightSpec, name: str) -> Value:
        """Returns the weight called `name`."""
        if "{}" in name:
            return self._stacked(name, spec) or read_weight(spec, name, self._floats)
        if name not in self._checkpoint.packed:
            return read_weight(spec, name, self._floats)
        if len(spec.shape) < 3:
            return self.one(name, spec.shape, self._dtype)
        # Experts, stacked; packed ones are never turned.
        found = self.one(name, (math.prod(spec.shape[:-1]), spec.shape[-1]), self._dtype)
        return found if isinstance(found, Packed) else found.reshape(spec.shape)

    def _stacked(self, name: str, spec: WeightSpec) -> Packed | None:
        """Returns experts stacked, if all are matrices of one packed form; None otherwise, or if a
        dtype is requested."""
        names = parts_of(spec, name)
        if self._dtype is not None or not self._checkpoint.packed.issuperset(names):
            return None
        out: Packed | None = None
        for i, part in enumerate(names):
            found = self.one(part, spec.shape[1:], None)
            if not isinstance(found, Packed):
                return None
            if out is None:
                rows = {p: (len(names) * len(v), *v.shape[1:]) for p, v in found.parts.items()}
                made = {p: fresh(rows[p], v.dtype) for p, v in found.parts.items()}
                out = Packed(found.form, made)
            if found.form != out.form:
                return None
            for p, value in found.parts.items():
                if value.dtype != out.parts[p].dtype:
                    return None
                out.parts[p][i * len(value) : (i + 1) * len(value)] = value
            self._checkpoint.release(part)
        return out

    def _floats(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        found = self.one(name, shape, self._dtype or float16)
        assert isinstance(found, np.ndarray)
        return found

    def one(self, name: str, wanted: tuple[int, ...] | None, kept: DType | None) -> Value:
        """Returns a tensor, in the dtype `kept` if it is packed; if that is None, it stays so. A
        packed one has the shape `wanted`, if it is given."""
        at = self._checkpoint
        if name not in at.packed:
            return at.plain(name)
        found = at.read(name)
        if wanted is not None and found.shape != wanted:
            raise ModelError(
                f"{at.where}: packed weights {name!r} are {list(found.shape)}; "
                f"config.json asks for {list(wanted)}"
            )
        if kept is None and found.packed is not None and found.order is None:
            return found.packed
        dtype = kept or float16
        out = widened(found.shape, rows_of(found), dtype)
        if not all_finite(out):
            raise ModelError(
                f"{at.where}: weights {name!r} overflow {dtype.name}; use bfloat16 or float32"
            )
        at.release(name)
        return out


def rows_of(read: Read) -> Callable[[slice], np.ndarray]:
    """Returns a function for float32 rows of a layer's matrix, in the layer's order of columns."""
    packed, order, plain = read.packed, read.order, read.plain
    if packed is None:
        assert plain is not None
        return plain.__getitem__

    def rows(which: slice) -> np.ndarray:
        found = dequantized(packed.form, {p: v[which] for p, v in packed.parts.items()})
        return found if order is None else found[:, order]

    return rows


def widened(
    shape: tuple[int, ...], rows: Callable[[slice], np.ndarray], dtype: DType
) -> np.ndarray:
    """Returns the matrix with the given float32 rows (over all axes but the last), in `dtype`.
    Overflows become infinite."""
    from weft.tensor.casting import cast_array

    out = fresh(shape, dtype.numpy)
    flat = out.reshape(-1, shape[-1])
    step = max(1, _STEP // shape[-1])
    for start in range(0, len(flat), step):
        which = slice(start, start + step)
        flat[which] = cast_array(rows(which), dtype)
    return out
