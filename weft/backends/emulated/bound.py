"""A Program resolved on an emulated machine: a table of steps in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.backends.emulated import guest
from weft.core.errors import DeviceError
from weft.kernel.grid import groups
from weft.program.checks import check_args
from weft.program.device import Bound, Buffer
from weft.program.program import BufferRef, Copy, Dispatch, Fill, Program, Step
from weft.program.values import INT32, check_scalars

if TYPE_CHECKING:
    from weft.backends.emulated.device import EmulatedBuffer, EmulatedDevice


class EmulatedBound(Bound):
    """See Bound. Arguments are written again when a buffer has changed, grids when a scalar has."""

    def __init__(self, device: EmulatedDevice, program: Program, buffers: Sequence[Buffer]) -> None:
        self.device, self.program = device, program
        self._buffers: list[EmulatedBuffer] = device.bindable(program, buffers)
        order, pointer = device.machine.order, device.machine.pointer
        operands = [_operands(program, step) for step in program.steps]
        self._operands = [x for given in operands for x in given]
        self._words = np.zeros(len(self._operands), f"{order}u{pointer}")
        self._steps = np.zeros((len(operands), guest.STEP // 8), f"{order}i8")
        self._values = np.zeros(len(program.scalars), f"{order}i4")
        self._arguments, self._table, self._scalars = (
            device.alloc(x.nbytes) for x in (self._words, self._steps, self._values)
        )
        starts = np.cumsum([0, *map(len, operands)])[:-1]
        self._steps[:, 0] = self._functions()
        self._steps[:, 1] = self._arguments.address + pointer * starts
        self._steps[:, 2:] = 1
        self._grids: tuple[int, ...] | None = None  # the scalars that the grids are for
        self._moved = True

    def _functions(self) -> list[int]:
        """The address of each step's function."""
        kernels, own = self.device.load(self.program.kernels), self.device.functions
        found = []
        for step in self.program.steps:
            if isinstance(step, Dispatch):
                found.append(kernels[step.kernel])
            else:
                found.append(own["weft_copy" if isinstance(step, Copy) else "weft_fill"])
        return found

    def rebind(self, index: int, buffer: Buffer) -> None:
        self._buffers[index] = self.device.fitting(self.program, index, buffer)
        self._moved = True

    def run(self, scalars: Sequence[int]) -> None:
        """Plays the steps. Called with the device's lock held."""
        self._set(tuple(int(s) for s in scalars))
        if self._moved:
            self._words[:] = [self._word(x) for x in self._operands]
            self.device.write(self._arguments, self._words)
            self._moved = False
        places = (self._table.address, len(self._steps), self._scalars.address)
        self.device.process.play(*places, self.device.scratch, self._where)

    def _word(self, operand: BufferRef | int) -> int:
        if isinstance(operand, int):
            return operand
        return self._buffers[operand.buffer].address + operand.offset

    def _where(self) -> str:
        """Returns the current step, for errors."""
        number = self.device.process.running()
        step = self.program.steps[number] if number < len(self.program.steps) else None
        name = type(step).__name__
        if isinstance(step, Dispatch):
            name = f"kernel {self.program.kernels[step.kernel].name}"
        return f"{self.program.name} ran {name} (step {number})"

    def _set(self, values: tuple[int, ...]) -> None:
        """Writes the scalars, and the grids that they decide."""
        if values == self._grids:
            return
        check_scalars(self.program, values)
        self._values[:] = values
        for row, step in zip(self._steps, self.program.steps):
            if isinstance(step, Dispatch):
                x, y, z = groups(self.program.kernels[step.kernel], values)
                if max(x, y, z) > INT32[1]:
                    raise DeviceError(f"{self.program.name}: a grid of {x} x {y} x {z} groups")
                row[2:] = (x, y, z, x * y * z)
        self.device.write(self._scalars, self._values)
        self.device.write(self._table, self._steps)
        self._grids = values


def _operands(program: Program, step: Step) -> list[BufferRef | int]:
    """Returns the operands of a step's function: places, and plain numbers."""
    if isinstance(step, Copy):
        return [step.dst, step.src, min(step.src.nbytes, step.dst.nbytes)]
    if isinstance(step, Fill):
        return [step.dst, step.byte & 0xFF, step.dst.nbytes]
    kernel = program.kernels[step.kernel]
    check_args(kernel, step)
    return list(step.args)
