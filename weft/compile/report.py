"""Report: every decision of a compilation, as data and as aligned text (`weft explain`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weft.compile.weights import WeightLine
from weft.core.text import table
from weft.host.records import from_data


@dataclass
class GroupLine:
    """One kernel launch: its work and how it was chosen. `library` says if a vendor's library may
    do it instead; "" for kinds that libraries never do."""

    name: str
    kind: str
    kernel: str
    nodes: list[str]
    output: str
    flops: int
    bytes: int
    config: str
    why: str
    rows: str = ""
    library: str = ""


@dataclass
class CompileReport:
    """The report of one compile_graph. Sizes are in nodes (passes) and bytes (memory)."""

    name: str
    caps: str
    passes: list[tuple[str, int, int]] = field(default_factory=list)  # name, before, after
    groups: list[GroupLine] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)  # reason -> how many values
    copies: list[str] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)  # role -> bytes
    weights: list[WeightLine] = field(default_factory=list)
    unshared: int = 0  # arena bytes if no value shared memory

    @property
    def kernels(self) -> int:
        return len({g.kernel for g in self.groups})

    def data(self) -> Mapping[str, Any]:
        """The report as plain JSON-ready data."""
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**every, "groups": [dict(vars(line)) for line in self.groups]}

    @staticmethod
    def of(data: Any) -> CompileReport:
        """The report that `data` gave. Raises FileFormatError for anything else."""
        return from_data(CompileReport, data, "report.json")

    def text(self) -> str:
        """Aligned tables: passes, memory, one line per kernel launch."""
        head = (
            f"{self.name} on {self.caps}: {len(self.groups)} launches of {self.kernels} kernels, "
            f"{len(self.copies)} copies"
        )
        passes = [(n, a, b) for n, a, b in self.passes]
        memory = [(role, f"{size:,}") for role, size in self.memory.items()]
        memory.append(("arena, unshared", f"{self.unshared:,}"))
        rows = [
            (i, g.name, g.kernel, g.output, f"{g.flops:,}", f"{g.bytes:,}", g.rows, _choice(g))
            for i, g in enumerate(self.groups)
        ]
        offers = [(i, g.library) for i, g in enumerate(self.groups) if g.library]
        parts = [
            head,
            table(("pass", "nodes before", "after"), passes),
            table(("memory", "bytes"), memory),
            table(
                ("weight", "alike", "form", "bits each", "read"),
                [(*w[:3], f"{w.bits:g}", w.read) for w in self.weights],
            ),
            table(("why values are stored", "values"), list(self.stored.items())),
            table(("#", "group", "kernel", "output", "flops", "bytes", "rows", "config"), rows),
        ]
        if offers:
            parts.append(table(("#", "a vendor's library may do it instead"), offers))
        return "\n\n".join(parts)


def _choice(line: GroupLine) -> str:
    return line.config if line.config == "default" else f"{line.config} ({line.why})"
