"""One way of timing for both sides: batches of calls between two waits for the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

BATCH = 2e-3  # seconds that a batch lasts at least, so that waiting for the device weighs little


def measure(
    call: Callable[[], object],
    sync: Callable[[], object],
    budget: float,
    warm: int = 3,
    least: int = 3,
    most: int = 50,
) -> list[float]:
    """Seconds per call of each batch. Batches hold as many calls as BATCH takes; there are at least
    `least` and at most `most` of them, in about `budget` seconds."""
    for _ in range(warm):
        call()
    sync()
    start = time.perf_counter()
    call()
    sync()
    once = max(time.perf_counter() - start, 1e-7)
    calls = max(1, min(1000, round(BATCH / once)))
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        sync()
        times.append((time.perf_counter() - start) / calls)
    return times


def summary(times: list[float], unit: str = "", work: float = 0.0) -> dict[str, Any]:
    """Keys as the peers' scripts have them; the rate is of the median."""
    median = statistics.median(times)
    found = {
        "median_ms": round(median * 1e3, 5), "min_ms": round(min(times) * 1e3, 5),
        "max_ms": round(max(times) * 1e3, 5), "n": len(times),
    }  # fmt: skip
    if unit:
        found[unit] = round(work / median / 1e9, 2)
    return found
