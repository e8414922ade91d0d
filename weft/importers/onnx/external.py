"""Tensors whose data are in other files, read from the model's own folder alone.

A model file names other files: a downloaded one must not make us read anything else of this
machine. So a location is relative, without "..", and no link, hard or symbolic, leads away (the
rules of ONNX's ExternalDataSecurity.md). Hugging Face's cache is the exception: there a model is
itself a link from snapshots/ to blobs/, and its data may be one into the same blobs/.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from weft.core.errors import FileFormatError
from weft.host.mapped import MappedFile, map_file


class External:
    """Reads the data of one model's tensors; a file is mapped once."""

    def __init__(self, path: Path):
        self.folder = path.parent.resolve()
        self.blobs = path.resolve().parent if _cached(path) else None
        self._files: dict[str, MappedFile] = {}

    def __call__(self, tensor: Any, count: int, what: str) -> memoryview:
        """`count` bytes of a TensorProto. Raises FileFormatError."""
        facts = {entry.key: entry.value for entry in tensor.external_data}
        unknown = set(facts) - {"location", "offset", "length", "checksum"}
        if unknown or len(facts) != len(tensor.external_data):
            raise FileFormatError(f"{what}: external data with keys {sorted(unknown) or 'twice'}")
        offset = _number(facts.get("offset", "0"), "offset", what)
        length = _number(facts["length"], "length", what) if "length" in facts else count
        if length != count:
            raise FileFormatError(f"{what}: {length} bytes of external data; it takes {count}")
        if not count:
            return memoryview(b"")
        file = self._file(facts.get("location", ""), what)
        if offset + count > len(file):
            raise FileFormatError(
                f"{what}: bytes {offset} to {offset + count} of {file.path.name}, which has "
                f"{len(file)}; is the download complete?"
            )
        return memoryview(file)[offset : offset + count]

    def _file(self, location: str, what: str) -> MappedFile:
        if location not in self._files:
            self._files[location] = map_file(self._confined(location, what), 1, "it is empty")
        return self._files[location]

    def _confined(self, location: str, what: str) -> Path:
        """The file that a location means. Raises FileFormatError for one outside the folder."""
        parts = PurePosixPath(location).parts
        wrong = not parts or "\\" in location or "\0" in location or ".." in parts
        if wrong or PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive:
            raise FileFormatError(
                f"{what}: external data at {location!r:.80}; expected a path inside the model's "
                "folder"
            )
        path = self.folder.joinpath(*parts)
        try:
            real, info = path.resolve(strict=True), path.stat()
        except OSError as error:
            raise FileFormatError(
                f"{what}: external data {location!r:.80}: {error.strerror}"
            ) from None
        if real != path and not (self.blobs is not None and real.parent == self.blobs):
            raise FileFormatError(
                f"{what}: external data {location!r:.80} is a link to somewhere else; put the "
                "file itself into the model's folder"
            )
        if real == path and info.st_nlink > 1:
            raise FileFormatError(
                f"{what}: external data {location!r:.80} has {info.st_nlink} hard links; copy "
                "the file"
            )
        return real


def _cached(path: Path) -> bool:
    """True if a model file is in Hugging Face's cache: a link from snapshots/ to blobs/ of the same
    repository."""
    if not path.is_symlink():
        return False
    blobs = path.resolve().parent
    return blobs.name == "blobs" and blobs.parent / "snapshots" in path.absolute().parents


def _number(text: str, key: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FileFormatError(f"{what}: {key} of external data is {text!r:.40}; expected bytes")
    return int(text)
