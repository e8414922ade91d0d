"""safetensors, single file or sharded, read in place and distrusted throughout.

Format: https://github.com/huggingface/safetensors#format . A file is an 8-byte little-endian
header length, the header (JSON: name -> dtype, shape, data_offsets) and one block of data that the
tensors cover without overlap or hole. Reading maps the file; a tensor is a read-only view of the
mapping. Everything a header claims is checked before anything is viewed, so a hostile file gets a
FileFormatError that says file, tensor and what was expected, and never a crash.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.errors import FileFormatError, UsageError
from weft.core.records import dataclass
from weft.core.text import shown
from weft.host.mapped import map_file, pieces, release
from weft.importers.hf_config import parse_json, read_object

MAX_HEADER = 100_000_000  # bytes, as in the format's own library
MAX_RANK = 32
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_HEAD = "lm_head.weight"

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: bytes [start, stop) of the file hold it, row-major."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile(Mapping[str, np.ndarray]):
    """One mapped file: name -> read-only array (a view; a copy only where the data is unaligned).

    Raises FileFormatError for anything that breaks the format; with `own` for a file that anybody
    else can have written.
    """

    def __init__(self, path: str | os.PathLike[str], own: bool = False) -> None:
        self.path = Path(path)
        wanted = "a safetensors file starts with an 8-byte length"
        self._map = map_file(self.path, 8, wanted, own)
        self.status = self._map.status
        self.tensors, self.metadata = _read_header(self._map, len(self._map), str(self.path))

    def __getitem__(self, name: str) -> np.ndarray:
        info = self.tensors[name]
        count = (info.stop - info.start) // info.dtype.itemsize
        if count == 0:
            return np.zeros(info.shape, info.dtype)
        view = np.frombuffer(self._map, info.dtype, count, info.start).reshape(info.shape)
        return view if view.flags.aligned else view.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def _read_header(
    data: mmap.mmap | bytes, size: int, where: str
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER or 8 + length > size:
        raise FileFormatError(
            f"{where}: the header claims {length} bytes; the file has {size} and a header at most "
            f"{MAX_HEADER} (truncated, or not a safetensors file)"
        )
    text = bytes(data[8 : 8 + length])
    if not text.startswith(b"{"):
        raise FileFormatError(f"{where}: the header is not a JSON object (not a safetensors file)")
    header = parse_json(text, f"{where}: header")
    if not isinstance(header, dict):
        raise FileFormatError(f"{where}: the header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FileFormatError(f"{where}: __metadata__ must map names to strings")
    base = 8 + length
    tensors = {k: _tensor(k, v, base, size - base, where) for k, v in header.items()}
    _check_cover(tensors, base, size, where)
    return tensors, metadata


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tensor(name: str, entry: object, base: int, room: int, where: str) -> TensorInfo:
    """Checks one header entry. `base` is where the data block starts, `room` its length, bytes."""
    at = f"{where}: tensor {name[:200]!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FileFormatError(f"{at}: expected exactly dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = _DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        known = ", ".join(_DTYPES)
        raise FileFormatError(f"{at}: dtype {str(code)[:40]!r} is not supported; known: {known}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_index, shape)):
        raise FileFormatError(
            f"{at}: shape {shown(shape, 80)}; expected at most {MAX_RANK} sizes, none negative"
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_index, offsets)):
        raise FileFormatError(f"{at}: data_offsets {shown(offsets, 80)}; expected [start, stop]")
    start, stop = offsets
    if not start <= stop <= room:
        raise FileFormatError(
            f"{at}: data_offsets {start}..{stop} lie outside the {room} bytes of data "
            "(a truncated or damaged file)"
        )
    elements = extent = 1  # `extent` ignores zeros: NumPy refuses [0, 2**62] too
    for d in shape:
        elements *= d
        extent *= max(d, 1)
    if elements * dtype.itemsize != stop - start or extent * dtype.itemsize >= 1 << 62:
        raise FileFormatError(
            f"{at}: {code}{shown(shape, 80)} needs {elements * dtype.itemsize} bytes; "
            f"data_offsets give {stop - start}"
        )
    return TensorInfo(name, dtype, tuple(shape), base + start, base + stop)


def _check_cover(tensors: Mapping[str, TensorInfo], base: int, size: int, where: str) -> None:
    """Tensors in file order must follow one another exactly and end with the file."""
    end, before = base, "the header"
    for t in sorted(tensors.values(), key=lambda t: (t.start, t.stop)):
        if t.start != end:
            what = "overlaps" if t.start < end else "leaves a hole after"
            raise FileFormatError(
                f"{where}: tensor {t.name[:200]!r} {what} {before}: it starts at byte {t.start}, "
                f"expected {end}"
            )
        end, before = t.stop, f"tensor {t.name[:200]!r}"
    if end != size:
        raise FileFormatError(f"{where}: {size - end} bytes after {before} belong to no tensor")


class Checkpoint(Mapping[str, np.ndarray]):
    """The weights of a model folder: name -> array, over one file or several shards."""

    packed: frozenset[str] = frozenset()  # names of matrices that consist of several tensors: none

    def __init__(self, home: Mapping[str, SafetensorsFile], where: str) -> None:
        self._home = home
        self.where = where

    def __getitem__(self, name: str) -> np.ndarray:
        return self._home[name][name]

    def plain(self, name: str) -> np.ndarray:
        """A tensor that is not a packed matrix: here, any tensor."""
        return self[name]

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and place of a tensor, without touching its data."""
        return self._home[name].tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)

    @property
    def nbytes(self) -> int:
        return sum(i.stop - i.start for i in map(self.info, self))


def open_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """The safetensors weights of a Hugging Face folder (or of one .safetensors file).

    Raises FileFormatError: no weights, a damaged file, a missing shard (named), a shard name that
    leads out of the folder, an index that disagrees with its shards.
    """
    folder = Path(folder)
    single = folder if folder.is_file() else folder / SINGLE
    if single.exists():
        file = SafetensorsFile(single)
        return Checkpoint(dict.fromkeys(file, file), str(single))
    index = folder / INDEX
    if index.exists():
        return _open_sharded(folder, index)
    pickles = sorted(p.name for p in folder.glob("*.bin"))
    hint = f"; {pickles[0]} is a pickle, which weft does not open: convert it" if pickles else ""
    raise FileFormatError(f"{folder}: neither {SINGLE} nor {INDEX} is there{hint}")


def _open_sharded(folder: Path, index: Path) -> Checkpoint:
    files: dict[str, SafetensorsFile] = {}
    home: dict[str, SafetensorsFile] = {}
    for tensor, shard in _weight_map(index).items():
        if shard not in files:
            if not (folder / shard).exists():
                raise FileFormatError(f"{folder}: shard {shard} is missing ({index.name} names it)")
            files[shard] = SafetensorsFile(folder / shard)
        if tensor in files[shard]:
            home[tensor] = files[shard]
        elif not tensor.endswith(_HEAD):  # an index may name the head though it is tied
            raise FileFormatError(f"{folder / shard}: tensor {tensor[:200]!r} is missing")
    for file in files.values():
        for tensor in file:
            if tensor not in home:  # no index names it, and yet it is there
                home[tensor] = file
    return Checkpoint(home, str(index))


def shard_names(index: Path) -> list[str]:
    """The files that an index names, each once. Raises FileFormatError."""
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> the plain name of its file."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileFormatError(f"{index}: weight_map must map tensor names to file names")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not _plain_name(shard):
            raise FileFormatError(
                f"{index}: tensor {tensor[:200]!r} is said to be in {str(shard)[:120]!r}; expected "
                "the plain name of a .safetensors file in the same folder"
            )
    return weight_map


def _plain_name(name: str) -> bool:
    """True for a file name that cannot lead out of its folder, on any system."""
    odd = any(c in name for c in "/\\:\0")
    return not odd and name.endswith(".safetensors") and not name.startswith(".")


def save_file(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    private: bool = False,
) -> None:
    """Writes `tensors` (a C-contiguous copy of one where needed) as one safetensors file, whole or
    not at all; `private` as for `replacing`. Pages of mapped files are given back. Raises
    UsageError for a dtype the format does not hold, StorageError if the disk is full or fails."""
    from weft.host.files import replacing

    codes = {name: code_of(name, value.dtype) for name, value in tensors.items()}
    # The widest first, so that all are aligned; then by name: equal tensors give equal files.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        value = tensors[name]
        start, end = end, end + value.nbytes
        code = codes[name]
        header[name] = {"dtype": code, "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path, private) as temporary, temporary.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            flat = np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8)
            for part in pieces(flat.size, 1):
                f.write(flat[part].data)
                release(flat[part])


def code_of(name: str, dtype: np.dtype[Any]) -> str:
    """Returns the format's name of a tensor's dtype. Raises UsageError if it has none."""
    for code, known in _DTYPES.items():
        if known == dtype:
            return code
    raise UsageError(f"tensor {name!r}: safetensors does not hold {dtype}")
