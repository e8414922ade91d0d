"""States that are touched here and there take the memory of what is touched."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from weft.backends.interp import InterpDevice
from weft.core.dtypes import float16
from weft.program.device import Buffer
from weft.program.placing import cleared
from weft.program.program import BufferSpec
from weft.program.values import zeros


def resident(array: np.ndarray) -> int:
    """The bytes in memory of all mappings that an array lies in."""
    begin, end, inside, found = array.ctypes.data, array.ctypes.data + array.nbytes, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            first, last = (int(at, 16) for at in head.split("-"))
            inside = first < end and begin < last
        elif inside and head == "Rss:":
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's table of mappings")
def test_a_cache_takes_memory_where_it_is_touched() -> None:
    spec = BufferSpec("keys", "state", float16, (12, 4096, 4096), 2 * 12 << 24)
    made = zeros(spec)
    assert made.shape == spec.shape and made.dtype == np.float16 and made.flags.writeable
    made[:, 7, :8] = 1
    assert made[3, 7, 7] == 1 and not made[3, 7, 8:].any()
    assert 12 * 4096 <= resident(made) <= 1 << 20


class Small(InterpDevice):
    """A device with memory of its own, beside a host that has none to spare."""

    def alloc(self, nbytes: int) -> Buffer:
        made = super().alloc(nbytes)
        self.write(made, np.full(nbytes, 7, np.uint8))
        return made


def test_a_devices_own_memory_is_cleared_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.program.memory._PIECE", 1000)
    monkeypatch.setattr("weft.program.placing.zeros", lambda spec: 1 / 0)
    device = Small()
    made = cleared(device, BufferSpec("keys", "state", float16, (2, 999), 3996))
    assert not device.read(made, (2, 999), float16).any()
