"""Describes the difference between two Graphs of one function."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.digest import plain
from weft.graph.ir import Graph, Node, toposort


def difference(now: Graph, then: Graph) -> str | None:
    """The first thing in which two Graphs differ; None where they compute the same. Names of inputs
    and lines of the user's code do not count."""
    new, old = _order(now), _order(then)
    numbers = [{id(n): i for i, n in enumerate(order)} for order in (new, old)]
    for a, b in zip(new, old):
        said = _said(a, b, numbers[0], numbers[1])
        if said is not None:
            return said
    if len(new) != len(old):
        extra = (new if len(new) > len(old) else old)[min(len(new), len(old))]
        return f"{extra.op}{_at(extra)} is {'new' if len(new) > len(old) else 'gone'}"
    ends = [
        (
            [number[id(n)] for n in graph.outputs],
            sorted((number[id(a)], number[id(b)]) for a, b in graph.assigns),
        )
        for graph, number in zip((now, then), numbers)
    ]
    return None if ends[0] == ends[1] else "the results or the assignments are others"


def _order(graph: Graph) -> list[Node]:
    return list(toposort((*graph.inputs, *graph.roots())))


def _said(a: Node, b: Node, new: dict[int, int], old: dict[int, int]) -> str | None:
    if a.op != b.op:
        return f"{a.op}{_at(a)} stands where {b.op}{_at(b)} was"
    if a.shape != b.shape or a.dtype is not b.dtype:
        known = f"{b.dtype.name}{list(b.shape)}"
        return f"{a.op}{_at(a)} is {a.dtype.name}{list(a.shape)}; it was {known}"
    mine, theirs = _facts(a), _facts(b)
    for key in mine.keys() | theirs.keys():
        x, y = mine.get(key), theirs.get(key)
        if repr(plain(x)) != repr(plain(y)):
            return f"{key} of {a.op}{_at(a)} is {_short(x)}; it was {_short(y)}"
    if [new[id(x)] for x in a.inputs] != [old[id(x)] for x in b.inputs]:
        return f"{a.op}{_at(a)} has other operands"
    return None


def _facts(node: Node) -> dict[str, Any]:
    hidden = {"name"} if node.op == "input" else set()
    return {k: v for k, v in node.attrs.items() if k not in hidden}


def _at(node: Node) -> str:
    return f" (at {node.where})" if node.where else ""


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
