"""`weft explain --html`: Programs as one page that needs nothing else, no script and no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.cli.explained import Explained, ExplainedStep, Goal
from weft.core.errors import WeftError
from weft.core.text import first_line, size
from weft.program.program import BufferRef, BufferSpec, Dispatch, Program

if TYPE_CHECKING:
    from weft.bench.roofline import Roofline
    from weft.kernel.ir import Kernel
    from weft.program.device import Device

TEMPLATE = Path(__file__).with_name("explain.html")
WIDE, HIGH = 960, 220  # the size of the picture of memory, in its own units
SOURCE = 200_000  # characters of a kernel's text that are shown


@dataclass
class Life:
    """A value in the arena: its place, the steps of its first write and its last use."""

    buffer: int
    start: int
    nbytes: int
    first: int
    last: int
    label: str


def page(title: str, found: Explained, steps: Mapping[str, ExplainedStep]) -> str:
    """The page's HTML. Everything that came from a file is escaped."""
    import jinja2

    import weft

    roof = roof_of(found.goal.device)
    goals = {name: step.goal or found.goal for name, step in steps.items()}
    made = {name: _step(step, goals[name], roof) for name, step in steps.items()}
    sources: dict[str, dict[str, str]] = {}
    for name, one in made.items():
        for kernel in one["program"].kernels:
            sources.setdefault(kernel.name, _kernel(kernel, goals[name]))
    env = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.filters["size"] = size
    template = env.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title, version=weft.__version__, goal=found.goal, facts=found.facts, steps=made,
        kernels=sources, wide=WIDE, high=HIGH, roof=roof,
    )  # fmt: skip


def _step(step: ExplainedStep, goal: Goal, roof: Roofline | None) -> dict[str, Any]:
    program, report = step.make()
    times = measured(program, goal.device, goal.name, roof)
    lives = lifetimes(program)
    top = max((life.start + life.nbytes for life in lives), default=1)
    count = max(len(program.steps), 1)
    boxes = [
        {
            "x": WIDE * life.first / count,
            "w": max(WIDE * (life.last + 1 - life.first) / count, 1),
            "y": HIGH - HIGH * (life.start + life.nbytes) / top,
            "h": max(HIGH * life.nbytes / top, 0.5),
            "says": f"{life.label or 'value'}: {size(life.nbytes)} at {life.start:,}, "
            f"steps {life.first} to {life.last}",
        }
        for life in lives
    ]
    roles: dict[str, int] = {}
    for b in program.buffers:
        roles[b.role] = roles.get(b.role, 0) + b.nbytes
    lines = launches(program)
    for line, seconds in zip(lines, times.steps):
        line["ms"] = f"{seconds * 1e3:.3f}"
    return {
        "times": times,
        "program": program, "report": report, "boxes": boxes, "roles": roles, "lines": lines,
        "most": max((line["work"] for line in lines), default=1) or 1, "top": top,
    }  # fmt: skip


def launches(program: Program) -> list[dict[str, Any]]:
    """A line for each step: what it runs, computes and reads, and which steps made that."""
    made: list[dict[str, Any]] = []
    writers: dict[tuple[int, int], int] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Dispatch):
            kernel = program.kernels[step.kernel]
            name, flops, nbytes = kernel.name, kernel.flops, kernel.bytes
            uses = list(zip(step.args, (b.access for b in kernel.buffers)))
        else:
            name, flops, nbytes = type(step).__name__.lower(), 0, step.dst.nbytes
            uses = [(step.dst, "w")]
        reads = [r for r, access in uses if access != "w"]
        after = {writers[r.buffer, r.offset] for r in reads if (r.buffer, r.offset) in writers}
        for ref, access in uses:
            if access != "r":
                writers[ref.buffer, ref.offset] = number
        named = [program.buffers[r.buffer].name for r in reads if _outside(program, r)]
        made.append({
            "kernel": name, "label": step.label, "flops": flops, "bytes": nbytes,
            "work": nbytes, "after": sorted(after), "reads": named,
        })  # fmt: skip
    return made


def _outside(program: Program, ref: BufferRef) -> bool:
    return program.buffers[ref.buffer].role != "arena"


def lifetimes(program: Program) -> list[Life]:
    """The lifetime of each value in the arena: from the step that writes it to its last use before
    other bytes take its place."""
    found: list[Life] = []
    live: dict[tuple[int, int, int], Life] = {}
    for number, step in enumerate(program.steps):
        for ref, access in _uses(program, step):
            if _outside(program, ref):
                continue
            place = (ref.buffer, ref.offset, ref.nbytes)
            known = live.get(place)
            if access == "w" and (known is None or known.last > known.first):
                live = {p: v for p, v in live.items() if not _overlap(p, place)}
                known = live[place] = Life(*place, number, number, step.label)
                found.append(known)
            elif known is not None:
                known.last = number
            for p, life in live.items():  # a part of a value, or several as one
                if p != place and _overlap(p, place):
                    life.last = number
    return found


def _uses(program: Program, step: Any) -> list[tuple[BufferRef, str]]:
    """The buffers that a step reads, then those that it writes."""
    if isinstance(step, Dispatch):
        accesses = (b.access for b in program.kernels[step.kernel].buffers)
        return sorted(zip(step.args, accesses), key=lambda use: use[1] == "w")
    source = getattr(step, "src", None)
    return [*([(source, "r")] if source is not None else []), (step.dst, "w")]


def _overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    return a[0] == b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


def _kernel(kernel: Kernel, goal: Goal) -> dict[str, str]:
    from weft.kernel import printer

    return {"ir": printer.text(kernel)[:SOURCE], "source": goal.source(kernel)[:SOURCE]}


# -- times -----------------------------------------------------------------------------------------


REPEATS = 5


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step in order, and per kernel what profile.totals says; or `missing`, why
    nothing was measured."""

    steps: tuple[float, ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    missing: str = ""

    @property
    def total(self) -> float:
        """Seconds of all steps, each timed alone."""
        return sum(self.steps)


def measured(
    program: Program, device: Device | None, name: str, roof: Roofline | None
) -> StepTimes:
    """Each step timed alone with weights of ones; runtime scalars are at their most, 0 where they
    have none."""
    if device is None:
        return StepTimes(missing=f"not measured: {name} is not here")
    if device.info.software or roof is None:
        return StepTimes(
            missing=f"not measured: {device.info.id} is software that imitates a device"
        )
    needed = sum(b.nbytes for b in program.buffers)
    free = device.free_memory()
    if free and needed > free // 2:
        return StepTimes(missing=f"not measured: it takes {size(needed)}, {size(free)} are free")
    from weft.bench import profile
    from weft.program.session import Session

    try:
        weights = {b.name: _ones(b) for b in program.buffers if b.role == "weight"}
        session = Session(program, device, weights)
        inputs = {program.buffers[i].name: _ones(program.buffers[i]) for i in program.inputs}
        most = program.scalar_ranges
        scalars = {s: most[s][1] if s in most else 0 for s in program.scalars}
        steps = profile.profile(session, session.prepare(inputs, scalars), REPEATS)
    except WeftError as error:
        return StepTimes(missing=f"not measured: {first_line(error)}")
    totals = tuple(profile.totals(steps, roof))
    return StepTimes(tuple(step.seconds for step in steps), totals)


def roof_of(device: Device | None) -> Roofline | None:
    """The measured limits of the device; None for no device or one in software, where they say
    nothing."""
    if device is None or device.info.software:
        return None
    from weft.bench import roofline

    return roofline.measure(device)


def _ones(spec: BufferSpec) -> np.ndarray:
    """Ones, zeros of whole numbers (places): written, so that each page is memory of its own."""
    made = np.empty(spec.shape, spec.dtype.numpy)
    made[...] = 1 if spec.dtype.is_float else 0
    return made
