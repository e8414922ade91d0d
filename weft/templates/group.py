"""Group: the unit that becomes one kernel, and the contract between compile and templates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from typing import Any

from weft.core.caps import Caps
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.kernel.ir import Kernel


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that one kernel computes.

    `inputs` are materialised nodes (each becomes a read buffer, in order). `outputs` are the nodes
    it writes (each becomes a write buffer, after the inputs). Every node on a path from an input to
    an output is computed in registers; 0-d "const" and "iota" nodes and "scalar" inputs never take
    a buffer. `anchor` is the group's main node: a reduce, dot, call, sort, ... (None for "map"). A
    group around a call with several outputs writes exactly those outputs, in order.

    `rows` names the runtime scalar that bounds axis 0 of every output (None: the full shape). The
    first scalar * `rows_scale` rows are wanted, and the others may be left unwritten. For
    scatter_add and update it bounds the rows of `idx` instead. `slots` maps scalar names to slots.
    `in_place` says that output i shares the buffer of input `in_place[i]` (state updates). The
    kernel declares one "rw" buffer, at the input's position, for the pair.

    Two kinds of numbers may be read from memory, so that groups differing in them alone share a
    kernel. One is a 0-d const among `inputs`. The other is the starts of a slice: `starts` maps the
    id of the slice to (axis, 0-d int32 const among `inputs`) pairs. An `alone` group is not joined
    with another one.
    """

    kind: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    anchor: Node | None = None
    rows: str | None = None
    rows_scale: int = 1
    slots: Mapping[str, int] = field(default_factory=dict)
    in_place: Mapping[int, int] = field(default_factory=dict)
    name: str = ""
    starts: Mapping[int, tuple[tuple[int, Node], ...]] = field(default_factory=dict)
    alone: bool = False

    @property
    def results(self) -> tuple[Node, ...]:
        """The anchor's values: its own or, for a call with several outputs, all of them."""
        assert self.anchor is not None
        return (self.anchor, *(x for x in self.outputs if x.op == "result"))

    def inside(self, roots: Iterable[Node] | None = None) -> list[Node]:
        """The nodes that the kernel computes for `roots` (by default its outputs), each once, users
        before their operands."""
        stop = {id(n) for n in self.inputs}
        wanted = self.outputs if roots is None else roots
        return [n for n in reached(wanted, stop) if id(n) not in stop]


def reached(roots: Iterable[Node], stop: Collection[int]) -> list[Node]:
    """The nodes that `roots` need, each once, not looking behind those of `stop` (ids)."""
    found: dict[int, Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) not in found:
            found[id(node)] = node
            stack += () if id(node) in stop else node.inputs
    return list(found.values())


# A template turns a group into one kernel, or raises CompileError saying why it cannot. `config`
# holds tuning choices (tile sizes); an empty one means the template's default for these Caps.
Template = Callable[[Group, Caps, Mapping[str, Any]], Kernel]
