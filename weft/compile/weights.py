"""The memory format of a Program's weights, for its report: form, bits per element, order."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from weft.graph.ir import Graph, Node
from weft.ops.packed import form_of


class WeightLine(NamedTuple):
    """Weights that are alike: `name` with * for the number of a layer, how many they are, how an
    element is kept and in how many bits, and how kernels read it."""

    name: str
    alike: int
    form: str
    bits: float
    read: str


def weight_lines(graph: Graph, stored: Collection[int]) -> list[WeightLine]:
    """A line for every matrix that is a weight; `stored` are the ids of values that kernels
    write."""
    found: dict[tuple[str, str, float, str], set[str]] = {}
    order = list(graph.nodes())
    calls = [x for x in order if form_of(x) is not None]
    parts = {id(p) for x in calls for p in x.inputs}
    for node in (*calls, *(x for x in order if id(x) not in parts and _is_matrix(x))):
        form = form_of(node)
        first = node.inputs[0] if form else node
        name = str(first.attrs.get("name", "")).removesuffix(".codes")
        kind = form.text() if form else node.dtype.name
        size = sum(p.nbytes for p in node.inputs) if form else node.nbytes
        read = "widened in each run" if id(node) in stored else _order(first)
        key = re.sub(r"^\d+\.", "*.", name), kind, round(8 * size / node.size, 3), read
        found.setdefault(key, set()).add(name)
    return [WeightLine(k[0], len(names), *k[1:]) for k, names in found.items()]


def _is_matrix(node: Node) -> bool:
    return node.op == "input" and node.attrs["role"] == "weight" and len(node.shape) == 2


def _order(weight: Node) -> str:
    lanes = weight.attrs.get("interleave")
    return f"{lanes} rows interleaved" if lanes else "as it is"
