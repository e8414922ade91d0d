"""An array on a device: a buffer with a shape and a dtype. Weft's tensors wrap it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.dtypes import DType

if TYPE_CHECKING:
    from weft.program.device import Buffer, Device


class DeviceArray:
    """A C-contiguous array of `shape` and `dtype` at byte 0 of `buffer`.

    While it lives (or a NumPy view made by `view` lives) no Session reuses its buffer.
    """

    __slots__ = ("__weakref__", "buffer", "dtype", "shape")

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType):
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype

    @property
    def device(self) -> Device:
        """The device that holds the content."""
        return self.buffer.device

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the content."""
        return self.size * self.dtype.itemsize

    def numpy(self) -> np.ndarray:
        """A host copy of the content (waits for the device)."""
        if self.size == 0:
            return np.zeros(self.shape, self.dtype.numpy)
        return self.device.read(self.buffer, self.shape, self.dtype)

    def view(self) -> np.ndarray:
        """The content as NumPy without a copy where the device's memory is host memory (its
        buffers have an array interface), else a copy. The view keeps this array's buffer in use."""
        memory = getattr(self.buffer, "__array_interface__", None)
        if memory is None or self.size == 0:
            return self.numpy()
        self.device.sync()
        found = np.asarray(_ArrayOwner(self, memory))
        wanted = self.dtype.numpy  # NumPy's interface knows bfloat16 as two plain bytes
        return found if found.dtype == wanted else found.view(wanted)

    def __repr__(self) -> str:
        return f"DeviceArray({list(self.shape)}, {self.dtype.name}, {self.device.info.id})"


class _ArrayOwner:
    """Gives NumPy the content of a DeviceArray in host memory, and it as the owner."""

    def __init__(self, owner: DeviceArray, memory: dict[str, Any]):
        self.owner = owner
        typestr = owner.dtype.numpy.str
        self.__array_interface__ = {**memory, "shape": owner.shape, "typestr": typestr}
