"""`weft.save` and `weft.load_tensors`: named tensors in a safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.errors import StorageError, UsageError
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.tensor.core import Tensor
from weft.tensor.elementwise import as_tensor


def save(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes named tensors or arrays, such as a module's or an optimiser's `state_dict()`, as one
    safetensors file, whole or not at all. `metadata` is text for readers. Raises UsageError for
    anything but a dict of names, DTypeError for values that are not arrays, StorageError where the
    file cannot be written.

    >>> weft.save(nn.Linear(2, 3).state_dict(), "linear.safetensors")
    >>> sorted(weft.load_tensors("linear.safetensors"))
    ['bias', 'weight']
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        raise UsageError("save: give a dict of names and tensors, such as model.state_dict()")
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in (metadata or {}).items()):
        raise UsageError("save: metadata is a dict of text")
    arrays = {name: np.asarray(as_tensor(value).numpy()) for name, value in tensors.items()}
    try:
        save_file(path, arrays, metadata)
    except OSError as error:
        raise StorageError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from None


def load_tensors(path: str | os.PathLike[str], device: Any = None) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file by name, on the CPU or on `device`. Raises
    FileFormatError for any other file, DTypeError for a dtype that the device lacks.

    >>> weft.save({"x": weft.ones(2)}, "x.safetensors")
    >>> weft.load_tensors("x.safetensors")["x"].tolist()
    [1.0, 1.0]
    """
    made = {}
    for name, value in SafetensorsFile(path).items():
        tensor = Tensor(np.array(value))
        made[name] = tensor if device is None else tensor.to(device)
    return made
