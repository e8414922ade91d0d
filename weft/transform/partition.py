"""Cuts a graph that a device cannot run whole into parts for the device and for the host.

The device computes every value unless `reason` gives an obstacle. Parts alternate between the two
sides, and there are as few as possible. A value goes into the earliest part of its side that
follows all its operands. A value that crosses between parts is an output of one and an input of
another, under a name. Sources and movement of sources are repeated in every part that reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node, toposort
from weft.transform.rebuild import kind_of, label, remake, shown, users

Side = Literal["device", "host"]
Reason = Callable[[Node], str | None]
SIDES: tuple[Side, Side] = ("device", "host")


@dataclass(frozen=True)
class GraphPart:
    """A graph for one side; `gives` names its outputs. An input of role "input" is one of the
    whole graph, or a value that an earlier part gives."""

    side: Side
    graph: Graph
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """Parts in the order they run, the name of each output of the whole graph, and why the values
    on the host are there, with the number of their part."""

    parts: tuple[GraphPart, ...]
    outputs: tuple[str, ...]
    reasons: tuple[tuple[Node, str, int], ...]


def cut_graph(graph: Graph, reason: Reason) -> Cut:
    """The graph in parts; `reason(node)` is why the device cannot compute a value, or None.

    States live on one side and are assigned by the last part that reads them. Raises CompileError
    naming the values where a state would be read or assigned on both.
    """
    cutters = [_Cutter(graph, reason, first) for first in SIDES]
    return min(cutters, key=lambda c: len(c.stages())).cut()


class _Cutter:
    """One numbering of parts: even stages run on side `first`, odd ones on the other."""

    def __init__(self, graph: Graph, reason: Reason, first: Side):
        self.graph, self.first = graph, first
        self.order = list(graph.nodes())
        self.why = {id(n): why for n in (*self.order, *graph.inputs) if (why := reason(n))}
        fixed = {*self.why, *(id(n) for n in graph.roots())}
        self.free: dict[int, set[int]] = {}  # id -> the states that the repeated value shows
        self.stage: dict[int, int] = {}  # the other values, and sources that are outputs
        for node in self.order:
            source = kind_of(node) == "source"
            if source or (id(node) not in fixed and self._moves_sources(node)):
                self.free[id(node)] = set[int]().union(*(self.free[id(x)] for x in node.inputs))
                if node.attrs.get("role") == "state":
                    self.free[id(node)].add(id(node))
            else:
                self.stage[id(node)] = self._earliest(node)
        self.users = users(graph)
        self.last_use = self._place_states()  # id(state) -> the stage that assigns it
        for node in graph.outputs:
            if id(node) not in self.stage:
                placed = self.last_use.get(id(node))
                self.stage[id(node)] = self._last(node) if placed is None else placed
        self.names = self._name_values()

    def stages(self) -> list[int]:
        """The stages that have something to do, in order."""
        assigned = [self.last_use[id(state)] for state, _ in self.graph.assigns]
        return sorted({*self.stage.values(), *assigned})

    def _moves_sources(self, node: Node) -> bool:
        return kind_of(node) == "movement" and all(id(x) in self.free for x in node.inputs)

    def _side(self, node: Node) -> Side:
        return "host" if id(node) in self.why else "device"

    def _side_of(self, stage: int) -> Side:
        return SIDES[(SIDES.index(self.first) + stage) % 2]

    def _earliest(self, node: Node) -> int:
        side = self._side(node)
        found = 0 if side == self.first else 1
        for x in node.inputs:
            if id(x) in self.stage:
                at = self.stage[id(x)]
                found = max(found, at if self._side_of(at) == side else at + 1)
        return found

    def _last(self, node: Node) -> int:
        """The last stage that can hold a source: any, or one on the host."""
        anywhere = id(node) not in self.why
        known = [s for s in self.stage.values() if anywhere or self._side_of(s) == "host"]
        return max(known, default=0 if self._side(node) == self.first else 1)

    # -- states -----------------------------------------------------------------------------------

    def _place_states(self) -> dict[int, int]:
        """id(state) -> the last stage that uses it, which assigns it."""
        states = [x for x in self.graph.inputs if x.attrs["role"] == "state"]
        touched: dict[int, list[Node]] = {id(x): [] for x in states}
        for state, new in self.graph.assigns:
            # a state's value assigned to another state stays in one part
            if id(new) in touched and new is not state:
                a, b = touched[id(state)], touched[id(new)]
                touched |= {k: a for k, v in touched.items() if v is b}
        for node in self.order:
            if id(node) in self.stage:
                for key in set[int]().union(*(self.free.get(id(x), set()) for x in node.inputs)):
                    touched[key].append(node)
        for state, new in self.graph.assigns:
            if id(new) in self.stage:
                touched[id(state)].append(new)
        placed = {}
        for state in states:
            found = touched[id(state)]
            self._check_one_side(state, found)
            at = max((self.stage[id(n)] for n in found), default=None)
            placed[id(state)] = self._last(state) if at is None else at
        return placed

    def _check_one_side(self, state: Node, found_in: list[Node]) -> None:
        found: dict[Side, str] = {}
        if id(state) in self.why:
            found["host"] = self.why[id(state)]
        for n in found_in:
            why = f": {self.why[id(n)]}" if id(n) in self.why else ""
            found.setdefault(self._side(n), f"{shown(n)}{why}")
        if len(found) > 1:
            raise CompileError(
                f"state {state.attrs['name']!r} would be used on both sides: on the device by "
                f"{found['device']}; on the host by {found['host']}. A state lives on one side: "
                "keep a second tensor for the other"
            )

    # -- parts ------------------------------------------------------------------------------------

    def _name_values(self) -> dict[int, str]:
        taken = {x.attrs["name"] for x in self.graph.inputs}
        names: dict[int, str] = {}
        for i, node in enumerate(n for n in self.order if id(n) in self.stage):
            name = f"{label(node)}.{i}"
            while name in taken:
                name += "_"
            taken.add(name)
            names[id(node)] = name
        return names

    def cut(self) -> Cut:
        """The parts of this numbering."""
        numbers = {stage: number for number, stage in enumerate(self.stages())}
        parts = tuple(self._part(stage, number) for stage, number in numbers.items())
        outputs = tuple(self.names[id(n)] for n in self.graph.outputs)
        found = [n for n in self.order if id(n) in self.why and id(n) in self.stage]
        reasons = [(n, self.why[id(n)], numbers[self.stage[id(n)]]) for n in found]
        return Cut(parts, outputs, tuple(reasons))

    def _part(self, stage: int, number: int) -> GraphPart:
        made: dict[int, Node] = {}

        def local(x: Node) -> Node:
            """The value inside this part: computed, repeated, or taken from another part."""
            if id(x) in self.free:
                return x
            if id(x) not in made:
                attrs = {"name": self.names[id(x)], "role": "input"}
                made[id(x)] = Node("input", (), attrs, x.shape, x.dtype, where=x.where)
            return made[id(x)]

        for node in self.order:
            if self.stage.get(id(node)) == stage and id(node) not in self.free:
                made[id(node)] = remake(node, tuple(map(local, node.inputs)))
        assigns = tuple(
            (state, local(new))
            for state, new in self.graph.assigns
            if self.last_use[id(state)] == stage
        )
        given = [n for n in self.order if self.stage.get(id(n)) == stage and self._leaves(n)]
        outputs = tuple(local(n) for n in given)
        name = f"{self.graph.name}.{number}"
        used = {id(n): n for n in toposort((*outputs, *(n for pair in assigns for n in pair)))}
        inputs = [x for x in self.graph.inputs if used.pop(id(x), None)]
        inputs += [n for n in used.values() if n.op == "input"]
        body = Graph(tuple(inputs), outputs, assigns, name, self.graph.meta)
        return GraphPart(self._side_of(stage), body, tuple(self.names[id(n)] for n in given))

    def _leaves(self, node: Node) -> bool:
        """True if a value is used outside of its part."""
        at = self.stage[id(node)]
        if any(n is node for n in self.graph.outputs):
            return True
        if id(node) in self.free:
            return False
        if any(n is node and self.last_use[id(s)] != at for s, n in self.graph.assigns):
            return True
        return any(self.stage.get(id(n), at) != at for n in self.users[id(node)])
