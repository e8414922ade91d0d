"""One layer of a checkpoint with packed weights: its tensors, distrusted; what is read of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import bfloat16
from weft.core.errors import ModelError, ShapeError
from weft.core.packed import Form, Packed, codes_of, dequantized, packed_codes, unpack
from weft.core.records import dataclass

FLOATS = (np.dtype(np.float16), bfloat16.numpy, np.dtype(np.float32))
_SMALLEST = 16  # weights that share a scale: with fewer, scales take more than codes do


class Read(NamedTuple):
    """A layer's matrix w[N, K]. If `order` is given, column k of the layer is column `order[k]` of
    the packed matrix. `plain` replaces the packed matrix if no form can hold the layer."""

    packed: Packed | None
    order: np.ndarray | None = None
    plain: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.packed is not None:
            return self.packed.shape
        return () if self.plain is None else self.plain.shape


@dataclass(frozen=True)
class LayerTensors:
    """The tensors of one layer by the rest of their names after the layer's. Every method raises
    ModelError, which says `where`, the tensor, what was found and what was expected."""

    where: str  # the file and the layer's name
    tensors: Mapping[str, np.ndarray]

    def fail(self, said: str) -> NoReturn:
        raise ModelError(f"{self.where}: {said}")

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, dtypes: tuple[Any, ...], *shape: int | None) -> np.ndarray:
        """The tensor, checked; None in a shape is any size."""
        if name not in self.tensors:
            self.fail(f"tensor {name!r} is missing; there are {', '.join(self.tensors)}")
        value = self.tensors[name]
        if value.dtype not in [np.dtype(d) for d in dtypes]:
            wanted = ", ".join(str(np.dtype(d)) for d in dtypes)
            self.fail(f"tensor {name!r} is {value.dtype}; expected {wanted}")
        if not value.size:
            self.fail(f"tensor {name!r} has shape {list(value.shape)}: nothing")
        fits = len(shape) == value.ndim
        if not fits or any(w is not None and w != d for w, d in zip(shape, value.shape)):
            wanted = ", ".join("*" if w is None else str(w) for w in shape)
            self.fail(f"tensor {name!r} has shape {list(value.shape)}; expected [{wanted}]")
        return value

    def floats(self, name: str, *shape: int | None) -> np.ndarray:
        """Floats, all of them finite."""
        value = self.take(name, FLOATS, *shape)
        if not all_finite(np.ascontiguousarray(value)):
            self.fail(f"tensor {name!r} holds NaN or infinity: the file is damaged")
        return value

    def order(self, name: str, k: int, group: int) -> np.ndarray | None:
        """The new position of each of k columns when the columns of each group become neighbours,
        from the group of each column: act-order. None if they already are neighbours. All groups
        must have the same number of columns."""
        index = self.take(name, (np.int32, np.int64), k)
        groups = k // group
        if index.min() < 0 or index.max() >= groups:
            self.fail(f"{name} holds {index.min()} to {index.max()}; there are {groups} groups")
        counts = np.bincount(index, minlength=groups)
        if (counts != group).any():
            at = int((counts != group).argmax())
            self.fail(f"{name} gives group {at} {counts[at]} columns; expected {group} for each")
        if np.array_equal(index, np.arange(k) // group):
            return None
        order = np.empty(k, np.int64)
        order[np.argsort(index, kind="stable")] = np.arange(k)
        return order

    def whole(self, total: int, parts: int, what: str) -> int:
        """total / parts, where that is a whole number of at least 1."""
        if parts < 1 or total < 1 or total % parts:
            self.fail(f"{total} {what} do not make {parts} equal parts")
        return total // parts

    def codes(
        self, form: Form, codes: np.ndarray, order: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The parts of codes uint8 [N, K], columns of a group brought together."""
        try:
            form.shapes(*codes.shape)
        except ShapeError as e:
            self.fail(str(e))
        return packed_codes(form, codes if order is None else codes[:, np.argsort(order)])

    def packed(self, form: Form, parts: Mapping[str, np.ndarray], n: int, k: int) -> Read:
        """The packed matrix; unpacked where the form's groups are smaller than is worth it."""
        found = Packed(form, {p: np.ascontiguousarray(parts[p]) for p in form.parts})
        try:
            form.check(found.parts, n, k)
        except ShapeError as e:
            self.fail(str(e))
        if form.values == "e4m3" and (codes_of(form, found.parts) & 127 == 127).any():
            self.fail("a weight is NaN: the file is damaged")
        if form.group < min(k, _SMALLEST):
            return Read(None, plain=dequantized(*found))
        return Read(found)


def unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Codes uint8 [R, count] of a dense stream, the first in the lowest bits of the first word:
    int32 or uint8 [R, W]. Where `bits` divides 32, and where it does not."""
    stream = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        return unpack(stream, bits)[:, :count]
    out = np.empty((len(stream), count), np.uint8)
    step = max(1, (1 << 20) // max(1, count))
    weights = (1 << np.arange(bits)).astype(np.uint8)
    for start in range(0, len(stream), step):
        rows = np.unpackbits(stream[start : start + step], axis=1, bitorder="little")
        fields = rows[:, : count * bits].reshape(len(rows), count, bits)
        out[start : start + step] = (fields * weights).sum(axis=2, dtype=np.uint8)
    return out


def block_scales(
    layer: LayerTensors, name: str, block: tuple[int, int], n: int, k: int
) -> tuple[int, np.ndarray]:
    """(group, scales [N, K / group]) from a scale for every block of `block` rows and columns. The
    last block of each axis may be partial. Rows are repeated. If blocks do not divide K, columns
    are repeated as the greatest group that divides both requires."""
    height, width = block
    found = layer.floats(name, -(-n // height), -(-k // width))
    group = int(np.gcd(k, width)) if width < k else k
    rows = np.repeat(found, height, axis=0)[:n] if height > 1 else found
    return group, rows[:, np.arange(0, k, group) // width]


def e8m0(codes: np.ndarray) -> np.ndarray:
    """Powers of two of exponents uint8 (OCP Microscaling Formats v1.0, 5.4.1): 2^(e - 127), 255 is
    NaN; exact in bfloat16."""
    low = ((codes == 0) | (codes == 255)) * np.uint16(64)
    bits: np.ndarray = codes.astype(np.uint16) << 7 | low
    return bits.view(bfloat16.numpy)
