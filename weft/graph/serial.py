"""A Graph as JSON values and back (docs/file-format.md).

Nodes come in order, operands before users, each naming operands by number; bodies of composites are
not written: their names say them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, FileFormatError, WeftError
from weft.graph.ir import Graph, Node, Shape, toposort

FORMAT = 1
MOST_NODES = 1 << 20
_DEEPEST = 8  # nesting of attributes

# (op, operands, attributes, line of the user's code) -> Node
MakeNode = Callable[[str, tuple[Node, ...], Mapping[str, Any], str], Node]


def to_data(graph: Graph) -> dict[str, Any]:
    """The graph as JSON values: dtypes, arrays and numbers that JSON lacks as objects of one
    entry."""
    order = list(toposort((*graph.inputs, *graph.roots())))
    number = {id(n): i for i, n in enumerate(order)}
    return {
        "format": FORMAT,
        "name": graph.name,
        "nodes": [_node(n, [number[id(x)] for x in n.inputs]) for n in order],
        "inputs": [number[id(n)] for n in graph.inputs],
        "outputs": [number[id(n)] for n in graph.outputs],
        "assigns": [[number[id(a)], number[id(b)]] for a, b in graph.assigns],
        "meta": _plain(dict(graph.meta)),
    }


def _node(node: Node, operands: list[int]) -> list[Any]:
    line = [node.op, operands, {k: _plain(v) for k, v in node.attrs.items()}]
    if node.op == "input":
        line += [list(node.shape), node.dtype.name]
    return line


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        text = base64.b64encode(array.tobytes()).decode()
        return {"array": [as_dtype(array.dtype).name, list(value.shape), text]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, Mapping):
        return {"map": {k: _plain(v) for k, v in value.items()}}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def from_data(data: Any, make: MakeNode) -> Graph:
    """The graph that `to_data` wrote; `make` builds a node by its op's own rules and refuses what
    does not fit. Raises FileFormatError, which names the node."""
    try:
        if data["format"] != FORMAT:
            raise FileFormatError(
                f"graph format {str(data['format'])[:40]!r}; this weft reads {FORMAT}"
            )
        if len(data["nodes"]) > MOST_NODES:
            raise FileFormatError(f"{len(data['nodes'])} nodes; at most {MOST_NODES} are read")
        nodes: list[Node] = []
        for number, line in enumerate(data["nodes"]):
            nodes.append(_read_node(number, line, nodes, make))
        meta = _value(data["meta"], 0)
        if not isinstance(data["name"], str) or not isinstance(meta, dict):
            raise FileFormatError("a graph has a name and meta data")
        return Graph(
            tuple(_picked(nodes, data["inputs"])),
            tuple(_picked(nodes, data["outputs"])),
            tuple((a, b) for a, b in (_picked(nodes, pair) for pair in data["assigns"])),
            data["name"],
            meta,
        )
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, WeftError) as error:
        raise FileFormatError(f"not a graph of weft's: {error!r}"[:300]) from None


def _read_node(number: int, line: Any, nodes: list[Node], make: MakeNode) -> Node:
    try:
        op, operands, attrs, *typed = line
        if not isinstance(op, str) or not isinstance(attrs, dict):
            raise FileFormatError("an op and its attributes are text and an object")
        inputs = tuple(_picked(nodes, operands))
        given = {k: _value(v, 0) for k, v in attrs.items()}
        if op == "input":
            shape, dtype = typed
            return Node(op, inputs, given, _shape(shape), as_dtype(dtype))
        if op == "const":
            value = given["value"]
            return Node(op, (), {"value": value}, value.shape, as_dtype(value.dtype))
        made = make(op, inputs, given, "")
        if not isinstance(made.dtype, DType):  # an attribute that names a dtype
            raise FileFormatError(f"its dtype is {ascii(made.dtype)[:40]}")
        return made
    except (WeftError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        said = str(error) if isinstance(error, WeftError) else repr(error)
        raise FileFormatError(f"node {number} ({str(line)[:60]}): {said[:200]}") from None


def _picked(nodes: list[Node], numbers: Any) -> list[Node]:
    if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
        raise FileFormatError(f"{str(numbers)[:60]} is not a list of nodes")
    if max(numbers, default=-1) >= len(nodes):
        raise FileFormatError(f"node {max(numbers)} is used before it is there")
    return [nodes[n] for n in numbers]


def _shape(value: Any) -> Shape:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in value):
        raise FileFormatError(f"{str(value)[:60]} is no shape")
    return tuple(value)


def _value(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise FileFormatError("attributes within attributes, too deep")
    if isinstance(value, list):
        return tuple(_value(v, depth + 1) for v in value)
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dtype":
        return as_dtype(inner)
    if kind == "float":
        return float(inner)
    if kind == "map" and isinstance(inner, dict):
        return {k: _value(v, depth + 1) for k, v in inner.items()}
    if kind == "array":
        return _array(*inner)
    raise FileFormatError(f"an attribute of kind {str(kind)[:40]!r}")


def _array(name: Any, shape: Any, text: Any) -> np.ndarray:
    dtype, sizes = as_dtype(name), _shape(shape)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise DTypeError(f"an array's bytes are not base64: {error}") from None
    if len(raw) != math.prod(sizes) * dtype.itemsize:
        raise FileFormatError(f"{len(raw)} bytes for an array {name} {list(sizes)}")
    return np.frombuffer(raw, dtype.numpy).reshape(sizes)
