"""The hardware resources of a compiled GPU kernel, as the compiler reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from weft.core.text import table


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel. `registers` are 32-bit vector registers per thread, and
    `scalar_registers` those of an AMD wave. `shared` is bytes per group; the launch adds `dynamic`
    bytes. `stack` is bytes per thread in memory. `spills` counts registers kept in memory (bytes
    stored, on NVIDIA)."""

    threads: int
    registers: int
    shared: int
    stack: int
    spills: int
    scalar_registers: int = 0
    dynamic: int = 0


def text(found: Mapping[str, Resources]) -> str:
    """An aligned table, one line per kernel."""
    rows = [
        (n, r.threads, r.registers, r.scalar_registers or "", f"{r.shared:,}",
         f"{r.dynamic:,}" if r.dynamic else "", r.stack, r.spills)
        for n, r in found.items()
    ]  # fmt: skip
    head = (
        "kernel", "threads", "registers", "scalar", "shared bytes", "dynamic", "stack bytes",
        "spills",
    )  # fmt: skip
    return table(head, rows)


def data(found: Mapping[str, Resources]) -> dict[str, dict[str, int]]:
    """The same as plain JSON-ready data."""
    return {name: asdict(r) for name, r in found.items()}


def worst(found: Sequence[Resources]) -> dict[str, int]:
    """The largest of each, over many kernels."""
    return {k: max(asdict(r)[k] for r in found) for k in asdict(found[0])} if found else {}
