"""Step-by-step checking: a Program played on a device and on a reference (the interpreter), one
step at a time, until a step disagrees.

Both start every step from the same bytes, so an error is reported where it is made and does not
travel; what a kernel leaves unwritten (bounded rows) holds the same poison on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.core.dtypes import uint8
from weft.core.errors import KernelError
from weft.kernel.ir import Kernel
from weft.program.device import Device
from weft.program.placing import Value
from weft.program.program import BufferRef, Copy, Dispatch, Fill, Program, Step
from weft.program.session import Session

POISON = 0xA5


@dataclass(frozen=True)
class StepResult:
    """How a step compared: the largest error over (atol + rtol * |reference|); 1 and less is in
    tolerance. `problem` is what the reference refused to do, "" if nothing."""

    step: int
    kernel: str
    label: str
    error: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and self.error <= 1.0

    def __str__(self) -> str:
        head = f"step {self.step}, kernel {self.kernel or '-'} ({self.label})"
        return f"{head}: {self.problem or f'{self.error:.3g} times the tolerance'}"


def check_program(
    program: Program,
    device: Device,
    reference: Device,
    inputs: Mapping[str, Value],
    scalars: Mapping[str, int] | None = None,
    weights: Mapping[str, Value] | None = None,
    state: Mapping[str, Value] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    stop: bool = True,
) -> list[StepResult]:
    """One result per step played; with `stop`, ends at the first step that disagrees (the last
    result then is not `ok`). Raises what Session raises for arguments that do not fit."""
    both = [Session(program, d, weights, state) for d in (device, reference)]
    values: list[int] = []
    for session in both:
        values = session.prepare(inputs, scalars)
    results = []
    for number, step in enumerate(program.steps):
        result = _check_step(program, number, step, both, values, (rtol, atol))
        results.append(result)
        if stop and not result.ok:
            break
    return results


def first_mismatch(results: list[StepResult]) -> StepResult | None:
    """The first step that is out of tolerance."""
    return next((r for r in results if not r.ok), None)


def _check_step(
    program: Program,
    number: int,
    step: Step,
    both: list[Session],
    scalars: list[int],
    tolerance: tuple[float, float],
) -> StepResult:
    kernel = program.kernels[step.kernel] if isinstance(step, Dispatch) else None
    name = kernel.name if kernel is not None else ""
    alone = _alone(program, step, kernel)
    written = _written(step, kernel)
    for ref, fresh, _ in written:
        if fresh:
            for session in both:
                poison = np.full(ref.nbytes, POISON, np.uint8)
                session.device.write(session.buffers[ref.buffer], poison, ref.offset)
    for session in reversed(both):  # the reference first: it refuses what would harm the device
        bound = session.device.bind(alone, session.buffers)
        try:
            session.device.submit(bound, scalars)
            session.device.sync()
        except KernelError as problem:
            return StepResult(number, name, step.label, float("inf"), str(problem))
    error = 0.0
    for ref, _, dtype in written:
        got, want = (_bytes(session, ref) for session in both)
        error = max(error, _distance(got.view(dtype), want.view(dtype), *tolerance))
        both[1].device.write(both[1].buffers[ref.buffer], got, ref.offset)
    return StepResult(number, name, step.label, error)


def _alone(program: Program, step: Step, kernel: Kernel | None) -> Program:
    """The Program with this one step."""
    if isinstance(step, Dispatch):
        assert kernel is not None
        step = dataclasses.replace(step, kernel=0)
    kernels = (kernel,) if kernel is not None else ()
    return dataclasses.replace(program, kernels=kernels, steps=(step,))


def _written(step: Step, kernel: Kernel | None) -> list[tuple[BufferRef, bool, np.dtype]]:
    """(where, nothing of it is read first, NumPy dtype) of each range that a step writes."""
    if isinstance(step, Copy | Fill):
        return [(step.dst, True, np.dtype(np.uint8))] if step.dst.nbytes else []
    assert kernel is not None
    return [
        (ref, b.access == "w", b.dtype.numpy)
        for ref, b in zip(step.args, kernel.buffers)
        if b.access != "r" and ref.nbytes
    ]


def _bytes(session: Session, ref: BufferRef) -> np.ndarray:
    return session.device.read(session.buffers[ref.buffer], (ref.nbytes,), uint8, ref.offset)


def _distance(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> float:
    if got.tobytes() == want.tobytes():
        return 0.0
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b) / (atol + rtol * np.abs(b)))
    return float(np.nan_to_num(error, nan=np.inf).max())
