"""Memory for the results of calls that take the shorter way (Bound.direct)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from sys import getrefcount

import numpy as np

from weft.program.array import DeviceArray
from weft.program.device import Buffer, Device
from weft.program.program import BufferSpec

Pool = list[tuple[Buffer, weakref.ref[DeviceArray] | None]]  # memory, and its holder
KEPT = 3  # results of one output kept for reuse
_SMALL = 1 << 12  # bytes: below this, NumPy's own memory is as good


def maker(device: Device, spec: BufferSpec, pool: Pool) -> Callable[[], np.ndarray]:
    """Returns a function that makes arrays for an output in host memory, content undefined. Unused
    buffers of `pool` leave it and become the arrays' memory."""
    shape, dtype = spec.shape, spec.dtype.numpy
    if spec.nbytes < _SMALL:
        return lambda: np.empty(shape, dtype)
    free = [buffer for buffer, holder in pool if holder is None or holder() is None]
    pool[:] = [pair for pair in pool if pair[0] not in free]
    return Results(device, spec, free).take


class Results:
    """Arrays in a device's aligned memory. Each is reused once no references to it or to its views
    remain, according to CPython's reference counts."""

    def __init__(self, device: Device, spec: BufferSpec, buffers: Iterable[Buffer]) -> None:
        self._device, self._spec, self._dtype = device, spec, spec.dtype.numpy
        self._kept = [self._root(buffer) for buffer in buffers][:KEPT]

    def take(self) -> np.ndarray:
        """An array that shares its memory with no other in use."""
        for root in self._kept:
            if getrefcount(root) == _FREE:
                return root.view(self._dtype)
        made = self._root(self._device.alloc(self._spec.nbytes))
        self._kept = [made, *self._kept[: KEPT - 1]]
        return made.view(self._dtype)

    def _root(self, buffer: Buffer) -> np.ndarray:
        """The array over a buffer that all views of its views refer to."""
        array = DeviceArray(buffer, self._spec.shape, self._spec.dtype).view()
        return array.base if isinstance(array.base, np.ndarray) else array


def _free() -> int:
    """The count of an array that a list alone holds, as the loop of `take` sees it."""
    for root in [np.empty(0)]:
        return getrefcount(root)
    raise AssertionError


_FREE = _free()
