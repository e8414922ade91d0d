"""The Graph oracle: evaluates a Graph with the NumPy rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.graph.ir import Graph, Node
from weft.ops.primitive import NUMPY, at_once, aval


def evaluate(
    graph: Graph, inputs: Sequence[Any] | Mapping[str, Any], inline: bool = False
) -> list[np.ndarray]:
    """The values of `graph.outputs`, then of the new state in `graph.assigns`, as NumPy arrays.

    `inputs` gives one array per graph input (of every role), in order or by name, each of exactly
    the input's shape and dtype. With `inline`, composites run through their body graphs instead of
    their own NumPy meaning. A bounded input (rows) is evaluated at its full shape.
    """
    values = _bind_inputs(graph, inputs)
    # all outputs of a node; only calls have more than one
    several: dict[int, tuple[np.ndarray, ...]] = {}
    for node in graph.nodes():
        if node.op == "result":
            values[id(node)] = several[id(node.inputs[0])][node.attrs["index"]]
        elif id(node) not in values:
            made = _value(node, values, inline)
            several[id(node)] = made if isinstance(made, tuple) else (made,)
            values[id(node)] = several[id(node)][0]
    return [values[id(n)] for n in graph.roots()]


def _bind_inputs(graph: Graph, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[int, np.ndarray]:
    names = [n.attrs["name"] for n in graph.inputs]
    if isinstance(inputs, Mapping):
        missing = [n for n in names if n not in inputs]
        if missing:
            raise UsageError(f"{graph.name}: no value for input {', '.join(missing)}")
        inputs = [inputs[n] for n in names]
    if len(inputs) != len(names):
        raise UsageError(f"{graph.name}: {len(inputs)} values for {len(names)} inputs: {names}")
    values = {}
    for node, value in zip(graph.inputs, inputs):
        array = np.asarray(value, dtype=node.dtype.numpy) if isinstance(value, int) else value
        known = aval(array)
        if known.shape != node.shape or known.dtype != node.dtype:
            raise ShapeError(
                f"{graph.name}: input {node.attrs['name']!r} is {node.dtype.name}"
                f"{list(node.shape)}, got {known}"
            )
        values[id(node)] = np.asarray(array)
    return values


def _value(node: Node, values: dict[int, np.ndarray], inline: bool) -> Any:
    if node.op == "input":
        raise UsageError(f"input {node.attrs['name']!r} is used but not listed by its graph")
    args = tuple(values[id(x)] for x in node.inputs)
    if node.op == "call" and inline and node.body is not None:
        found = tuple(evaluate(node.body, args, inline))
        return found if len(found) > 1 else found[0]
    with at_once():
        return NUMPY.bind(node.op, args, node.attrs)
