"""Level "stress": a thousand runs and a thousand sessions, without memory growth or drift."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.conform.harness import check_equal
from weft.conform.report import Check, CheckFailed, Skip
from weft.core import text
from weft.program.device import Device
from weft.tensor import functional as F

_GROWTH = 8 << 20  # bytes: a leak of 8 KiB a run over a thousand runs


def rss() -> int:
    """Resident memory of this process now, in bytes (Linux)."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        raise Skip("current memory is read from /proc, which this system lacks") from None
    import os

    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _function(x: Any, w: Any) -> Any:
    return F.softmax(F.gelu(x @ w), axis=-1)


def _inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    return [weft.tensor(rng.standard_normal((64, 64)).astype(np.float32)) for _ in range(2)]


def _grown(before: int, runs: int) -> float:
    grown = rss() - before
    if grown > _GROWTH:
        raise CheckFailed(f"memory grew by {text.size(grown)} over {runs} runs")
    return 0.0


def _runs(device: Device, n: int) -> float:
    compiled = weft.compile(_function, device=device.info.id)
    inputs = _inputs()
    first = compiled(*inputs).numpy()
    for _ in range(20):
        compiled(*inputs).numpy()
    before = rss()
    for i in range(n):
        got = compiled(*inputs).numpy()
        if i % 50 == 0:
            check_equal(got, first)
    return _grown(before, n)


def _sessions(device: Device, n: int) -> float:
    inputs = _inputs()

    def once() -> np.ndarray:
        result: np.ndarray = weft.compile(_function, device=device.info.id)(*inputs).numpy()
        return result

    first = once()
    for _ in range(10):
        once()
    before = rss()
    for _ in range(n):
        check_equal(once(), first)
    return _grown(before, n)


def _buffers(device: Device, n: int) -> float:
    data = np.arange(10_000, dtype=np.float32)
    for _ in range(50):
        device.write(device.alloc(data.nbytes), data)
    device.sync()
    before = rss()
    for _ in range(n):
        device.write(device.alloc(data.nbytes), data)
    device.sync()
    return _grown(before, n)


def checks(device: Device) -> Iterator[Check]:
    """1,000 runs of one Program, 100 fresh compilations, 2,000 buffers."""
    yield "1,000 runs: same bits, no memory growth", partial(_runs, device, 1000)
    yield "100 compilations and sessions: no memory growth", partial(_sessions, device, 100)
    yield "2,000 buffers: no memory growth", partial(_buffers, device, 2000)
