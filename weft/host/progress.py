"""A spinner on stderr for noticeable waits, and a bar for long work; nothing if stderr is not a
terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

DELAY = 0.5  # seconds before anything shows, so that quick loads show nothing
_taken: ContextVar[bool] = ContextVar("_taken", default=False)


@contextmanager
def line_taken(taken: bool = True) -> Iterator[None]:
    """Suppresses new spinners inside, because they would overwrite the terminal's line (text in
    progress, a bar). Does nothing with `taken` false."""
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


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that shows (what is done, number done, total) as a bar."""
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    left = TimeRemainingColumn(elapsed_when_finished=True)
    columns = TextColumn("{task.description}"), BarColumn(None), left
    with Progress(*columns, console=Console(stderr=True), expand=True) as shown, line_taken():
        task = shown.add_task("", total=None)
        yield lambda what, done, of: shown.update(task, description=what, completed=done, total=of)


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
