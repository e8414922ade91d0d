"""The memory of a Program from an untrusted source."""

from __future__ import annotations

import numpy as np

from weft.core.errors import OutOfMemoryError
from weft.program.device import Buffer, Device
from weft.program.program import Program

_PIECE = 1 << 24  # bytes cleared at once


def check_fits(program: Program, device: Device) -> None:
    """Raises OutOfMemoryError unless all buffers of an untrusted Program fit together. Each buffer
    alone may fit, and memory that is only promised ends the process at its first use."""
    if not program.meta.get("foreign"):
        return
    need = sum(b.nbytes for b in program.buffers if b.role not in ("weight", "const"))
    free = device.free_memory()
    if free and need > free:
        raise OutOfMemoryError(
            f"{program.name} needs {need:,} bytes in addition to its weights, {device.info.id} "
            f"has {free:,} free"
        )


def clear(device: Device, buffer: Buffer, nbytes: int) -> None:
    """Sets the first `nbytes` of a buffer to zero."""
    for at in range(0, nbytes, _PIECE):
        device.write(buffer, np.zeros(min(_PIECE, nbytes - at), np.uint8), at)
