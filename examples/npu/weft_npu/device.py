"""The device: weft's interpreter computes, a Meter counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.backends.interp import InterpBound, InterpDevice
from weft.core.dtypes import DEVICE
from weft.kernel.ir import Kernel
from weft.program.device import DeviceInfo
from weft.program.program import Copy, Dispatch, Step
from weft_npu.cost import Cost, Meter, moved, window
from weft_npu.machine import Machine


@dataclass
class Record:
    """A step of a Program and what its runs have cost together: `cycles`, one run after the other.
    `place` names the weights or states that it reads, or where there are none its kernel; "copy"
    and "fill" have none."""

    program: str
    place: str
    label: str
    runs: int = 0
    cycles: int = 0
    cost: Cost = field(default_factory=Cost)

    def add(self, cost: Cost) -> None:
        """One run more."""
        self.runs += 1
        self.cycles += cost.cycles
        self.cost += cost

    def __add__(self, other: Record) -> Record:
        runs, cycles = self.runs + other.runs, self.cycles + other.cycles
        return Record(self.program, self.place, self.label, runs, cycles, self.cost + other.cost)


class NpuDevice(InterpDevice):
    """Results are those of the kernel interpreter, bit for bit. `records` holds a Record for each
    step with a place and label of its own, in the order of first runs; clear it to begin anew."""

    kind = "npu"
    check = False
    synchronous = True

    def __init__(self, index: int = 0, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        super().__init__(self.machine.caps())
        (self.info,) = self.probe()
        self.records: dict[tuple[str, str, str], Record] = {}

    @staticmethod
    def probe() -> list[DeviceInfo]:
        """It is always there: NumPy is all it needs."""
        dtypes = tuple(sorted(dtype.name for dtype in DEVICE))
        name = "simulated NPU (emulated)"
        return [DeviceInfo("npu", 0, name, True, "", "weft-npu", 0, dtypes, True)]

    def load(self, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
        """Raises LimitError for a kernel that the scratchpad cannot hold."""
        for kernel in kernels:
            window(self.machine, kernel)
        return super().load(kernels)

    def play(self, bound: InterpBound, step: Step, scalars: Sequence[int]) -> None:
        """One step, noted."""
        program = bound.program
        if not isinstance(step, Dispatch):
            super().play(bound, step, scalars)
            copied = isinstance(step, Copy)
            traffic = step.dst.nbytes * (2 if copied else 1)
            kind = "copy" if copied else "fill"
            self._note(program.name, kind, step.label, moved(self.machine, traffic))
            return
        kernel = program.kernels[step.kernel]
        super().play(bound, step, scalars)
        specs = [program.buffers[ref.buffer] for ref in step.args]
        kept = [spec.name for spec in specs if spec.role in ("weight", "state")]
        self._note(program.name, " ".join(kept) or kernel.name, step.label, self.meter.cost())

    def watch(self, kernel: Kernel) -> Meter:
        self.meter = Meter(self.machine, kernel)
        return self.meter

    def _note(self, program: str, place: str, label: str, cost: Cost) -> None:
        key = program, place, label
        self.records.setdefault(key, Record(*key)).add(cost)
