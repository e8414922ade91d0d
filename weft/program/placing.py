"""Puts values into the buffers of a Session: weights, inputs and start states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.program.array import DeviceArray
from weft.program.device import Buffer, Device
from weft.program.formula import Formula
from weft.program.memory import clear
from weft.program.program import BufferSpec, Program
from weft.program.values import check_fit, fitted, zeros
from weft.program.weights import interleaved

Value = np.ndarray | DeviceArray | Buffer


def fresh(program: Program, device: Device, buffer: Buffer, spec: BufferSpec) -> Buffer:
    """Returns memory for a Program; an untrusted one sees no earlier content."""
    if program.meta.get("foreign"):
        clear(device, buffer, spec.nbytes)
    return buffer


def place(device: Device, spec: BufferSpec, value: Value, in_place: bool = True) -> Buffer:
    """Returns a buffer with `value`: the given buffer itself, host memory in place (if `in_place`
    and the device can), or a copy."""
    if isinstance(value, DeviceArray):
        check_fit(spec, value.shape, value.dtype, None)
        value = value.buffer
    if isinstance(value, Buffer):
        if value.device is not device or value.nbytes < spec.nbytes:
            raise UsageError(
                f"{spec.role} {spec.name!r}: needs a buffer of {spec.nbytes} bytes on "
                f"{device.info.id}, got {value.nbytes} on {value.device.info.id}"
            )
        return value
    array = fitted(spec, np.asarray(value), None)
    if in_place and array.nbytes:
        wrapped = wrap(device, array)
        if wrapped is not None:
            return wrapped
    buffer = device.alloc(spec.nbytes)
    if array.nbytes:
        device.write(buffer, array)
    return buffer


def cleared(device: Device, spec: BufferSpec) -> Buffer:
    """Returns a buffer of zeros: host memory that takes no room before it is touched, or memory of
    the device. Raises OutOfMemoryError."""
    if device.is_host:
        return place(device, spec, zeros(spec))
    buffer = device.alloc(spec.nbytes)
    clear(device, buffer, spec.nbytes)
    return buffer


def wrap(device: Device, array: np.ndarray) -> Buffer | None:
    """Returns the array's memory as a buffer, if the device can (CPU) and the alignment allows."""
    method = getattr(device, "wrap", None)
    if method is None or array.ctypes.data % array.itemsize:
        return None
    wrapped: Buffer | None = method(array)
    return wrapped


class GivenWeights:
    """The weights that a Session is given: `weights` by name, and `placed` buffers that take
    precedence. `take` returns a weight for the last time; `threads` reorder rows."""

    def __init__(
        self,
        program: Program,
        device: Device,
        weights: Mapping[str, Value],
        placed: Mapping[str, Buffer],
        take: Callable[[str], Value] | None,
        threads: Executor,
    ) -> None:
        self._program, self._device = program, device
        self._weights, self._placed, self._take = weights, placed, take
        self._threads = threads
        names = (b.name for b in program.buffers if b.role == "weight")
        made = (name for name in names if name not in placed)
        self._uses = Counter(source for name in made for source in program.sources(name))

    def buffer(self, spec: BufferSpec) -> Buffer:
        """Returns the buffer with a weight, or with the result of its recipe or formula."""
        device, program = self._device, self._program
        if spec.name in self._placed:
            return place(device, spec, self._placed[spec.name])
        if spec.name in self._weights:
            return place(device, spec, self._read(spec.name))
        formula = program.formulas.get(spec.name)
        if formula is not None:
            return place(device, spec, formula.value(self._sources(formula)), in_place=False)
        recipe = program.recipes.get(spec.name)
        if recipe is None or recipe.whole not in self._weights:
            raise self._missing(recipe.whole if recipe else spec.name)
        value = self._read(recipe.whole)
        if isinstance(value, DeviceArray):  # a state that another Program wrote
            value = value.view() if value.device.is_host else value.numpy()
        if recipe.lanes > 1:
            return interleaved(recipe, spec, value, device, self._threads)
        return place(device, spec, recipe.rows_of(value, spec.shape[1:], spec.shape[0]))

    def _read(self, name: str) -> Value:
        """Returns a given weight, taken when a buffer is made of it for the last time."""
        self._uses[name] -= 1
        if self._take is not None and not self._uses[name]:
            return self._take(name)
        return self._weights[name]

    def _sources(self, formula: Formula) -> dict[str, Any]:
        """Returns the host values of a formula's weights."""
        for name in formula.names:
            if name not in self._weights:
                raise self._missing(name)
        given = {name: self._read(name) for name in formula.names}
        return {k: v.view() if isinstance(v, DeviceArray) else v for k, v in given.items()}

    def _missing(self, name: str) -> UsageError:
        return UsageError(f"{self._program.name}: weight {name!r} was not given")
