"""compile_parts: a graph that a device cannot run whole, as Programs for it and for the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.compile import limits
from weft.compile.passes import compile_graph
from weft.core.caps import Caps
from weft.core.errors import CompileError, DTypeError, LimitError, OutOfMemoryError, WeftError
from weft.core.text import table
from weft.graph.ir import Graph, Node, results
from weft.program.parted import PartedProgram, ProgramPart, Side
from weft.program.program import Program
from weft.transform.partition import Cut, cut_graph
from weft.transform.rebuild import kind_of, label, remake


@dataclass(frozen=True)
class Transfer:
    """One value that each run moves from one side to the other."""

    value: str
    source: str
    target: str
    nbytes: int


@dataclass
class PartsReport:
    """The parts of a cut graph. `parts`: (target, nodes, launches) in the order they run. `host`:
    value, its part, the user's line and the reason, for each value that has a reason to be on the
    host (all others run on the device)."""

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


def compile_parts(
    graph: Graph, caps: Caps, host: Caps, name: str = "main", memory: int = 0
) -> PartedProgram:
    """One Program where the device can run the whole graph, else parts for it and for the host,
    with the device doing all that it can. `memory` is what the device has for the Program, weights
    included, in bytes (0: not known); of a graph that needs more, the later values go to the host.
    `meta["report"]` is a PartsReport.

    Raises what compile_graph raises for a part, and CompileError for a state that both sides use.
    """
    caps_of: dict[Side, Caps] = {"device": caps, "host": host}
    why = _Why(caps)
    try:
        whole = compile_graph(graph, caps, name)
    except (DTypeError, LimitError) as error:
        cut, programs = _cut_what_is_refused(graph, why, caps_of, error)
    else:
        if not memory or _taken([whole]) <= memory:
            report = PartsReport(name, [_line(graph, caps, whole)])
            outputs = tuple(f"out{i}" for i in range(len(graph.outputs)))
            return PartedProgram(
                name, (ProgramPart("device", whole, outputs),), outputs, {"report": report}
            )
        cut, programs = _cut_to_fit(graph, why, caps_of, memory)
    if memory and _taken(_on_device(cut, programs)) > memory:
        cut, programs = _cut_to_fit(graph, why, caps_of, memory)
    report = PartsReport(name)
    report.parts = [_line(p.graph, caps_of[p.side], made) for p, made in zip(cut.parts, programs)]
    report.transfers = _transfers(cut, {"device": caps.name, "host": host.name})
    seen = Counter((_shape(n), n.where, why, part) for n, why, part in cut.reasons)
    report.host = [
        (f"{v} x{n}" if n > 1 else v, part, at, why) for (v, at, why, part), n in seen.items()
    ]
    parts = tuple(ProgramPart(p.side, made, p.gives) for p, made in zip(cut.parts, programs))
    return PartedProgram(name, parts, cut.outputs, {"report": report})


class _Why:
    """Finds the reason why a target cannot compute a value: its size or dtype. Once `trying`, it
    also compiles the value alone and reports the compiler's error, so limits of templates need no
    list here."""

    def __init__(self, caps: Caps):
        self.caps, self.trying = caps, False
        self._tried: dict[int, str | None] = {}

    def __call__(self, node: Node) -> str | None:
        if node.op == "result":
            return self(node.inputs[0])
        found = limits.reason(node, self.caps)
        if found is not None or not self.trying or kind_of(node) == "source":
            return found
        if id(node) not in self._tried:
            self._tried[id(node)] = self._alone(node)
        return self._tried[id(node)]

    def _alone(self, node: Node) -> str | None:
        made = {
            id(x): x if kind_of(x) == "source" else _input(f"in{i}", x)
            for i, x in enumerate(node.inputs)
        }
        alone = remake(node, tuple(made[id(x)] for x in node.inputs))
        inputs = tuple(x for x in made.values() if x.op == "input")
        try:
            compile_graph(Graph(inputs, results(alone), (), "alone", {}), self.caps, "alone")
        except LimitError as error:
            return str(error)
        return None


def _input(name: str, like: Node) -> Node:
    return Node("input", (), {"name": name, "role": "input"}, like.shape, like.dtype)


def _compiled(cut: Cut, caps_of: Mapping[Side, Caps]) -> list[Program]:
    return [compile_graph(p.graph, caps_of[p.side], p.graph.name) for p in cut.parts]


def _cut_what_is_refused(
    graph: Graph, why: _Why, caps_of: Mapping[Side, Caps], refusal: WeftError
) -> tuple[Cut, list[Program]]:
    """Parts of a graph that was refused whole: first by what sizes and dtypes say, which is known
    at once, then by what the compiler says of values one by one. Raises `refusal` without any."""
    cut = cut_graph(graph, why)
    if cut.reasons:
        try:
            return cut, _compiled(cut, caps_of)
        except LimitError:
            pass
    why.trying = True
    cut = cut_graph(graph, why)
    if not cut.reasons:
        raise refusal
    return cut, _compiled(cut, caps_of)


def _cut_to_fit(
    graph: Graph, why: _Why, caps_of: Mapping[Side, Caps], memory: int
) -> tuple[Cut, list[Program]]:
    """Parts with as many of the first values on the device as its memory takes, found by halving.
    One where a state would be on both sides does not count as fitting; with all on the host, no
    state is."""
    order = {id(n): i for i, n in enumerate(graph.nodes())}
    text = f"the values before it fill {caps_of['device'].name}'s memory of {memory:,} bytes"

    def first(count: int) -> tuple[Cut, list[Program]] | None:
        def placed(node: Node) -> str | None:
            late = kind_of(node) != "source" and order[id(node)] >= count
            return why(node) or (text if late else None)

        try:
            cut = cut_graph(graph, placed)
        except CompileError:
            if not count:
                raise
            return None
        programs = _compiled(cut, caps_of)
        return (cut, programs) if _taken(_on_device(cut, programs)) <= memory else None

    found, low, high = first(0), 0, len(order)
    while high - low > 1:
        middle = (low + high) // 2
        made = first(middle)
        if made is None:
            high = middle
        else:
            found, low = made, middle
    if found is None:
        raise OutOfMemoryError(f"{graph.name}: not even its arguments fit in {memory:,} bytes")
    return found


def _on_device(cut: Cut, programs: list[Program]) -> list[Program]:
    return [made for part, made in zip(cut.parts, programs) if part.side == "device"]


def _taken(programs: list[Program]) -> int:
    """Bytes that Programs take together; what they share (weights, states) counts once."""
    shared = {
        b.name: b.nbytes for p in programs for b in p.buffers if b.role in ("weight", "state")
    }
    own = sum(b.nbytes for p in programs for b in p.buffers if b.role not in ("weight", "state"))
    return own + sum(shared.values())


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


def _line(graph: Graph, caps: Caps, program: Program) -> tuple[str, int, int]:
    nodes = sum(kind_of(n) != "source" for n in graph.nodes())
    return caps.name, nodes, len(program.meta["report"].groups)


def _numbered(parts: list[tuple[str, int, int]]) -> list[tuple[int, str, int, int]]:
    return [(i, *line) for i, line in enumerate(parts)]


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _shape(node: Node) -> str:
    return f"{label(node)} {node.dtype.name}{list(node.shape)}"
