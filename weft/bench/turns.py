"""Calls of several sides in turns, and what each takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]


def in_turns(
    sides: Mapping[str, Call], repeats: int, tell: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, float]]:
    """Returns side -> the least and the median seconds of `repeats` calls, and the median of their
    processor time. Sides take turns; each is called once before, which compiles."""
    for name, call in sides.items():
        tell(f"{name}: first call")
        call()
    walls: dict[str, list[float]] = {name: [] for name in sides}
    works: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            start, work = time.perf_counter(), time.process_time()
            call()
            walls[name].append(time.perf_counter() - start)
            works[name].append(time.process_time() - work)
            tell(f"{name}: {walls[name][-1]:.3f} s")
    return {
        name: {
            "least_s": round(min(walls[name]), 4),
            "median_s": round(statistics.median(walls[name]), 4),
            "cpu_s": round(statistics.median(works[name]), 4),
        }
        for name in sides
    }
