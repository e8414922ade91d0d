"""Measures the time a thread spends compiling, so that a measured rate of work can leave it out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch(threading.local):
    """Adds up the seconds that this thread spends within `running`, nested ones once."""

    total = 0.0
    _depth = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """The time of the block counts."""
        start = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.total += time.perf_counter() - start


compiling = Stopwatch()  # tracing, compiling and binding Programs
