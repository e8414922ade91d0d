"""Constants of a file as parameters and buffers of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from weft.importers.foreign import Foreign
from weft.importers.onnx.graph import OnnxGraph
from weft.importers.onnx.longs import fits
from weft.importers.onnx.table import Value
from weft.importers.onnx.values import HOST_ONLY
from weft.nn.module import Parameter
from weft.program.device import Device
from weft.tensor.core import Tensor

ON_HOST = 4096  # elements up to which a constant of integers stays on the host
LARGE = 64  # elements from which a Constant node counts as a weight
# Operands that are measured, not learnt.
_MEASURED = {"BatchNormalization": (3, 4), "QuantizeLinear": (1,), "DequantizeLinear": (1,)}


def unread(graph: OnnxGraph) -> Iterator[str]:
    """The initializers of a graph and its subgraphs that neither a node nor an output reads. Large
    Constant nodes count too; a small one is a left-over of the program that wrote the file."""
    for inner in (graph, *graph.subgraphs()):
        read = {name for node in inner.nodes for name in node.reads}
        read.update(port.name for port in inner.outputs)
        for name, array in inner.constants.items():
            if name not in read and (name in inner.initial or array.size > LARGE):
                yield name


def hold_constants(module: Foreign, graphs: Sequence[OnnxGraph], device: Device | None) -> set[str]:
    """Makes tensors of the module from the constants of the graphs and their subgraphs: parameters
    from float initializers, buffers from other arrays. Single numbers and short integer arrays stay
    arrays, since shapes are computed from them; so do integers beyond 32 bits. Returns the names of
    the int64 ones, which are int32 now."""
    longs: set[str] = set()
    for graph in (inner for g in graphs for inner in (g, *g.subgraphs())):
        measured = {
            node.inputs[i]
            for node in graph.nodes
            for i in _MEASURED.get(node.op, ())
            if i < len(node.inputs)
        }
        for name in list(graph.constants):
            made = _tensor(graph.constants[name])
            if made is None:
                continue
            learnt = name in graph.initial and name not in measured and made.dtype.is_float
            dotted = module.safe_name(name)
            value = Parameter(made, name=dotted) if learnt else made
            value.name = dotted
            module.hold(
                dotted, value if device is None else value.to_(device), name in graph.initial
            )
            graph.held[name] = dotted
            if graph.constants[name].dtype == np.int64:
                longs.add(dotted)
            del graph.constants[name]
    return longs


def _tensor(array: np.ndarray) -> Tensor | None:
    few = array.size <= ON_HOST if array.dtype.kind in "biu" else array.ndim == 0
    if few or array.size == 0 or array.dtype in HOST_ONLY or array.dtype == np.float64:
        return None
    if not fits(array):
        return None
    if array.dtype == np.int64:
        array = array.astype(np.int32)
    return Tensor(array if array.flags.aligned else array.copy())


class Constants(Mapping[str, Value]):
    """The constants of a graph by name: arrays, and the module's tensors as they are now."""

    def __init__(self, graph: OnnxGraph, tensor: Callable[[str], Tensor]):
        self.graph, self.tensor = graph, tensor

    def __getitem__(self, name: str) -> Value:
        dotted = self.graph.held.get(name)
        return self.graph.constants[name] if dotted is None else self.tensor(dotted)

    def __contains__(self, name: object) -> bool:
        return name in self.graph.held or name in self.graph.constants

    def __iter__(self) -> Iterator[str]:
        yield from self.graph.constants
        yield from self.graph.held

    def __len__(self) -> int:
        return len(self.graph.constants) + len(self.graph.held)
