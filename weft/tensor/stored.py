"""A compiled function in one file: its Program, the weights it reads, in their buffers' order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import CallError, FileFormatError, UsageError
from weft.core.records import to_data
from weft.graph.ir import Graph
from weft.program import bundle, serial
from weft.program.bundle import Bundle
from weft.program.program import BufferSpec, Program
from weft.program.session import Session
from weft.program.weights import Ordered
from weft.tensor.core import Tensor
from weft.tensor.programs import program_from

if TYPE_CHECKING:
    from weft.program.device import Device

NAME = "main"


def save_graph(
    graph: Graph,
    captured: Mapping[str, Tensor],
    path: Path,
    device: str,
    caps: Caps,
    flags: Mapping[str, Any] = {},
    beside: bool = False,
) -> Bundle:
    """Writes a traced graph, compiled for `caps` (which `device` names), with the values that the
    tensors it reads have now, which never change from then on. What was written. Raises UsageError
    for a graph that assigns to state, CompileError, StorageError."""
    import weft
    from weft.compile.passes import compile_graph

    if graph.assigns:
        name = graph.assigns[0][0].attrs["name"]
        raise UsageError(f"{graph.name} assigns to {name!r}; a file holds functions without state")
    frozen = replace(graph, meta={**graph.meta, "frozen": True})
    program = compile_graph(frozen, caps, name=graph.name)
    weights = {n.attrs["name"]: n for n in graph.inputs if n.attrs["role"] == "weight"}
    arrays = {
        name: captured[name].numpy().astype(node.dtype.numpy, copy=False)
        for name, node in weights.items()
    }
    head = {
        "kind": "function", "weft": weft.__version__, "name": graph.name, "device": device,
        "caps": to_data(caps), "flags": dict(flags),
    }  # fmt: skip
    found = Bundle(head, {NAME: serial.dumps(program)}, Ordered({NAME: program}, arrays))
    bundle.write(found, path, beside)
    return found


class Stored:
    """A function of a file, on a device. Called with arrays (or tensors) in the order of `inputs`
    or by their names; gives a NumPy array, a tuple where there are several results."""

    def __init__(self, path: Path, read: Bundle, device: Device) -> None:
        """Raises FileFormatError, LimitError, OutOfMemoryError."""
        if NAME not in read.programs:
            raise FileFormatError(f"{path}: no Program {NAME!r} in it")
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
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    wanted = spec.dtype.numpy
    wide = array.dtype in (np.int64, np.float64) and array.dtype.kind == wanted.kind
    if wide and array.dtype.kind == "i" and array.size:
        info = np.iinfo(wanted)
        if array.min() < info.min or array.max() > info.max:
            raise CallError(f"{spec.name}: numbers beyond {wanted}")
    return array.astype(wanted) if wide else array
