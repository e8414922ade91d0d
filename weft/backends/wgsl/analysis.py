"""Facts about a kernel before rendering: alignment of indices, and the storage of each source.

A source (buffer or array) is a WGSL array of units, each `k` words (k = 1, 2, 4: a vecK), a word
holding `per` elements (4 i8, 2 f16, 1 f32). Units wider than a word are chosen when the kernel's
vector accesses are provably aligned, since a GPU loads such a unit in one go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.backends.wgsl.layout import facts
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.align import Access, accesses


def per_word(dtype: DType) -> int:
    """Elements in a 4-byte word of a buffer (bool is a byte)."""
    return 4 // dtype.itemsize


@dataclass(frozen=True)
class StorageWords:
    """The storage of one buffer or array. `word` is WGSL's type of a word, `k` the words in a unit,
    `per` the elements in a word. Words that are `atomic` are read and changed by atomic
    operations."""

    name: str
    dtype: DType
    word: str
    per: int
    k: int
    atomic: bool = False
    parts: tuple[int, ...] = (0,)  # first unit of each part of a split buffer
    units: int = 1 << 31  # units of an array; a buffer's end is known when it runs

    @property
    def unit(self) -> int:
        """Elements in a unit."""
        return self.k * self.per


REGISTER = {"float": "f32", "int": "i32", "uint": "u32", "bool": "bool"}


def _words(found: list[Access], per: int) -> int:
    """The widest unit (in words) that suits every store and at least one load or store."""
    k = 1
    for wider in (2, 4):
        whole = wider * per
        fits = [a for a in found if a.lanes % whole == 0 and a.aligned % whole == 0]
        vectors = [a for a in found if a.lanes > per]
        stores = [a for a in found if isinstance(a.node, ir.Store)]
        if not fits or len(fits) < len(vectors) or any(s not in fits for s in stores):
            break
        k = wider
    return k


def sources(
    kernel: ir.Kernel, caps: Caps, split: Mapping[int, tuple[int, ...]]
) -> tuple[dict[int, StorageWords], dict[int, int]]:
    """Per source (by `id`) how it is stored, and per access (by `id` of its node) its alignment.

    `split` gives for each buffer number the byte offset of its parts.
    """
    by_source: dict[int, list[Access]] = {}
    for access in accesses(kernel):
        node = access.node
        if isinstance(node, ir.TileOp):
            continue  # rejected later, with an error naming it
        target = node.source if isinstance(node, ir.Load) else node.target
        by_source.setdefault(id(target), []).append(access)
    result: dict[int, StorageWords] = {}
    for n, buffer in enumerate(kernel.buffers):
        found = by_source.get(id(buffer), [])
        result[id(buffer)] = _buffer_source(buffer, found, caps, split[n])
    for array in facts(kernel).arrays:
        found = by_source.get(id(array), [])
        word = REGISTER[array.dtype.kind]
        k = _words(found, 1)
        units = max(-(-array.size // k), 1)
        result[id(array)] = StorageWords(array.name + "_", array.dtype, word, 1, k, units=units)
    aligned = {id(a.node): a.aligned for found in by_source.values() for a in found}
    return result, aligned


def _buffer_source(
    buffer: ir.Buffer, found: list[Access], caps: Caps, offsets: tuple[int, ...]
) -> StorageWords:
    per, word, name = per_word(buffer.dtype), "u32", buffer.name + "_"
    if per == 1:
        word = REGISTER[buffer.dtype.kind]
    elif buffer.dtype is dt.float16 and "shader-f16" in caps.features:
        per, word = 1, "f16"
    stores = [a for a in found if isinstance(a.node, ir.Store)]
    atomic = per > 1 and any(a.lanes % per or a.aligned % per for a in stores)
    k = 1 if atomic else _words(found, per)
    unit_bytes = k * (2 if word == "f16" else 4)
    return StorageWords(
        name, buffer.dtype, word, per, k, atomic, tuple(at // unit_bytes for at in offsets)
    )
