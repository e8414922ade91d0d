"""A traced decoder's weights in a packed checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.core.dtypes import DType, float16
from weft.core.errors import ModelError
from weft.core.packed import Packed
from weft.host.pages import fresh
from weft.importers.packed.checkpoint import PackedCheckpoint
from weft.models.arch.config import WeightSpec
from weft.models.arch.weights import Value
from weft.models.weights.widening import Reader
from weft.models.zoo.placing import Place, fill, rows_of, shape_of, tensors_of

KINDS = ("matrix", "experts", "head", "embed")  # read by products and look-ups, which take packed


class PackedTensors:
    """Reads weights by their places: packed ones packed, or in `dtype` if it is given. Those that
    other operators read, and those whose tensors have several forms, are float16."""

    def __init__(self, checkpoint: PackedCheckpoint, dtype: DType | None) -> None:
        self._at, self._dtype = checkpoint, dtype
        self._reader = Reader(checkpoint, dtype)

    def read(self, spec: WeightSpec, place: Place, wanted: tuple[int, ...]) -> Value:
        """Returns a weight, whose place makes an array of shape `wanted`. Raises ModelError."""
        names = dict.fromkeys(tensors_of(place))
        kept = self._dtype is None and spec.kind in KINDS and not spec.turned
        found = {n: self._reader.one(n, None, None if kept else self._floats) for n in names}
        shapes = {n: v.shape for n, v in found.items()}
        given = shape_of(place, shapes, self._at.where)
        if given != wanted:
            raise misfit(self._at.where, spec, given, wanted)
        made: Value | None = _joined(found, place) if kept else None
        if made is None:
            for name, value in found.items():
                if isinstance(value, Packed):
                    found[name] = self._reader.one(name, None, self._floats)
            made = _plain(found, place, spec)
        for name in self._at.packed.intersection(names):
            self._at.release(name)
        return made

    @property
    def _floats(self) -> DType:
        return self._dtype or float16


def misfit(
    where: str, spec: WeightSpec, given: tuple[int, ...], wanted: tuple[int, ...]
) -> ModelError:
    """Returns the error for a weight of another shape than the model's."""
    return ModelError(
        f"{where}: {spec.name!r} has shape {list(given)} in the weights; config.json asks for "
        f"{list(wanted)}"
    )


def _joined(found: dict[str, Value], place: Place) -> Packed | None:
    """Returns the packed matrix that a place makes of packed ones; None unless they have one form
    and their columns stay."""
    values = [v for v in found.values() if isinstance(v, Packed)]
    if len(values) < len(found) or not _alike(values):
        return None
    if "tensor" in place:
        return values[0]
    rows = rows_of(place, {n: v.shape for n, v in found.items()})
    if rows is None:
        return None
    rows, form = rows.reshape(-1), values[0].form
    parts = {p: fresh((len(rows), *v.shape[1:]), v.dtype) for p, v in values[0].parts.items()}
    start = 0
    for value in values:
        stop = start + value.shape[0]
        at = np.flatnonzero((start <= rows) & (rows < stop))
        for p, part in value.parts.items():
            parts[p][at] = part[rows[at] - start]
        start = stop
    return Packed(form, parts)


def _alike(values: Iterable[Packed]) -> bool:
    """Returns True if all have one form, and parts of the same dtypes."""
    return len({(v.form, *(v.parts[p].dtype for p in v.form.parts)) for v in values}) == 1


def _plain(found: dict[str, Value], place: Place, spec: WeightSpec) -> np.ndarray:
    """Returns the array that a place makes of arrays."""
    arrays = {n: v for n, v in found.items() if isinstance(v, np.ndarray)}
    if "tensor" in place and not spec.turned:
        return arrays[place["tensor"]]
    out = fresh(spec.shape, next(iter(arrays.values())).dtype)
    fill(arrays, place, out.swapaxes(-1, -2) if spec.turned else out)
    return out
