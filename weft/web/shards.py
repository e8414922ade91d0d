"""Weights as files that a page fetches in pieces: shards of bounded size, each with its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.host.files import write_bytes
from weft.host.mapped import pieces, release

SHARD = 16 << 20  # most bytes of a file, so that an interrupted download repeats little
ALIGN = 256  # alignment of each tensor in the weights: WebGPU's for copies, and more


class Shards:
    """Writes tensors one after the other, cut into files of SHARD bytes: a tensor may extend over
    several. `tensors` is name -> [dtype, shape, first byte, bytes] over all shards as one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending = bytearray()
        self._at = 0
        self.tensors: dict[str, list[Any]] = {}
        self.files: list[list[Any]] = []  # name, bytes, sha256

    def add(self, name: str, array: np.ndarray) -> None:
        dtype = as_dtype(array.dtype)
        self.tensors[name] = [dtype.name, list(array.shape), self._at, array.nbytes]
        for piece in _pieces(array):
            self._write(piece)
        self._write(bytes(-self._at % ALIGN))

    def close(self) -> None:
        if self._pending:
            self._cut(len(self._pending))

    def _write(self, data: bytes) -> None:
        self._pending += data
        self._at += len(data)
        while len(self._pending) >= SHARD:
            self._cut(SHARD)

    def _cut(self, size: int) -> None:
        data = bytes(self._pending[:size])
        del self._pending[:size]
        name = f"weights-{len(self.files):03}.bin"
        write_bytes(self._folder / name, data)
        self.files.append([name, len(data), hashlib.sha256(data).hexdigest()])


def _pieces(array: np.ndarray) -> Iterator[bytes]:
    """The array's bytes in C order, some megabytes at a time; pages of a file are given back."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for part in pieces(flat.size, 1):
        yield flat[part].tobytes()
        release(flat[part])
