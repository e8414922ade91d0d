"""compile_parts: a graph that a device cannot run whole, as Programs for it and for the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.compile import limits
from weft.compile.passes import compile_graph
from weft.core.caps import Caps
from weft.core.errors import DTypeError, LimitError
from weft.core.text import table
from weft.graph.ir import Graph, Node, toposort
from weft.program.parted import Part, PartedProgram
from weft.transform.partition import Cut, cut_graph
from weft.transform.rebuild import kind_of, label


@dataclass(frozen=True)
class Transfer:
    """One value that each run moves from one side to the other."""

    value: str
    source: str
    target: str
    nbytes: int


@dataclass
class PartsReport:
    """How a graph was cut. `parts`: (target, nodes, launches) in the order they run; `host`: value,
    its part, the user's line and why it is on the host, for each value there for a reason (all
    else runs on the device)."""

    name: str
    parts: list[tuple[str, int, int]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    host: list[tuple[str, int, str, str]] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """Bytes that one run moves between the sides."""
        return sum(t.nbytes for t in self.transfers)

    def data(self) -> Mapping[str, Any]:
        """The report as plain JSON-ready data."""
        return asdict(self)

    def text(self) -> str:
        """Aligned tables: parts, transfers of one run, and why values are on the host."""
        head = (
            f"{self.name}: {_many(len(self.parts), 'part')}, "
            f"{_many(len(self.transfers), 'transfer')} of {self.moved:,} bytes per run"
        )
        found = [head, table(("part", "runs on", "nodes", "launches"), _numbered(self.parts))]
        if self.transfers:
            rows = [(t.value, t.source, t.target, f"{t.nbytes:,}") for t in self.transfers]
            found.append(table(("transfer", "from", "to", "bytes"), rows, right="d"))
        if self.host:
            found.append(table(("on the host", "part", "line", "because"), self.host))
        return "\n\n".join(found)


def compile_parts(graph: Graph, caps: Caps, host: Caps, name: str = "main") -> PartedProgram:
    """One Program where the device can run the whole graph, else parts for it and for the host,
    with the device doing all that it can. `meta["report"]` is a PartsReport.

    Raises what compile_graph raises for a part, and CompileError for a state that both sides use.
    """
    report = PartsReport(name)
    try:
        whole = compile_graph(graph, caps, name)
    except (DTypeError, LimitError):
        cut = cut_graph(graph, lambda node: limits.reason(node, caps))
        if not cut.reasons:
            raise
    else:
        outputs = tuple(f"out{i}" for i in range(len(graph.outputs)))
        report.parts.append(_line(graph, caps, whole.meta["report"].groups))
        return PartedProgram(name, (Part("device", whole, outputs),), outputs, {"report": report})
    parts = []
    for part in cut.parts:
        target = host if part.side == "host" else caps
        program = compile_graph(part.graph, target, part.graph.name)
        parts.append(Part(part.side, program, part.gives))
        report.parts.append(_line(part.graph, target, program.meta["report"].groups))
    report.transfers = _transfers(cut, {"device": caps.name, "host": host.name})
    seen = Counter((_shape(n), n.where, why, part) for n, why, part in cut.reasons)
    report.host = [
        (f"{v} x{n}" if n > 1 else v, part, at, why) for (v, at, why, part), n in seen.items()
    ]
    return PartedProgram(name, tuple(parts), cut.outputs, {"report": report})


def _transfers(cut: Cut, names: Mapping[str, str]) -> list[Transfer]:
    made: dict[str, str] = {}
    found: dict[tuple[str, str], Transfer] = {}
    for part in cut.parts:
        for x in part.graph.inputs:
            value = x.attrs["name"]
            if made.get(value, part.side) != part.side:
                source, target = names[made[value]], names[part.side]
                found[value, target] = Transfer(value, source, target, x.nbytes)
        made |= dict.fromkeys(part.gives, part.side)
    return list(found.values())


def _line(graph: Graph, caps: Caps, groups: list[Any]) -> tuple[str, int, int]:
    nodes = sum(kind_of(n) != "source" for n in toposort(graph.roots()))
    return caps.name, nodes, len(groups)


def _numbered(parts: list[tuple[str, int, int]]) -> list[tuple[int, str, int, int]]:
    return [(i, *line) for i, line in enumerate(parts)]


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _shape(node: Node) -> str:
    return f"{label(node)} {node.dtype.name}{list(node.shape)}"
