"""Files for a later process, written while this one goes on."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress

_waiting: set[Later] = set()


class Later:
    """Work on another thread, which begins after so many seconds. A process that ends waits for
    it, unless it is interrupted again."""

    def __init__(self, work: Callable[[], object], name: str, after: float = 0.0) -> None:
        self._work, self._after = work, after
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _waiting.add(self)
        self._thread.start()

    def wait(self) -> None:
        """Begins now, and returns when the work is done."""
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        self._asked.wait(self._after)
        try:
            self._work()
        finally:
            _waiting.discard(self)


@atexit.register
def _end() -> None:
    with suppress(KeyboardInterrupt):
        for one in list(_waiting):
            one.wait()
