"""States that are touched here and there take the memory of what is touched."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from weft.core.dtypes import float16
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
