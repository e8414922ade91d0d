"""ONNX files in: `from_onnx`."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, UsageError, unreadable
from weft.core.install import how
from weft.core.notices import say, say_unread
from weft.host.boundary import guarded
from weft.importers.onnx import (  # noqa: F401  (each fills its part of the table)
    activations,
    attention,
    codes,
    contrib,
    control,
    elementwise,
    linear,
    movement,
    nets,
    packed,
    pooling,
    quantised,
    recurrent,
    reductions,
    resampling,
    resize,
    sampling,
    selection,
    sequences,
    signal,
)
from weft.importers.onnx.external import External
from weft.importers.onnx.functions import check_supported
from weft.importers.onnx.graph import GraphReader, OnnxFunction, OnnxGraph, versions
from weft.importers.onnx.model import OnnxModel
from weft.importers.onnx.weights import unread
from weft.importers.ports import label
from weft.tensor.device import open_device

OLDEST = 6  # Most operators had other attributes in earlier versions.
MOST_BYTES = 1 << 31  # most bytes of a protobuf message


@guarded
def from_onnx(path: str | os.PathLike[str] | Any, device: Any = None) -> OnnxModel:
    """The model in an ONNX file (or a ModelProto) as a Module, called with arrays; needs the extra
    `import`.

    It runs on `device` (the CPU by default), compiled once per signature; after `train()` its float
    initializers take gradients. 64-bit integers are 32-bit there, float64 exists on the CPU alone.
    It supports opsets from 7 to the newest that the onnx package knows.

    Raises FileFormatError for a damaged, inconsistent or hostile file, UsageError naming all
    unsupported operators, DTypeError for unsupported element types.
    """
    try:
        import onnx
    except ImportError:
        raise UsageError(f"from_onnx needs the onnx package: {how('import')}") from None
    if isinstance(path, onnx.ModelProto):
        proto, name, external = path, "model", External(Path("model"))
    else:
        proto, name, external = _parsed(Path(path), onnx), Path(path).stem, External(Path(path))
    graph, local, opsets = _read(proto, external, onnx)
    check_supported(graph, local, opsets)
    say_unread(label(name), map(label, unread(graph)))
    if proto.training_info:
        say(f"{label(name)}: weft does not read training_info, which changes nothing here")
    home = None if device is None else open_device(device)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    return OnnxModel(label(name), graph, local, opsets, home, metadata)


def _parsed(path: Path, onnx: Any) -> Any:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise FileFormatError(f"{path}: not a regular file")
        if info.st_size >= MOST_BYTES:
            raise FileFormatError(f"{path}: {info.st_size} bytes; protobuf ends at 2 GiB")
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own class, whatever its version
        first = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise FileFormatError(
            f"{path}: not an ONNX file, damaged or nested too deeply: {first}"
        ) from None
    if not proto.HasField("graph"):
        raise FileFormatError(f"{path}: no graph inside; is it an ONNX file?")
    return proto


def _read(
    proto: Any, external: External, onnx: Any
) -> tuple[OnnxGraph, dict[tuple[str, str], OnnxFunction], dict[str, int]]:
    if not 3 <= proto.ir_version <= onnx.IR_VERSION:
        raise FileFormatError(
            f"IR version {proto.ir_version}; this onnx package knows 3 to {onnx.IR_VERSION}"
        )
    opsets = versions(proto.opset_import)
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opsets.get("", 0) <= newest:
        raise FileFormatError(
            f"opset {opsets.get('', 'none')}: weft reads {OLDEST} to {newest}; convert the file "
            "with onnx.version_converter, or install a newer onnx"
        )
    reader = GraphReader(external)
    try:
        graph = reader.graph(proto.graph)
        local: dict[tuple[str, str], OnnxFunction] = {}
        for entry in proto.functions:
            key = ("" if entry.domain == "ai.onnx" else entry.domain, entry.name)
            if key in local:
                raise FileFormatError(f"two functions are called {entry.name!r:.80}")
            local[key] = reader.function(entry)
    except RecursionError:
        raise FileFormatError("graphs nest too deeply") from None
    return graph, local, opsets
