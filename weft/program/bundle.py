"""Several Programs with their weights in one file: a model, compiled.

    weft.json            the head: purpose of the Programs, device, place of each tensor
    programs/NAME.weft   each Program, as serial.py writes one
    weights.bin          tensors, each on a multiple of 64 bytes; the member on one of 4096
    files/NAME           other files of the model, such as its tokenizer

The file is a stored zip: weights are mapped, not read. Weights may be in a separate file in the
same folder, named by its hash. The same content always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import FileFormatError, unreadable
from weft.core.records import dataclass
from weft.host.files import replacing
from weft.host.mapped import MappedFile, map_file
from weft.program import serial

FORMAT = 2
HEAD, WEIGHTS = "weft.json", "weights.bin"
ALIGN, PAGE = 64, 4096
MOST_MEMBERS, MOST_HEAD = 4096, 64 << 20
_NAME = re.compile(r"[\w.@+-]{1,200}")
_BESIDE = re.compile(r"[0-9a-f]{64}\.weights")
_PADDING = 0xD935  # the id of a zip entry's extra field that only aligns, as Android's zipalign has
_STAMP = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """`head` is the caller's, JSON values. `programs` holds what `serial.dumps` gave, by name;
    `tensors` are views of the mapped file where a file was read."""

    head: Mapping[str, Any]
    programs: Mapping[str, bytes]
    tensors: Mapping[str, np.ndarray]
    files: Mapping[str, bytes] = field(default_factory=dict)


def is_bundle(path: Path) -> bool:
    """True if `path` is a file that begins like one from `write`."""
    try:
        with path.open("rb") as f:
            return f.read(30 + len(HEAD))[30:] == HEAD.encode()
    except OSError:
        return False


def head_of(path: Path) -> Mapping[str, Any]:
    """The head of such a file, of which nothing is checked but that it is an object. Raises
    FileFormatError."""
    try:
        with zipfile.ZipFile(path) as archive:
            head = json.loads(_limited(path, archive, archive.getinfo(HEAD), MOST_HEAD))
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, EOFError, OSError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: not a compiled model: {error}") from None
    return head if isinstance(head, dict) else {}


# -- writing --------------------------------------------------------------------------------------


def write(bundle: Bundle, path: Path, beside: bool = False) -> None:
    """Writes the file at `path`, whole or not at all. With `beside`, the tensors go into a file in
    the same folder, which is written first. Raises StorageError."""
    index, nbytes, digest = _index(bundle.tensors)
    where = f"{digest}.weights" if beside else None
    if where is not None:
        with replacing(path.parent / where) as temporary, temporary.open("wb") as f:
            _write_tensors(f, bundle.tensors)
    weights = {"bytes": nbytes, "sha256": digest, "tensors": index, "file": where}
    digests = {n: hashlib.sha256(data).hexdigest() for n, data in bundle.programs.items()}
    head = {"format": FORMAT, **bundle.head, "programs": digests, "weights": weights}
    members = {f"programs/{n}.weft": data for n, data in bundle.programs.items()}
    members |= {f"files/{n}": data for n, data in bundle.files.items()}
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, data in {HEAD: _json(head), **members}.items():
            archive.writestr(_entry(name), data)
        if where is None:
            assert archive.fp is not None
            entry = _entry(WEIGHTS, at=archive.fp.tell())
            with archive.open(entry, "w", force_zip64=True) as f:
                _write_tensors(f, bundle.tensors)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _index(tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], int, str]:
    """Name -> [dtype, shape, offset], the bytes of all, and their hash."""
    found, at, digest = {}, 0, hashlib.sha256()
    for name, array in tensors.items():
        found[name] = [as_dtype(array.dtype).name, list(array.shape), at]
        at += _padded(array.nbytes)
    _write_tensors(digest, tensors)
    return found, at, digest.hexdigest()


def _write_tensors(out: Any, tensors: Mapping[str, np.ndarray]) -> None:
    put = out.write if hasattr(out, "write") else out.update
    for array in tensors.values():
        put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        put(bytes(_padded(array.nbytes) - array.nbytes))


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _entry(name: str, at: int | None = None) -> zipfile.ZipInfo:
    """Returns a member's zip entry. If its header is at `at`, the data begin on a page."""
    info = zipfile.ZipInfo(name, _STAMP)
    info.create_system, info.external_attr = 3, 0o644 << 16  # the same on every system
    if at is not None:
        zip64 = 20  # bytes that zipfile puts before our own field
        fill = -(at + 30 + len(name) + zip64 + 4) % PAGE
        info.extra = _PADDING.to_bytes(2, "little") + fill.to_bytes(2, "little") + bytes(fill)
    return info


# -- reading --------------------------------------------------------------------------------------


def read(path: Path) -> Bundle:
    """Reads the file that `write` wrote at `path`: Programs as bytes, tensors as views of the
    mapped file. Raises FileFormatError for anything else."""
    mapped = map_file(path, 22, "a compiled model has more")
    try:
        with path.open("rb") as f, zipfile.ZipFile(f) as archive:
            return _bundle(path, mapped, f, archive)
    except FileFormatError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise FileFormatError(f"{path}: not a compiled model: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FileFormatError(f"{path}: damaged: {ascii(error)[:200]}") from None
    except RecursionError:
        raise FileFormatError(f"{path}: damaged: nested too deeply") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _bundle(path: Path, mapped: MappedFile, f: IO[bytes], archive: zipfile.ZipFile) -> Bundle:
    infos = _members(path, archive, len(mapped))
    head = json.loads(_limited(path, archive, infos[HEAD], MOST_HEAD))
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else None
        raise FileFormatError(f"{path}: format {found!r}; this weft reads {FORMAT}: compile again")
    programs = {
        name: _limited(path, archive, infos[f"programs/{name}.weft"], serial.MAX_BYTES)
        for name in head["programs"]
    }
    for name, data in programs.items():
        if hashlib.sha256(data).hexdigest() != head["programs"][name]:
            raise FileFormatError(f"{path}: Program {name!r} does not match its hash")
    files = {
        name.removeprefix("files/"): _limited(path, archive, info, 1 << 30)
        for name, info in infos.items()
        if name.startswith("files/")
    }
    return Bundle(head, programs, _tensors(path, head["weights"], mapped, f, infos), files)


def _members(path: Path, archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    found = {info.filename: info for info in archive.infolist()}
    if len(found) != len(archive.infolist()) or len(found) > MOST_MEMBERS:
        raise FileFormatError(f"{path}: {len(archive.infolist())} members, or two of one name")
    for name, info in found.items():
        folder, _, last = name.rpartition("/")
        known = name in (HEAD, WEIGHTS) or folder in ("programs", "files")
        if not known or not _NAME.fullmatch(last):
            raise FileFormatError(f"{path}: a member named {name[:80]!r}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
            raise FileFormatError(f"{path}: {name} is compressed or lies about its size")
    if HEAD not in found:
        raise FileFormatError(f"{path}: no {HEAD} in it; not a compiled model")
    return found


def _limited(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    if info.file_size > most:
        raise FileFormatError(f"{path}: {info.filename} has {info.file_size} bytes; {most} at most")
    return archive.read(info)


def _tensors(
    path: Path,
    head: Any,
    mapped: MappedFile,
    f: IO[bytes],
    infos: Mapping[str, zipfile.ZipInfo],
) -> dict[str, np.ndarray]:
    nbytes, index, beside = head["bytes"], head["tensors"], head["file"]
    if not nbytes:
        data = memoryview(b"")
    elif beside is None:
        start = _start(path, f, infos[WEIGHTS])
        data = memoryview(mapped)[start : start + infos[WEIGHTS].file_size]
    else:
        data = _beside(path, beside, head["sha256"], nbytes)
    if type(nbytes) is not int or len(data) != nbytes:
        raise FileFormatError(f"{path}: {len(data)} bytes of weights; its head says {nbytes!r}")
    return {name: _tensor(path, name, entry, data) for name, entry in index.items()}


def _start(path: Path, f: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Returns the place of a member's bytes: behind a header of its own, whose length the directory
    does not tell."""
    f.seek(info.header_offset)
    header = f.read(30)
    if len(header) < 30 or header[:4] != b"PK\3\4":
        raise FileFormatError(f"{path}: {info.filename} is not where its directory says")
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return info.header_offset + 30 + name + extra


def _beside(path: Path, name: Any, digest: Any, nbytes: int) -> memoryview:
    """Returns the bytes of the file in the folder of `path` that is named by its hash."""
    if not isinstance(name, str) or not _BESIDE.fullmatch(name) or name != f"{digest}.weights":
        raise FileFormatError(
            f"{path}: weights in {str(name)[:80]!r}, which is not one of their names"
        )
    file = path.parent / name
    if not file.exists():
        raise FileFormatError(f"{path}: its weights are in {name}, which is not in the same folder")
    data = map_file(file, nbytes, f"{path.name} needs {nbytes}")
    if hashlib.sha256(data).hexdigest() != digest:
        raise FileFormatError(f"{file}: its content does not match its name; copy it again")
    return memoryview(data)


def _tensor(path: Path, name: str, entry: Any, data: memoryview) -> np.ndarray:
    kind, shape, at = entry
    dtype = as_dtype(kind).numpy
    if not all(type(n) is int and n >= 0 for n in (*shape, at)) or at % ALIGN:
        raise FileFormatError(f"{path}: tensor {name[:80]!r} is {shape!r} at {at!r}")
    count = 1
    for n in shape:
        count *= n
    if at + count * dtype.itemsize > len(data):
        raise FileFormatError(f"{path}: tensor {name[:80]!r} reaches beyond the weights")
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, count, at).reshape(shape)
