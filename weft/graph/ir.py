"""Graph: immutable values on the way from a traced function to a Program. It knows no device.

A Node is one value: a primitive applied to other values. Nodes are compared by identity; a Graph
lists its inputs, outputs and the state assignments that a run performs after computing them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from weft.core.dtypes import DType
from weft.core.records import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of a Graph.

    `attrs` are plain data (ints, floats, strings, dtypes, tuples). For op "const", `attrs["value"]`
    is a NumPy array; for op "call", `body` is the composite's Graph. A call is the first output of
    its body. Each further output is a node of op "result" over the call, with attrs index: the
    output's number in the body.

    op "input" has attrs name and role. An "input" is passed at each run. A "scalar" is a 0-d int32
    passed at each run and kept in the scalar buffer (lengths, positions). A "state" lives on the
    device between runs. A "weight" is read-only, named, and bound when the Program is loaded.
    """

    op: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    shape: Shape
    dtype: DType
    body: Graph | None = None
    where: str = ""  # "file:line" of the user's code, for messages

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype.name}{list(self.shape)}>"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Graph:
    """`outputs` (and the new value of each state in `assigns`) as functions of `inputs`.

    `assigns` pairs a state input node with the value it takes when the run ends. `meta["frozen"]`
    promises that weights never change while bound, so that they may be kept in another order.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    assigns: tuple[tuple[Node, Node], ...] = ()
    name: str = "graph"
    meta: Mapping[str, Any] = field(default_factory=dict)
    _nodes: list[tuple[Node, ...]] = field(default_factory=list, init=False, repr=False)

    def roots(self) -> tuple[Node, ...]:
        return (*self.outputs, *(new for _, new in self.assigns))

    def nodes(self) -> tuple[Node, ...]:
        """Every node that the roots need, operands before users; found once."""
        if not self._nodes:
            self._nodes.append(tuple(toposort(self.roots())))
        return self._nodes[0]


def results(node: Node) -> tuple[Node, ...]:
    """The value of a node; of a call, one node per output of its body."""
    if node.body is None:
        return (node,)
    others = enumerate(node.body.outputs[1:], 1)
    made = (
        Node("result", (node,), {"index": i}, x.shape, x.dtype, None, node.where) for i, x in others
    )
    return (node, *made)


def toposort(roots: Iterable[Node], stop: Collection[int] = ()) -> Iterator[Node]:
    """Yields every node that `roots` need, each once, operands before users (iterative: graphs are
    deep). The operands of nodes in `stop` (ids) are not visited."""
    seen: set[Node] = set()
    stack: list[Node | None] = list(reversed(tuple(roots)))
    while stack:
        node = stack.pop()
        if node is None:  # all operands of the node below have been yielded
            done = stack.pop()
            assert done is not None
            yield done
        elif node not in seen:
            seen.add(node)
            if not node.inputs or id(node) in stop:
                yield node
            elif below := [x for x in node.inputs if x not in seen]:
                stack += (node, None)
                stack += reversed(below)
            else:  # all that it reads has been yielded
                yield node
