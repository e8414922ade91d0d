"""Transfers through page-locked memory, on stand-ins that copy as late as they may."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_bindings import Bindings, named, opened, pointer

from weft.backends.gpu import staging
from weft.core.errors import OutOfMemoryError


def test_small_writes_share_a_chunk_and_wait_for_nothing(gpu: Bindings) -> None:
    driver = opened(gpu)
    address, data = driver.alloc(400), np.arange(100, dtype=np.int32)
    for i in range(100):
        one = data[i : i + 1].copy()
        driver.write(address + 4 * i, pointer(one), 4)
        one[:] = -1  # the host's memory is free again
    names = gpu.names()
    assert "EventSynchronize" not in "".join(names) and named(gpu, "wait")[0] not in names
    got = np.zeros(100, np.int32)
    driver.read(pointer(got), address, 400)
    np.testing.assert_array_equal(got, data)


@pytest.mark.parametrize("extra", [-1, 0, 1, 70])
def test_long_transfers_take_turns(
    gpu: Bindings, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content survives although the device copies as late as it may."""
    monkeypatch.setattr(staging, "CHUNK", 4096)
    driver, n = opened(gpu), 3 * staging.CHUNK + extra
    rng = np.random.default_rng(0)
    address = driver.alloc(n)
    for start in (0, 1):  # the second starts in a used chunk, and elsewhere
        data = rng.integers(0, 256, n - start, np.uint8)
        kept = data.copy()
        driver.write(address + start, pointer(data), data.size)
        data[:] = 0
        got = np.zeros_like(kept)
        driver.read(pointer(got), address + start, got.size)
        np.testing.assert_array_equal(got, kept)
    assert sum(p.nbytes for p in gpu.pinned.values()) == 2 * staging.CHUNK
    assert [h.what for h in gpu.live].count("event") == 2


def test_a_read_sees_what_was_asked_before(gpu: Bindings) -> None:
    driver = opened(gpu)
    address = driver.alloc(8)
    one = np.arange(8, dtype=np.uint8)
    driver.write(address, pointer(one), 8)
    driver.fill(address, 9, 4)
    got = np.zeros(8, np.uint8)
    driver.read(pointer(got), address, 8)
    assert got.tolist() == [9, 9, 9, 9, 4, 5, 6, 7]


def test_no_page_locked_memory(gpu: Bindings) -> None:
    driver = opened(gpu)
    address, one = driver.alloc(8), np.ones(8, np.uint8)
    gpu.fail = {named(gpu, "host_alloc")[0]: [0, 2]}
    for _ in range(2):  # the second time finds what the first has left
        try:
            driver.write(address, pointer(one), 8)
        except OutOfMemoryError as error:
            assert named(gpu, "host_alloc")[0] in str(error)
    got = np.zeros(8, np.uint8)
    driver.read(pointer(got), address, 8)
    assert got.all() and len(gpu.pinned) == 2
