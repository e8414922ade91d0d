"""Profiles a Program: each step is timed alone on the buffers of a live Session."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.bench.roofline import Roofline, shown
from weft.host.files import write_text
from weft.kernel.tiles import has_tiles
from weft.program.device import OWN_KERNEL
from weft.program.program import Dispatch, Program, Step
from weft.program.session import Session

_LEAST = 1e-9  # seconds, for steps too short for the clock
HEADER = ("kernel", "runs", "ms", "share %", "GB/s", "GFLOP/s", "roofline", "computes")


@dataclass(frozen=True)
class StepTime:
    """One step: its kernel (and the library that ran instead), the graph ops it computes, seconds,
    and its least work."""

    kernel: str
    label: str
    seconds: float
    flops: int
    nbytes: int
    tiles: bool = False  # its products run in matrix registers


def profile(session: Session, scalars: Sequence[int], repeats: int = 7) -> list[StepTime]:
    """Returns the median time of each step of the Program with these runtime scalars (int32, in
    slot order).

    A step is bound as a separate Program over the Session's buffers. So a figure includes the cost
    of one submission, or the part of it that a GPU (timed by its own clock) waits for. The content
    of the buffers is meaningless afterwards.
    """
    device, program = session.device, session.program
    alone = [
        device.bind(replace(program, steps=(step,)), session.buffers) for step in program.steps
    ]
    runs = [functools.partial(device.submit, bound, scalars) for bound in alone]
    # Whole rounds, so that each step meets the caches as in a run. The first two warm up: a GPU's
    # second run is recorded.
    times = zip(*[device.timed(runs) for _ in range(repeats + 2)][2:])
    return [
        _step_time(
            program, step, statistics.median(seen) or _LEAST, session.products.get(number, "")
        )
        for number, (step, seen) in enumerate(zip(program.steps, times))
    ]


def _step_time(program: Program, step: Step, seconds: float, product: str) -> StepTime:
    """`product` says who does a Library step (see Session.products)."""
    if isinstance(step, Dispatch):
        kernel = program.kernels[step.kernel]
        nbytes = kernel.bytes or sum(a.nbytes for a in step.args)
        tiles = has_tiles(kernel.body)
        own = not product or product.startswith(OWN_KERNEL)
        name = kernel.name if own else f"{product} for {kernel.name}"
        return StepTime(name, step.label, seconds, kernel.flops, nbytes, tiles)
    return StepTime(type(step).__name__.lower(), step.label, seconds, 0, step.dst.nbytes)


def totals(steps: Sequence[StepTime], roof: Roofline) -> list[dict[str, Any]]:
    """Per kernel, most expensive first: what it computes (of its first run), runs, ms, share of the
    whole, rates, roofline share."""
    groups: dict[str, list[StepTime]] = {}
    for step in steps:
        groups.setdefault(step.kernel, []).append(step)
    whole = sum(s.seconds for s in steps) or 1.0
    found = []
    for kernel, members in groups.items():
        seconds = sum(s.seconds for s in members)
        flops, nbytes = sum(s.flops for s in members), sum(s.nbytes for s in members)
        found.append({
            "kernel": kernel, "ops": members[0].label, "runs": len(members),
            "ms": round(seconds * 1e3, 4), "share": round(seconds / whole, 4),
            "flops": flops, "bytes": nbytes, "gbs": round(nbytes / seconds / 1e9, 2),
            "gflops": round(flops / seconds / 1e9, 2),
            "roofline": round(roof.share(flops, nbytes, seconds, members[0].tiles), 3),
        })  # fmt: skip
    return sorted(found, key=lambda r: -r["ms"])


def rows(totals: Sequence[Mapping[str, Any]], prefix: str = "") -> list[list[Any]]:
    """The rows of the printed table of `totals` under HEADER."""
    return [
        [f"{prefix}{r['kernel']}"[:60], r["runs"], f"{r['ms']:.3f}", f"{r['share'] * 100:.1f}",
         r["gbs"], r["gflops"], shown(r["roofline"]), r["ops"][:60]]
        for r in totals
    ]  # fmt: skip


def write_trace(path: Path, programs: Mapping[str, Sequence[StepTime]]) -> None:
    """A Chrome trace (chrome://tracing, Perfetto): one row per Program, steps end to end, as the
    "Trace Event Format" has it (complete events, microseconds)."""
    events: list[dict[str, Any]] = []
    for row, (name, steps) in enumerate(programs.items()):
        events.append(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}
        )
        clock = 0.0
        for step in steps:
            micro = step.seconds * 1e6
            args = {"ops": step.label, "flops": step.flops, "bytes": step.nbytes}
            events.append(
                {"ph": "X", "name": step.kernel, "cat": name, "pid": 0, "tid": row,
                 "ts": round(clock, 3), "dur": round(micro, 3), "args": args}
            )  # fmt: skip
            clock += micro
    write_text(path, json.dumps({"traceEvents": events}))
