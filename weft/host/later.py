"""Files for a later process, written while this one goes on."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress

_threads: set[threading.Thread] = set()


def later(work: Callable[[], object], name: str) -> threading.Thread:
    """Runs `work` on a thread of low priority. A process that ends waits for it, unless it is
    interrupted again."""

    def run() -> None:
        with suppress(OSError, AttributeError):  # one thread's priority, where the system has it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            work()
        finally:
            _threads.discard(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def _wait() -> None:
    with suppress(KeyboardInterrupt):
        for thread in list(_threads):
            thread.join()
