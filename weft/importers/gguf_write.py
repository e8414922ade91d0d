"""GGUF files, written: the header, then each tensor as its bytes come.

Format: https://github.com/ggml-org/ggml (docs/gguf.md), version 3, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from weft.core.errors import UsageError
from weft.host.files import replacing
from weft.host.mapped import pieces, release
from weft.importers.gguf_blocks import BY_NAME

ALIGNMENT = 32
_NUMBERS = {
    "uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5, "float32": 6,
    "bool": 7, "uint64": 10, "int64": 11, "float64": 12,
}  # fmt: skip
_STRING, _ARRAY = 8, 9


class TensorToWrite(NamedTuple):
    """A tensor of a file: its type by name, its shape (the last axis is contiguous), and what
    gives its bytes as an array when they are written."""

    kind: str
    shape: tuple[int, ...]
    data: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        kind = BY_NAME[self.kind]
        return int(np.prod(self.shape, dtype=np.int64)) // kind.elements * kind.nbytes


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, TensorToWrite]
) -> None:
    """Writes a file, whole or not at all. Metadata are texts, truth values, NumPy scalars (whose
    dtype is kept), and lists of texts or arrays of numbers. Raises StorageError, UsageError."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
        for key, value in metadata.items():
            _string(file, key)
            _value(file, value)
        at = 0
        for name, tensor in tensors.items():
            _string(file, name)
            shape = tensor.shape[::-1]
            file.write(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
            file.write(struct.pack("<IQ", BY_NAME[tensor.kind].id, at))
            at += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        _pad(file)
        for name, tensor in tensors.items():
            data = np.ascontiguousarray(tensor.data())
            if data.nbytes != tensor.nbytes:
                raise UsageError(f"tensor {name!r} has {data.nbytes} bytes, not {tensor.nbytes}")
            flat = data.reshape(-1).view(np.uint8)
            for part in pieces(flat.size, 1):
                file.write(flat[part].data)
                release(flat[part])
            _pad(file)


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _string(file: BinaryIO, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    file.write(struct.pack("<Q", len(data)) + data)


def _value(file: BinaryIO, value: Any) -> None:
    if isinstance(value, str):
        file.write(struct.pack("<I", _STRING))
        _string(file, value)
    elif isinstance(value, np.ndarray):
        file.write(struct.pack("<IIQ", _ARRAY, _NUMBERS[value.dtype.name], len(value)))
        file.write(np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes())
    elif isinstance(value, Sequence):
        file.write(struct.pack("<IIQ", _ARRAY, _STRING, len(value)))
        for item in value:
            _string(file, item)
    else:
        number = np.bool_(value) if isinstance(value, bool) else value
        file.write(struct.pack("<I", _NUMBERS[number.dtype.name]))
        file.write(number.astype(number.dtype.newbyteorder("<")).tobytes())
