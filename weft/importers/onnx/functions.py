"""Functions: those of the file, and the bodies that ONNX gives to operators of its own; and the
constants of all graphs as the values that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import DTypeError, FileFormatError, UsageError
from weft.importers.onnx.graph import MOST_NODES, Function, Graph, Node, Reader
from weft.importers.onnx.table import TABLE, Value
from weft.importers.onnx.values import HOST_ONLY, type_code
from weft.tensor.core import Tensor

ON_HOST = 4096  # elements up to which a constant of integers stays on the host
INT32 = np.iinfo(np.int32)


class Functions:
    """The functions that a model may call, and its constants. `device` is None for the CPU."""

    def __init__(self, local: dict[tuple[str, str], Function], device: Any):
        self.local, self.device = local, device
        self.weights: dict[str, Tensor] = {}  # the constants that live on the device, by name
        self._constants: dict[int, tuple[Graph, dict[str, Value]]] = {}  # the Graph stays alive
        self._bodies: dict[Any, Function] = {}

    def constants(self, graph: Graph) -> dict[str, Value]:
        """The constants of a graph: single numbers and few integers stay on the host, where shapes
        are computed; the rest are weights, made once."""
        found = self._constants.get(id(graph))
        if found is None:
            made = {name: self._value(name, array) for name, array in graph.constants.items()}
            found = self._constants[id(graph)] = (graph, made)
        return found[1]

    def _value(self, name: str, array: np.ndarray) -> Value:
        few = array.size <= (ON_HOST if array.dtype.kind in "biu" else 1)
        if few or array.dtype in HOST_ONLY or array.dtype == np.float64:
            return array
        if array.dtype == np.int64:
            if array.min() < INT32.min or array.max() > INT32.max:
                raise DTypeError(
                    f"constant {name!r:.80} holds {array.min()} to {array.max()}; weft's devices "
                    "have int32 for ONNX's int64"
                )
            array = array.astype(np.int32)
        unique = name
        while unique in self.weights:
            unique += "'"
        weight = Tensor(array if array.flags.aligned else array.copy(), unique)
        self.weights[unique] = weight if self.device is None else weight.to(self.device)
        self.weights[unique].name = unique
        return self.weights[unique]

    # -- bodies of ONNX's own operators

    def body(
        self, node: Node, attrs: Mapping[str, Any], version: int, values: Sequence[Value]
    ) -> Function:
        """The function that ONNX gives for an operator, for operands of these types."""
        codes = tuple(None if v is None else type_code(v) for v in values)
        key = (node.op, version, codes, repr(sorted(attrs.items())))
        if key not in self._bodies:
            from onnx import FunctionProto

            data = _body(node, attrs, version, codes)
            if data is None:
                raise FileFormatError("ONNX gives no function for these operands")
            self._bodies[key] = Reader(None).function(FunctionProto.FromString(data))
        return self._bodies[key]


def _body(
    node: Node, attrs: Mapping[str, Any], version: int, codes: Sequence[int | None]
) -> bytes | None:
    from onnx import TypeProto, helper

    schema = schema_of(node.op, version)
    if schema is None:
        return None
    fixed = [v for v in schema.function_opset_versions if v <= version]
    if fixed:
        found: bytes = schema.get_function_with_opset_version(max(fixed))
        return found
    fitting = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not fitting:
        return None
    plain = {k: v for k, v in attrs.items() if not isinstance(v, Graph)}
    names = [n if c is not None else "" for n, c in zip(node.inputs, codes)]
    proto = helper.make_node(node.op, names, list(node.outputs), **plain)
    types = [
        TypeProto(tensor_type=TypeProto.Tensor(elem_type=c)) if c else TypeProto() for c in codes
    ]
    made: bytes = schema.get_context_dependent_function_with_opset_version(
        max(fitting), proto.SerializeToString(), [t.SerializeToString() for t in types]
    )
    return made or None


def schema_of(op: str, version: int) -> Any:
    """ONNX's description of an operator in an opset; None where it has none."""
    from onnx import defs

    try:
        return defs.get_schema(op, version, "")
    except defs.SchemaError:
        return None


# -- what a model needs ---------------------------------------------------------------------------


def check_supported(
    graph: Graph, local: Mapping[tuple[str, str], Function], versions: Mapping[str, int]
) -> None:
    """Raises UsageError that names every operator that neither weft nor a function runs, and where
    it stands; FileFormatError for functions that call themselves or grow beyond MOST_NODES."""
    missing: dict[str, str] = {}
    todo = [(graph, versions), *((f.graph, f.versions) for f in local.values())]
    for top, opsets in todo:
        for inner in (top, *top.subgraphs()):
            for node in inner.nodes:
                if not _runs(node, local, opsets):
                    full = f"{node.domain}.{node.op}" if node.domain else node.op
                    missing.setdefault(full, f"{full} ({node.place.partition(' ')[2]})")
    if missing:
        shown = ", ".join(list(missing.values())[:20])
        raise UsageError(f"weft does not run these operators yet: {shown}")
    _check_growth(graph, local)


def _runs(
    node: Node, local: Mapping[tuple[str, str], Function], versions: Mapping[str, int]
) -> bool:
    if (node.domain, node.op) in local or (node.domain, node.op) in TABLE:
        return True
    if node.domain:
        return False
    schema = schema_of(node.op, versions.get("", 1))
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _check_growth(graph: Graph, local: Mapping[tuple[str, str], Function]) -> None:
    sizes: dict[tuple[str, str], int] = {}

    def calls(graph: Graph) -> list[Node]:
        return [n for g in (graph, *graph.subgraphs()) for n in g.nodes]

    def size(key: tuple[str, str], inside: frozenset[tuple[str, str]]) -> int:
        if key in inside or len(inside) > 200:
            raise FileFormatError(f"function {key[1]!r:.80} calls itself, or calls nest too deeply")
        if key not in sizes:
            nodes = calls(local[key].graph)
            below = inside | {key}
            sizes[key] = sum(
                size(k, below) if (k := (n.domain, n.op)) in local else 1 for n in nodes
            )
        return sizes[key]

    whole = [(n.domain, n.op) for n in calls(graph)]
    total = sum(size(k, frozenset()) if k in local else 1 for k in whole)
    for key in local:
        size(key, frozenset())
    if total > MOST_NODES:
        raise FileFormatError(f"{total} nodes once functions are written out; at most {MOST_NODES}")
