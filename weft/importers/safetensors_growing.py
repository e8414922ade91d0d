"""A safetensors file whose tensors are written as they are made, none held until the end."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from weft.core.errors import UsageError
from weft.host.files import replacing
from weft.host.mapped import pieces, release
from weft.importers.safetensors import code_of

_ENTRY = 110  # bytes of the entry of a matrix in the header, besides its name, at most


class Growing:
    """The file: `add` writes a tensor, `metadata` is what its header will say."""

    def __init__(self, file: BinaryIO, names: Collection[str], room: int) -> None:
        self.metadata: Mapping[str, str] = {}
        self._file, self._header, self._end = file, dict[str, Any](), 0
        self._room = -(-(room + sum(len(json.dumps(n)) + _ENTRY for n in names)) // 8) * 8
        file.seek(8 + self._room)

    def add(self, name: str, value: np.ndarray) -> None:
        """Writes a tensor (a C-contiguous copy of it where needed), and gives pages of a mapped
        file back. Raises UsageError for a dtype that the format does not hold."""
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        code, shape, start = code_of(name, value.dtype), list(value.shape), self._end
        for part in pieces(flat.size, 1):
            self._file.write(flat[part].data)
            release(flat[part])
        self._end = start + flat.size
        self._header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, self._end]}

    def close(self) -> None:
        said = {"__metadata__": dict(self.metadata)} if self.metadata else {}
        text = json.dumps(said | self._header, separators=(",", ":")).encode()
        if len(text) > self._room:
            raise UsageError(f"a header of {len(text)} bytes; there is room for {self._room}")
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + text.ljust(self._room))


@contextmanager
def growing(
    path: str | os.PathLike[str], names: Collection[str], like: Mapping[str, str],
    private: bool = False,
) -> Iterator[Growing]:  # fmt: skip
    """Yields a new file for vectors and matrices called `names`. Its metadata will be as long as
    those of `like`. It takes the place of `path` when the block ends, complete or not at all;
    `private` as for `replacing`. Raises StorageError if the disk is full or fails, UsageError for a
    header that is longer than planned."""
    room = len(json.dumps({"__metadata__": like}, separators=(",", ":")))
    with replacing(path, private) as temporary, temporary.open("wb") as file:
        made = Growing(file, names, room)
        yield made
        made.close()
