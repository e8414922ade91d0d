"""torch.save and torch.load: safetensors, whose metadata holds what is not a tensor."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.core.errors import FileFormatError, UsageError
from weft.host.boundary import check_options
from weft.importers.safetensors import SafetensorsFile
from weft.importers.tensor_files import save as write
from weft.tensor.core import Tensor
from weft.torch.creation import tensor

_TREE = "weft.torch.tree"
_NO_FILE = "{}: {!r:.80} is neither a path nor a file that is open for bytes"


def save(obj: Any, f: str | os.PathLike[str] | IO[bytes]) -> None:
    """Writes tensors, in dicts and lists with numbers and text, as safetensors: a file at a path,
    or its bytes into an open file. Raises UsageError for anything else: nothing is pickled."""
    tensors: dict[str, Any] = {}
    tree = _without_tensors(obj, "", tensors)
    flat = isinstance(obj, dict) and len(tensors) == len(obj) and tensors.keys() == obj.keys()
    metadata = None if flat else {_TREE: json.dumps(tree)}
    if isinstance(f, str | os.PathLike):
        write(tensors, f, metadata)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors"
        write(tensors, path, metadata)
        try:
            with path.open("rb") as made:
                shutil.copyfileobj(made, f)
        except (AttributeError, TypeError):
            raise UsageError(_NO_FILE.format("save", f)) from None


def _without_tensors(x: Any, path: str, tensors: dict[str, Any]) -> Any:
    if isinstance(x, Tensor | np.ndarray):
        tensors[path] = x
        return {"tensor": path}
    if isinstance(x, dict):
        parts = [
            [k, _without_tensors(v, f"{path}.{k}" if path else str(k), tensors)]
            for k, v in x.items()
        ]
        return {"dict": parts}
    if isinstance(x, list | tuple):
        parts = [_without_tensors(v, f"{path}.{i}", tensors) for i, v in enumerate(x)]
        return {"list" if isinstance(x, list) else "tuple": parts}
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, bool | int | float | str):
        return {"value": x}
    raise UsageError(f"save: {path or 'the object'} is a {type(x).__name__}; save its state_dict()")


def load(
    f: str | os.PathLike[str] | IO[bytes], map_location: Any = None, *, weights_only: bool = True,
    **options: Any,
) -> Any:  # fmt: skip
    """Reads what `save` wrote, or the tensors of any safetensors file by name, from a path or the
    rest of an open file. Raises FileFormatError for other files, PyTorch's pickles among them."""
    check_options("load", options, ["mmap", "pickle_module", "encoding"])
    if isinstance(f, str | os.PathLike):
        return _read(SafetensorsFile(f), os.fspath(f), map_location)
    data = f.read() if hasattr(f, "read") else None
    if not isinstance(data, bytes):
        raise UsageError(_NO_FILE.format("load", f))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors"
        path.write_bytes(data)
        try:
            file = SafetensorsFile(path)
        except FileFormatError as error:
            raise FileFormatError(str(error).replace(str(path), "load", 1)) from None
        return _read(file, "load", map_location)


def _read(file: SafetensorsFile, said: str, map_location: Any) -> Any:
    where = None if map_location is None or callable(map_location) else str(map_location)
    held = {name: tensor(np.array(value), device=where) for name, value in file.items()}
    if _TREE not in file.metadata:
        return held
    try:
        return _with_tensors(json.loads(file.metadata[_TREE]), held)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{said}: {_TREE} is damaged ({error})") from None


def _with_tensors(tree: Any, held: dict[str, Any]) -> Any:
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return held[content]
    if kind == "dict":
        return {k: _with_tensors(v, held) for k, v in content}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_with_tensors(v, held) for v in content)
    return content
