"""Cuts a graph where a value leaves it and comes back changed.

A gap is a value and the input that replaces it. Segment k computes everything up to the value of
gap k, and segment k + 1 continues from its input. A value of an earlier segment that a later one
needs becomes an output of the one and an input of the other, under a name. Values that follow from
weights, constants, states and integer inputs alone (row numbers, positions) are repeated. A state
is read and assigned in one segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.dtypes import int32
from weft.graph.ir import Graph, Node, toposort
from weft.transform.rebuild import remake

Gap = tuple[Node, Node]  # the value that leaves, and the input node of its replacement


@dataclass(frozen=True)
class GapSegment:
    """A part of a graph; `gives` names its outputs, that of its gap first."""

    graph: Graph
    gives: tuple[str, ...]


def cut_at(graph: Graph, gaps: Sequence[Gap], rows: int, bound: str) -> list[GapSegment]:
    """The graph in len(gaps) + 1 segments. A value of `rows` rows that crosses is bounded at run
    time by the scalar `bound`, as the graph's inputs are. Raises ValueError for gaps out of order,
    and for a state that several segments read."""
    return _Cutter(graph, gaps, rows, bound).segments()


class _Cutter:
    def __init__(self, graph: Graph, gaps: Sequence[Gap], rows: int, bound: str) -> None:
        self._graph, self._gaps, self._rows, self._bound = graph, gaps, rows, bound
        came = {id(x): k + 1 for k, (_, x) in enumerate(gaps)}
        roots = (*graph.roots(), *(x for x, _ in gaps))
        self._order = list(toposort(roots))
        self._stage: dict[int, int] = {}  # -1: what is repeated
        for node in self._order:
            own = 0 if node.op == "input" and not _repeated(node) else -1
            below = (self._stage[id(x)] for x in node.inputs)
            self._stage[id(node)] = came.get(id(node), max(own, *below, -1))
        if any(self._stage[id(x)] > k for k, (x, _) in enumerate(gaps)):
            raise ValueError("a value is computed after the gap that it goes into")
        self._crossing = self._find()
        self._check_states()

    def _check_states(self) -> None:
        behind: dict[int, set[int]] = {}  # repeated value -> the states it shows
        found: dict[int, set[int]] = {}  # the segments that read a state
        for node in self._order:
            seen = set[int]().union(*(behind.get(id(x), ()) for x in node.inputs))
            if node.op == "input" and node.attrs["role"] == "state":
                seen = {id(node)}
            if self._stage[id(node)] < 0:
                behind[id(node)] = seen
                continue
            for state in seen:
                found.setdefault(state, set()).add(self._stage[id(node)])
        if any(len(stages) > 1 for stages in found.values()):
            raise ValueError("a state is read by several segments")

    def _find(self) -> dict[int, str]:
        """id -> name of the values that a later segment needs."""
        last = len(self._gaps)
        used = [(x, self._stage[id(n)]) for n in self._order for x in n.inputs]
        used += [(x, k) for k, (x, _) in enumerate(self._gaps)]
        used += [(x, last) for x in self._graph.outputs]
        found: dict[int, str] = {}
        for x, at in used:
            if -1 < self._stage[id(x)] < at and x.op != "input":
                found.setdefault(id(x), f"value.{len(found)}")
        return found

    def segments(self) -> list[GapSegment]:
        return [self._segment(k) for k in range(len(self._gaps) + 1)]

    def _segment(self, k: int) -> GapSegment:
        made: dict[int, Node] = {}
        end = k == len(self._gaps)
        wanted = list(self._graph.outputs) if end else [self._gaps[k][0]]
        names = [f"out.{i}" for i in range(len(wanted))] if end else [f"gap.{k}"]
        for node in self._order:
            if id(node) in self._crossing and self._stage[id(node)] == k:
                wanted.append(node)
                names.append(self._crossing[id(node)])
        assigns = [(s, new) for s, new in self._graph.assigns if self._stage[id(new)] == k]
        for node in self._order:
            earlier = -1 < self._stage[id(node)] < k and node.op != "input"
            if earlier and id(node) in self._crossing:
                made[id(node)] = self._input(node)
            elif not earlier and self._stage[id(node)] <= k:
                made[id(node)] = remake(node, tuple(made[id(x)] for x in node.inputs))
        outputs = tuple(made[id(x)] for x in wanted)
        pairs = tuple((made[id(s)], made[id(new)]) for s, new in assigns)
        used = toposort((*outputs, *(n for pair in pairs for n in pair)))
        inputs = tuple(n for n in used if n.op == "input")
        name = f"{self._graph.name}.{k}"
        return GapSegment(Graph(inputs, outputs, pairs, name, self._graph.meta), tuple(names))

    def _input(self, value: Node) -> Node:
        attrs = {"name": self._crossing[id(value)], "role": "input"}
        if value.shape[:1] == (self._rows,):
            attrs["rows"] = self._bound
        return Node("input", (), attrs, value.shape, value.dtype, where=value.where)


def _repeated(x: Node) -> bool:
    role = x.attrs["role"]
    return role in ("weight", "state") or (role == "input" and x.dtype is int32)
