"""A hash of what a Graph computes: equal graphs traced in different processes have equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.graph.ir import Graph, toposort


def digest(graph: Graph) -> str:
    """64 hex digits. Lines of the user's code do not count; constants do by content, composites by
    name and parameters (their bodies are part of weft's own source)."""
    order = list(toposort((*graph.inputs, *graph.roots())))
    number = {id(n): i for i, n in enumerate(order)}
    total = hashlib.sha256(graph.name.encode())
    for node in order:
        operands = [number[id(x)] for x in node.inputs]
        facts = (node.op, operands, plain(node.attrs), node.shape, node.dtype.name)
        total.update(repr(facts).encode())
    ends = [number[id(n)] for n in graph.outputs]
    assigns = [(number[id(state)], number[id(new)]) for state, new in graph.assigns]
    total.update(repr(([number[id(n)] for n in graph.inputs], ends, assigns)).encode())
    return total.hexdigest()


def plain(value: Any) -> Any:
    """An attribute as values whose repr says all: arrays by a hash of their content."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ("array", value.dtype.name, value.shape, content)
    if isinstance(value, Mapping):
        return [(k, plain(v)) for k, v in value.items()]
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value
