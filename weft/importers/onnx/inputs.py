"""The arguments of a call of an ONNX model: arrays checked against the declared inputs, and
placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import DTypeError, ShapeError
from weft.host.foreign import is_foreign, shared_array
from weft.importers.onnx.graph import OnnxGraph
from weft.importers.onnx.values import HOST_ONLY, NUMPY
from weft.importers.ports import Port
from weft.tensor.core import Tensor

_INT = {np.dtype(np.int32), np.dtype(np.int64)}
_HOST = {*HOST_ONLY, np.dtype(np.float64)}


def as_array(port: Port, x: Any) -> np.ndarray | Tensor:
    """A tensor, or an array of another kind as NumPy's, of the type and the sizes declared."""
    wanted = declared(port)
    if isinstance(x, Tensor):
        _check(port, x.dtype.numpy, x.shape)
        return x
    if is_foreign(x):
        x = shared_array("a model", x)
    array = x if isinstance(x, np.ndarray | np.generic) else np.asarray(x, wanted)
    _check(port, array.dtype, array.shape)
    return np.asarray(array)


def declared(port: Port) -> np.dtype | None:
    """The element type of a tensor that is an input. Raises DTypeError for one that weft lacks."""
    if port.kind != "tensor":
        known = ", ".join(t.name for t in NUMPY.values())
        raise DTypeError(f"input {port.text()}; weft reads {known}")
    return port.dtype.numpy if isinstance(port.dtype, DType) else port.dtype


def _check(port: Port, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    wanted = declared(port)
    if wanted is not None and dtype != wanted and not {dtype, wanted} <= _INT:
        raise DTypeError(f"input {port.text()} is {dtype}; give {wanted.name}")
    sizes = port.shape
    if sizes is not None and not (
        len(sizes) == len(shape)
        and all(not isinstance(want, int) or want == have for want, have in zip(sizes, shape))
    ):
        raise ShapeError(f"input {port.text()} has the shape {list(shape)}")


def host_types(graph: OnnxGraph) -> str:
    """The reason why a graph runs on the host node by node: it has types that no device has. "" if
    it does not."""
    for port in graph.inputs:
        if port.dtype in _HOST and port.kind == "tensor":
            return f"input {port.text()}"
    for inner in (graph, *graph.subgraphs()):
        for name, array in inner.constants.items():
            if array.dtype == np.float64 and array.size > 1:
                return f"constant {name!r:.80} is float64"
        for node in inner.nodes:
            if node.op == "Cast" and node.attrs.get("to") == 11:
                return f"{node.place} gives float64"
    return ""


def sizes_of(port: Port, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input for sizes by name; 1 where neither file nor caller says."""
    return tuple(d if isinstance(d, int) else sizes.get(str(d), 1) for d in port.shape or ())
