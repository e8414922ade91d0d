"""A Graph as JSON text. Reading treats the text as a stranger's: every index, size and type is
checked, and anything wrong is a FileFormatError; nothing is executed or imported.

    {"weft_graph": 1, "graphs": [{"name", "nodes": [...], "inputs", "outputs", "assigns"}, ...]}

Bodies come before the graphs whose calls use them; the last graph is the one saved. Operands come
before users. Arrays are base64 of little-endian C-order bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import ALL, DType
from weft.core.errors import CompileError, FileFormatError
from weft.graph.ir import Graph, Node, toposort
from weft.graph.verify import MAX_RANK, ShapeRule, verify

VERSION = 1
MAX_NODES = 1_000_000
_DTYPES = {d.name: d for d in ALL}


# -- writing ------------------------------------------------------------------------------------


def to_json(graph: Graph) -> str:
    """The graph with its bodies as JSON text (`meta` is left out)."""
    order: list[Graph] = []
    _collect(graph, order, set())
    index = {id(g): i for i, g in enumerate(order)}
    graphs = [_graph_out(g, index) for g in order]
    return json.dumps({"weft_graph": VERSION, "graphs": graphs}, allow_nan=False)


def _collect(graph: Graph, order: list[Graph], seen: set[int]) -> None:
    if id(graph) in seen:
        return
    seen.add(id(graph))
    for node in toposort(graph.roots()):
        if node.body is not None:
            _collect(node.body, order, seen)
    order.append(graph)


def _graph_out(graph: Graph, bodies: Mapping[int, int]) -> dict[str, Any]:
    nodes = list(toposort((*graph.inputs, *graph.roots())))
    number = {id(n): i for i, n in enumerate(nodes)}
    return {
        "name": graph.name,
        "nodes": [_node_out(n, number, bodies) for n in nodes],
        "inputs": [number[id(n)] for n in graph.inputs],
        "outputs": [number[id(n)] for n in graph.outputs],
        "assigns": [[number[id(a)], number[id(b)]] for a, b in graph.assigns],
    }


def _node_out(node: Node, number: Mapping[int, int], bodies: Mapping[int, int]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "op": node.op,
        "in": [number[id(x)] for x in node.inputs],
        "attrs": {k: _attr_out(v) for k, v in node.attrs.items()},
        "shape": list(node.shape),
        "dtype": node.dtype.name,
    }
    if node.body is not None:
        out["body"] = bodies[id(node.body)]
    if node.where:
        out["where"] = node.where
    return out


def _attr_out(value: Any) -> Any:
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value)
        data = base64.b64encode(little.tobytes()).decode("ascii")
        name = next(d.name for d in ALL if d.numpy == value.dtype)
        return {"array": data, "shape": list(value.shape), "of": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, tuple | list):
        return [_attr_out(v) for v in value]
    if isinstance(value, Mapping):
        return {"dict": {k: _attr_out(v) for k, v in value.items()}}
    return value


# -- reading ------------------------------------------------------------------------------------


def from_json(text: str, rule: ShapeRule | None = None) -> Graph:
    """The graph written by `to_json`, verified (with `rule`, shapes are recomputed). Raises
    FileFormatError for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"graph: not JSON ({error})") from None
    if not isinstance(data, dict) or data.get("weft_graph") != VERSION:
        raise FileFormatError(f'graph: no "weft_graph": {VERSION}; another file or another version')
    graphs: list[Graph] = []
    try:
        for item in _list(data.get("graphs"), "graphs"):
            graphs.append(_graph_in(_dict(item, "graph"), graphs))
        if not graphs:
            raise FileFormatError("graph: the list of graphs is empty")
        verify(graphs[-1], rule)
    except (CompileError, RecursionError) as error:
        raise FileFormatError(f"graph: inconsistent: {error}") from None
    return graphs[-1]


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise FileFormatError(f"graph: {what} is not a list of at most {MAX_NODES}")
    return value


def _dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FileFormatError(f"graph: a {what} is not an object")
    return value


def _str(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise FileFormatError(f"graph: {what} is not a short string")
    return value


def _pick(items: list[Any], index: Any, what: str) -> Any:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(items):
        raise FileFormatError(f"graph: {what} {index!r} is not one of the {len(items)} before it")
    return items[index]


def _graph_in(data: dict[str, Any], bodies: list[Graph]) -> Graph:
    nodes: list[Node] = []
    for item in _list(data.get("nodes"), "nodes"):
        nodes.append(_node_in(_dict(item, "node"), nodes, bodies))
    pairs = [_list(p, "assign") for p in _list(data.get("assigns"), "assigns")]
    if any(len(p) != 2 for p in pairs):
        raise FileFormatError("graph: an assign is not a pair of nodes")
    return Graph(
        tuple(_pick(nodes, i, "input") for i in _list(data.get("inputs"), "inputs")),
        tuple(_pick(nodes, i, "output") for i in _list(data.get("outputs"), "outputs")),
        tuple((_pick(nodes, a, "state"), _pick(nodes, b, "value")) for a, b in pairs),
        _str(data.get("name"), "name"),
    )


def _node_in(data: dict[str, Any], nodes: list[Node], bodies: list[Graph]) -> Node:
    inputs = tuple(_pick(nodes, i, "operand") for i in _list(data.get("in"), "operands"))
    attrs = {k: _attr_in(v) for k, v in _dict(data.get("attrs"), "set of attributes").items()}
    body = _pick(bodies, data["body"], "body") if "body" in data else None
    where = _str(data.get("where", ""), "where")
    shape, dtype = _shape_in(data.get("shape")), _dtype_in(data.get("dtype"))
    return Node(_str(data.get("op"), "op"), inputs, attrs, shape, dtype, body, where)


def _shape_in(value: Any) -> tuple[int, ...]:
    sizes = _list(value, "shape")
    plain = all(isinstance(d, int) and not isinstance(d, bool) for d in sizes)
    if not plain or len(sizes) > MAX_RANK or any(not 0 <= d < 1 << 48 for d in sizes):
        raise FileFormatError(f"graph: {sizes!r} is not a shape")
    return tuple(sizes)


def _dtype_in(value: Any) -> DType:
    if not isinstance(value, str) or value not in _DTYPES:
        raise FileFormatError(f"graph: {value!r} is not a dtype; known: {', '.join(_DTYPES)}")
    return _DTYPES[value]


def _attr_in(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_attr_in(v) for v in value)
    if isinstance(value, dict):
        return _tagged_in(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FileFormatError(f"graph: attribute {value!r} is not plain data")


def _tagged_in(value: dict[str, Any]) -> Any:
    if set(value) == {"dtype"}:
        return _dtype_in(value["dtype"])
    if set(value) == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    if set(value) == {"dict"}:
        return {k: _attr_in(v) for k, v in _dict(value["dict"], "attribute").items()}
    if set(value) == {"array", "shape", "of"}:
        return _array_in(value)
    raise FileFormatError(f"graph: an attribute object has the keys {sorted(value)}")


def _array_in(value: dict[str, Any]) -> np.ndarray:
    shape, dtype = _shape_in(value["shape"]), _dtype_in(value["of"])
    if not isinstance(value["array"], str):
        raise FileFormatError("graph: an array is not base64 text")
    try:
        data = base64.b64decode(value["array"], validate=True)
    except (binascii.Error, ValueError):
        raise FileFormatError("graph: an array is not base64 text") from None
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise FileFormatError(
            f"graph: an array {dtype.name}{list(shape)} has {len(data)} bytes, expected {wanted}"
        )
    if dtype.kind == "bool" and set(data) - {0, 1}:
        raise FileFormatError("graph: a bool array holds bytes other than 0 and 1")
    return np.frombuffer(data, dtype.numpy).reshape(shape)
