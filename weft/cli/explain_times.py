"""The times of a Program's launches on a device of this machine, for `weft explain --html`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import WeftError
from weft.core.text import first_line, size
from weft.program.program import BufferSpec, Program

if TYPE_CHECKING:
    from weft.bench.roofline import Roofline
    from weft.program.device import Device

REPEATS = 5


@dataclass(frozen=True)
class Times:
    """Seconds of each step in order, and per kernel what profile.totals says; or `missing`, why
    nothing was measured."""

    steps: tuple[float, ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    missing: str = ""

    @property
    def total(self) -> float:
        """Seconds of all steps, each timed alone."""
        return sum(self.steps)


def measured(program: Program, device: Device | None, name: str, roof: Roofline | None) -> Times:
    """Each step timed alone with weights of ones; runtime scalars are at their most, 0 where they
    have none."""
    if device is None:
        return Times(missing=f"not measured: {name} is not here")
    if device.info.software or roof is None:
        return Times(missing=f"not measured: {device.info.id} is software that imitates a device")
    needed = sum(b.nbytes for b in program.buffers)
    free = device.free_memory()
    if free and needed > free // 2:
        return Times(missing=f"not measured: it takes {size(needed)}, {size(free)} are free")
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
        return Times(missing=f"not measured: {first_line(error)}")
    totals = tuple(profile.totals(steps, roof))
    return Times(tuple(step.seconds for step in steps), totals)


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
