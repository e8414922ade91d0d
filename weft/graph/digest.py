"""A hash of what a Graph computes: equal graphs traced in different processes have equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.graph.ir import Graph, toposort

_SCALARS = (str, int)
_MAPPINGS = (dict, Mapping)  # a dict is known at once, any other mapping slowly


def digest(graph: Graph) -> str:
    """64 hex digits. Lines of the user's code do not count; constants do by content, composites by
    name and parameters (their bodies are part of weft's own source)."""
    order = list(toposort((*graph.inputs, *graph.roots())))
    number = {n: i for i, n in enumerate(order)}
    total = hashlib.sha256(graph.name.encode())
    for node in order:
        operands = [number[x] for x in node.inputs]
        facts = (node.op, operands, plain(node.attrs), node.shape, node.dtype.name)
        total.update(repr(facts).encode())
    ends = [number[n] for n in graph.outputs]
    assigns = [(number[state], number[new]) for state, new in graph.assigns]
    total.update(repr(([number[n] for n in graph.inputs], ends, assigns)).encode())
    return total.hexdigest()


def plain(value: Any) -> Any:
    """An attribute as values whose repr says all: arrays by a hash of their content."""
    if isinstance(value, _SCALARS):  # most of them
        return value
    if isinstance(value, DType):
        return value.name
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ("array", value.dtype.name, value.shape, content)
    if isinstance(value, _MAPPINGS):
        return [(k, plain(v)) for k, v in value.items()]
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value
