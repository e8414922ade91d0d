"""A compiled function or model from a file: the choice of its device, and a function to call.

Imports count towards the time of the first result, so this module avoids ops, tracing and the
compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import CallError, DeviceError, FileFormatError, UsageError
from weft.host.records import from_data
from weft.program import bundle
from weft.program.bundle import Bundle
from weft.program.session import Session
from weft.tensor.program_cache import program_from

if TYPE_CHECKING:
    from weft.program.device import Device
    from weft.program.program import BufferSpec, Program

NAME = "main"
KINDS = ("decoder", "encoder", "judge", "function")


def opened(
    path: Path,
    device: str | Device | None = "auto",
    fallback: str | None = None,
    asked: Mapping[str, Any] = {},
) -> tuple[Bundle, Device]:
    """The content of the file at `path`, and the device it was compiled for or one that can do the
    same. `asked` are those options of `weft.load` that compiling has settled: None, or UsageError.
    Raises FileFormatError, DeviceError."""
    settled = [what for what, value in asked.items() if value is not None]
    if settled or device == "oracle":
        what = settled[0] if settled else "the oracle"
        raise UsageError(
            f"{path.name} is a compiled model, for which {what} comes too late; leave it out, or "
            "compile the model again"
        )
    read = bundle.read(path)
    kind = read.head.get("kind")
    if kind not in KINDS:
        raise FileFormatError(
            f"{path}: kind {ascii(kind)[:60]}; expected one of {', '.join(KINDS)}"
        )
    caps = from_data(Caps, read.head.get("caps"), f"{path}: caps")
    return read, _device(path, read.head, caps, device, fallback)


def _device(
    path: Path, head: Mapping[str, Any], caps: Caps, device: Any, fallback: str | None
) -> Device:
    from weft.backends import registry

    if device == "auto" and caps.is_cpu:
        device = registry.host()
    target = registry.get(device, fallback)
    if lacks := target.caps.lacks(caps):
        raise DeviceError(
            f"{path} was compiled for {ascii(head.get('device'))[:60]}, and {target.info.id} has "
            f"no {lacks}; name another device, or compile for this one"
        )
    return target


class StoredFunction:
    """A function of a file, on a device. Called with arrays (or tensors) in the order of `inputs`
    or by their names; gives a NumPy array, a tuple where there are several results."""

    def __init__(self, path: Path, read: Bundle, device: Device) -> None:
        """Raises FileFormatError, LimitError, OutOfMemoryError."""
        if NAME not in read.programs:
            raise FileFormatError(f"{path}: Program {NAME!r} is missing")
        self.path, self.device = path, device
        self.program: Program = program_from(read.programs[NAME])
        if self.program.scalars or any(b.role == "state" for b in self.program.buffers):
            raise FileFormatError(f"{path}: its Program takes scalars or keeps state")
        self._session = Session(self.program, device, read.tensors)

    @property
    def inputs(self) -> Sequence[BufferSpec]:
        """Name, dtype and shape of each input."""
        return [self.program.buffers[i] for i in self.program.inputs]

    @property
    def outputs(self) -> Sequence[BufferSpec]:
        """Those of the results."""
        return [self.program.buffers[i] for i in self.program.outputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises CallError, ShapeError or DTypeError for arguments that do not fit."""
        names = [b.name for b in self.inputs]
        given = dict(zip(names, args)) | kwargs
        if len(args) + len(kwargs) != len(names) or given.keys() != set(names):
            raise CallError(
                f"{self.path.name} takes {', '.join(names) or 'nothing'}; got {len(args)} in order "
                f"and {', '.join(kwargs) or 'none'} by name"
            )
        arrays = {b.name: _array(given[b.name], b) for b in self.inputs}
        made = self._session.run(arrays)
        return made[0] if len(made) == 1 else tuple(made)


def _array(value: Any, spec: BufferSpec) -> np.ndarray:
    """64-bit numbers as the 32-bit ones that devices have, within their range."""
    array = np.asarray(value)  # also reads a Tensor on any device
    wanted = spec.dtype.numpy
    wide = array.dtype in (np.int64, np.float64) and array.dtype.kind == wanted.kind
    if wide and array.dtype.kind == "i" and array.size:
        info = np.iinfo(wanted)
        if array.min() < info.min or array.max() > info.max:
            raise CallError(f"{spec.name}: numbers beyond {wanted}")
    return array.astype(wanted) if wide else array
