"""Logs on stderr that block no caller.

A full disk, or a pipe whose reader sleeps, would stop the event loop and with it every answer. So a
thread writes, and drops the lines that it cannot keep up with.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from datetime import UTC, datetime

LINES = 10_000  # most lines that wait to be written
LAST_SECONDS = 1.0  # time to write the remaining lines when the process ends

Lines = queue.Queue[bytes]


class _Aside(logging.Handler):
    """Hands lines to the thread that writes; those that do not fit are left out."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(f"{self.format(record)}\n".encode(errors="replace"))


class _JsonLines(logging.Formatter):
    """A record as an object of JSON in one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        made = {"time": at.replace("+00:00", "Z"), "level": record.levelname.lower(),
                "logger": record.name, "message": record.getMessage()}  # fmt: skip
        if record.exc_info:
            made["exception"] = self.formatException(record.exc_info)
        return json.dumps(made, ensure_ascii=False)


def set_level(level: str) -> None:
    """Lets weft log what is of this level and above."""
    logging.getLogger("weft").setLevel(level.upper())


def quiet_logs(level: str, as_json: bool = False) -> None:
    """Logs of the server and of uvicorn's errors on stderr, without a request's content, as text or
    as JSON."""
    set_level(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if logging.root.handlers:
        return
    lines: Lines = queue.Queue(LINES)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    aside = _Aside(lines)
    aside.setFormatter(_JsonLines() if as_json else logging.Formatter(form))
    logging.basicConfig(level=logging.WARNING, handlers=[aside])
    writing = threading.Thread(target=_write, args=(lines, sys.stderr.fileno()), daemon=True)
    writing.start()
    atexit.register(_written, lines)


def _write(lines: Lines, file: int) -> None:
    """Without a lock or a buffer, which the end of the process would wait for."""
    while True:
        line = lines.get()
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(file, line) :]
        lines.task_done()


def _written(lines: Lines) -> None:
    """Waits for the last lines, up to LAST_SECONDS."""
    end = time.monotonic() + LAST_SECONDS
    while lines.unfinished_tasks and time.monotonic() < end:
        time.sleep(0.01)
