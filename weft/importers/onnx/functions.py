"""Functions: those of the file, and the bodies that ONNX gives to operators of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.errors import FileFormatError, UsageError
from weft.importers.onnx.graph import MOST_NODES, GraphReader, OnnxFunction, OnnxGraph, OnnxNode
from weft.importers.onnx.table import TABLE, Value
from weft.importers.onnx.values import type_code
from weft.importers.ports import label
from weft.tensor.core import Tensor


class Functions:
    """The functions that a model may call, and the constants of its graphs; `tensor` gives those
    that are the module's by their dotted names."""

    def __init__(self, local: dict[tuple[str, str], OnnxFunction], tensor: Callable[[str], Tensor]):
        self.local, self.tensor = local, tensor
        self.longs: set[str] = set()  # tensors of the module that represent int64
        self._bodies: dict[Any, OnnxFunction] = {}

    def constants(self, graph: OnnxGraph) -> dict[str, Value]:
        """The constants of a graph by name."""
        held = {name: self.tensor(dotted) for name, dotted in graph.held.items()}
        return {**graph.constants, **held}

    # -- bodies of ONNX's own operators

    def body(
        self, node: OnnxNode, attrs: Mapping[str, Any], version: int, values: Sequence[Value]
    ) -> OnnxFunction:
        """The function that ONNX defines for an operator, for operands of the given types."""
        codes = tuple(None if v is None else type_code(v) for v in values)
        key = (node.op, version, codes, repr(sorted(attrs.items())))
        if key not in self._bodies:
            from onnx import FunctionProto

            data = _body(node, attrs, version, codes)
            if data is None:
                raise FileFormatError("ONNX gives no function for these operands")
            self._bodies[key] = GraphReader(None).function(FunctionProto.FromString(data))
        return self._bodies[key]


def _body(
    node: OnnxNode, attrs: Mapping[str, Any], version: int, codes: Sequence[int | None]
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
    plain = {k: v for k, v in attrs.items() if not isinstance(v, OnnxGraph)}
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
    graph: OnnxGraph, local: Mapping[tuple[str, str], OnnxFunction], versions: Mapping[str, int]
) -> None:
    """Raises UsageError with the names and places of all operators that neither weft nor a function
    runs; FileFormatError for functions that call themselves or grow beyond MOST_NODES."""
    missing: dict[str, str] = {}
    todo = [(graph, versions), *((f.graph, f.versions) for f in local.values())]
    for top, opsets in todo:
        for inner in (top, *top.subgraphs()):
            for node in inner.nodes:
                if not _runs(node, local, opsets):
                    full = label(f"{node.domain}.{node.op}" if node.domain else node.op)
                    missing.setdefault(full, f"{full} ({node.place.partition(' ')[2]})")
    if missing:
        shown = ", ".join(list(missing.values())[:20])
        raise UsageError(f"weft does not run these operators yet: {shown}")
    _check_growth(graph, local)


def _runs(
    node: OnnxNode, local: Mapping[tuple[str, str], OnnxFunction], versions: Mapping[str, int]
) -> bool:
    if (node.domain, node.op) in local or (node.domain, node.op) in TABLE:
        return True
    if node.domain:
        return False
    schema = schema_of(node.op, versions.get("", 1))
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _check_growth(graph: OnnxGraph, local: Mapping[tuple[str, str], OnnxFunction]) -> None:
    sizes: dict[tuple[str, str], int] = {}

    def calls(graph: OnnxGraph) -> list[OnnxNode]:
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
