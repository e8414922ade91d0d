"""Timing the way the peers' scripts do it, so that one tool reads both sides."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH = 2e-3  # seconds between two waits for an asynchronous device: waiting then weighs little


def time_calls(
    call: Callable[[], object],
    repeats: int = 30,
    budget: float = 2.0,
    warm: int = 3,
    least: int = 5,
    sync: Callable[[], object] | None = None,
) -> list[float]:
    """Seconds of each timed call: at most `repeats`, at least `least`, about `budget` seconds in
    all, after `warm` calls that do not count. `sync` waits for a device whose calls return before
    their work is done: then a figure is the mean of a batch of calls that takes about BATCH."""
    for _ in range(warm):
        call()
    many = 1
    if sync is not None:
        sync()
        start = time.perf_counter()
        call()
        sync()
        many = max(1, min(1000, round(BATCH / max(time.perf_counter() - start, 1e-7))))
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < repeats and (len(times) < least or time.perf_counter() < end):
        start = time.perf_counter()
        for _ in range(many):
            call()
        if sync is not None:
            sync()
        times.append((time.perf_counter() - start) / many)
    return times


def summary(times: list[float], scale: float = 1e3, unit: str = "ms") -> dict[str, Any]:
    """Median, least, greatest and count, keyed as median_ms, min_ms, ..."""
    return {
        f"median_{unit}": round(statistics.median(times) * scale, 4),
        f"min_{unit}": round(min(times) * scale, 4),
        f"max_{unit}": round(max(times) * scale, 4),
        "n": len(times),
    }


def rates(values: list[float]) -> dict[str, Any]:
    """Tokens per second of several runs, keyed as median_tok_s, ..."""
    return {
        "median_tok_s": round(statistics.median(values), 2),
        "min_tok_s": round(min(values), 2),
        "max_tok_s": round(max(values), 2),
        "n": len(values),
    }


def peak_rss_mib() -> float:
    """Peak resident memory of this process, MiB. Linux's ru_maxrss would begin with what the
    process that started this one held, so the system's count of this program is read there."""
    if sys.platform == "linux":
        with open("/proc/self/status") as f:
            found = [line for line in f if line.startswith("VmHWM:")]
        if found:  # not every sandbox counts it
            return round(int(found[0].split()[1]) / 1024, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1024), 1)
