"""Checks that a Program's memory is there, and clears it."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from weft.core.errors import OutOfMemoryError
from weft.host.memory import CHECKED
from weft.program.device import Buffer, Device
from weft.program.program import Program

_PIECE = 1 << 24  # bytes cleared at once


def check_fits(program: Program, device: Device, given: Container[str] = ()) -> None:
    """Raises OutOfMemoryError unless the buffers that a Session makes fit together: the states,
    except those `given`, and all other buffers of an untrusted Program. Each buffer alone may fit,
    and memory that a host only promises ends the process at its first use."""
    foreign = program.meta.get("foreign")
    if not foreign and not device.is_host:  # a device's own allocator refuses
        return
    kinds = ("state", "arena", "input", "output") if foreign else ("state",)
    made = (b for b in program.buffers if b.role in kinds)
    need = sum(b.nbytes for b in made if b.role != "state" or b.name not in given)
    free = device.free_memory() if foreign or need >= CHECKED else 0
    if free and need > free:
        raise OutOfMemoryError(
            f"{program.name} needs {need:,} bytes in addition to its weights, {device.info.id} "
            f"has {free:,} free"
        )


def clear(device: Device, buffer: Buffer, nbytes: int) -> None:
    """Sets the first `nbytes` of a buffer to zero."""
    nothing = np.zeros(min(_PIECE, nbytes), np.uint8)
    for at in range(0, nbytes, _PIECE):
        device.write(buffer, nothing[: nbytes - at], at)
