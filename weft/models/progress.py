"""A spinner on stderr for waits that a person notices; nothing when stderr is not a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

DELAY = 0.5  # seconds before anything shows, so that quick loads pay nothing
_taken: ContextVar[bool] = ContextVar("_taken", default=False)


@contextmanager
def line_taken(taken: bool = True) -> Iterator[None]:
    """While inside, no spinner begins: the terminal's line holds what it would wipe (text that is
    being written, a bar). With `taken` false nothing changes."""
    token = _taken.set(taken or _taken.get())
    try:
        yield
    finally:
        _taken.reset(token)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Shows `text` with a spinner while the block runs, once it has run for DELAY seconds."""
    if _taken.get() or not sys.stderr.isatty():
        yield
        return
    spinner = _Spinner(text)
    timer = threading.Timer(DELAY, spinner.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        spinner.stop()


class _Spinner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._status: Any = None
        self._over = False

    def start(self) -> None:
        from rich.console import Console

        with self._lock:
            if not self._over:
                self._status = Console(stderr=True).status(self._text)
                self._status.start()

    def stop(self) -> None:
        with self._lock:
            self._over = True
            if self._status is not None:
                self._status.stop()
