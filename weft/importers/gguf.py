"""GGUF, one file or several parts, read in place and distrusted throughout.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md . Magic and version, metadata
(key, type, value), one entry per tensor, padding, and the tensors' data in the order of the
entries, each padded. Versions 2 and 3, little-endian. Reading maps the file; a tensor is a
read-only view of the mapping. All that a header claims is checked before anything is viewed or
allocated, so a hostile file gets a FileFormatError that says file, item and what was expected.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError
from weft.core.records import dataclass
from weft.host.mapped import MappedFile, map_file
from weft.importers.gguf_blocks import TYPES, BlockType
from weft.importers.gguf_values import Cursor

MAGIC = b"GGUF"
MAX_TENSORS = 1 << 18
MAX_RANK = 4
ALIGNMENTS = (8, 1 << 22)  # bytes
DEFAULT_ALIGNMENT = 32
LEAST_ENTRY = 33  # bytes of a tensor's entry: a name of one byte, one size
LEAST_PAIR = 14  # bytes of a key of one byte with a value of one

PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` is row-major (GGUF's own sizes reversed), `kind` the blocks of a row."""

    name: str
    shape: tuple[int, ...]
    kind: BlockType
    file: MappedFile = field(repr=False)
    start: int  # byte of the file

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.kind.elements * self.kind.nbytes

    @property
    def data(self) -> np.ndarray:
        """Its blocks, uint8 [rows, bytes per row], a read-only view of the file."""
        rows = math.prod(self.shape[:-1])
        return np.frombuffer(self.file, np.uint8, self.nbytes, self.start).reshape(rows, -1)


@dataclass(frozen=True)
class Gguf:
    """A file or all its parts. `metadata`: bool, int, float, str, read-only NumPy arrays of
    numbers and truths, Texts, lists of arrays; of parts that of the first."""

    path: Path
    version: int
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, GgufTensor] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())


def open_gguf(path: str | os.PathLike[str]) -> Gguf:
    """Reads the header of a GGUF file; of a part (-00001-of-00003.gguf, any of them) those of all.

    Raises FileFormatError: not GGUF, damaged or hostile, a missing part (named), parts that do
    not belong together.
    """
    path = Path(path)
    parts = _open_parts(path, _open_one(path))
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise FileFormatError(
                    f"{part.path}: tensor {name[:80]!r} is in {tensors[name].file.path.name} too"
                )
            tensors[name] = tensor
    first = parts[0]
    declared = first.metadata.get("split.tensors.count", len(tensors))
    if len(parts) > 1 and declared != len(tensors):
        raise FileFormatError(
            f"{first.path}: split.tensors.count is {declared!r:.40}; its {len(parts)} parts hold "
            f"{len(tensors)} tensors"
        )
    return Gguf(path, first.version, first.metadata, MappingProxyType(tensors))


def _open_parts(path: Path, given: Gguf) -> list[Gguf]:
    """The parts, in order, of what `given` is one of."""
    count = given.metadata.get("split.count", 0)
    if not _index(count):
        raise FileFormatError(f"{path}: split.count is {count!r:.40}; expected a whole number")
    if count <= 1:
        return [given]
    named = PART.fullmatch(path.name)
    if not named or int(named[3]) != count or not 1 <= int(named[2]) <= count:
        raise FileFormatError(
            f"{path}: holds one of {count} parts (split.count); its name does not end in "
            f"-00001-of-{count:05d}.gguf or the like, so the others cannot be found"
        )
    parts = []
    for i in range(count):
        name = path.with_name(f"{named[1]}-{i + 1:05d}-of-{count:05d}.gguf")
        if not name.exists():
            raise FileFormatError(f"{name}: part {i + 1} of {count} is missing; {path.name} is one")
        part = given if name == path else _open_one(name)
        found = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if found != (i, count) or not _index(found[0]):
            raise FileFormatError(
                f"{name}: split.no and split.count are {found!r:.60}; expected {(i, count)}"
            )
        parts.append(part)
    return parts


def _index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _open_one(path: Path) -> Gguf:
    file = map_file(path, 24, "a GGUF file starts with 24 bytes: GGUF, its version, two counts")
    cursor = Cursor(file, str(path))
    version = _version(cursor)
    count = cursor.count("tensors", LEAST_ENTRY)
    if count > MAX_TENSORS:
        cursor.fail(f"{count} tensors; at most {MAX_TENSORS} are read")
    metadata = _metadata(cursor, cursor.count("keys", LEAST_PAIR))
    cursor.item = "the header"
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    least, most = ALIGNMENTS
    if not _index(alignment) or not least <= alignment <= most or alignment & (alignment - 1):
        cursor.fail(
            f"general.alignment is {alignment!r:.40}; expected a power of two, {least} to {most}"
        )
    tensors = _tensors(cursor, count, alignment, file)
    return Gguf(path, version, MappingProxyType(metadata), MappingProxyType(tensors))


def _version(cursor: Cursor) -> int:
    magic = cursor.data[:4]
    if magic != MAGIC:
        cursor.fail(f"starts with {magic!r}; expected {MAGIC!r} (not a GGUF file)")
    cursor.at = 4
    version: int = cursor.number(what="the version")
    if version and version & 0xFFFF == 0:
        cursor.fail("the numbers are big-endian; only little-endian files are read")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version}; versions 2 and 3 are read")
    return version


def _metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i in range(count):
        cursor.item = f"key {i + 1} of {count}"
        key = cursor.name("its name")
        cursor.item = f"key {key[:80]!r}"
        if key in found:
            cursor.fail("appears twice")
        found[key] = cursor.value()
    return found


def _tensors(cursor: Cursor, count: int, alignment: int, file: MappedFile) -> dict[str, GgufTensor]:
    """The tensors follow one another, each from the next multiple of the alignment on; where the
    first starts is known when all entries are read."""
    entries: dict[str, tuple[tuple[int, ...], BlockType, int]] = {}
    end = 0  # end of the data so far, relative to its start
    room = len(file)
    for i in range(count):
        cursor.item = f"tensor {i + 1} of {count}"
        name = cursor.name("its name")
        cursor.item = f"tensor {name[:80]!r}"
        if name in entries:
            cursor.fail("appears twice")
        shape, kind, nbytes = _form(cursor)
        start, expected = cursor.size("its offset"), _padded(end, alignment)
        if start != expected:
            what = "overlaps the one before it" if start < end else "is not where it belongs"
            cursor.fail(f"{what}: its offset is {start}, expected {expected}")
        end = start + nbytes
        if end > room:
            cursor.fail(f"{kind} {shape} needs {nbytes} bytes; the file has {room} in all")
        entries[name] = shape, kind, start
    base = _padded(cursor.at, alignment)
    cursor.item = "the data"
    if count and base + end > room:
        cursor.fail(f"{end} bytes from byte {base} on; the file ends at {room} (truncated)")
    if room > _padded(base + end, alignment):
        cursor.fail(f"{room - base - end} bytes at the end belong to no tensor")
    return {
        name: GgufTensor(name, shape, kind, file, base + start)
        for name, (shape, kind, start) in entries.items()
    }


def _form(cursor: Cursor) -> tuple[tuple[int, ...], BlockType, int]:
    """Shape, type and bytes of a tensor's entry."""
    rank = cursor.number(what="the number of its dimensions")
    if not 1 <= rank <= MAX_RANK:
        cursor.fail(f"{rank} dimensions; expected 1 to {MAX_RANK}")
    shape = tuple(cursor.size("a dimension") for _ in range(rank))[::-1]
    if 0 in shape:
        cursor.fail(f"a dimension of {shape} is 0")
    number = cursor.number(what="its type")
    kind = TYPES.get(number)
    if kind is None:
        known = ", ".join(t.name for t in TYPES.values())
        cursor.fail(f"type {number} is not read; read are {known}")
    if shape[-1] % kind.elements:
        cursor.fail(f"a row has {shape[-1]} elements; {kind} has blocks of {kind.elements}")
    return shape, kind, math.prod(shape) // kind.elements * kind.nbytes


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
