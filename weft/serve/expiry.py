"""When to release an unused model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any


class Expiry:
    """A time from which something unused may go. `at` is that time by the clock (None: never)."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def set(self, seconds: float | None, go: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts `go` after the given seconds, unless it is set or stopped before (None or
        negative: never)."""
        self.stop()
        if seconds is None or seconds < 0:
            return

        def over() -> None:
            self._task = asyncio.ensure_future(go())

        self.at = time.time() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, over)

    def stop(self) -> None:
        """Forgets the time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.at = None
