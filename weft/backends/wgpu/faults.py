"""Turns wgpu's errors into weft's, including those that only reach its log.

wgpu-py raises errors found inside a call. Later ones (a lost device, an error found on another
thread) go to the logger "wgpu". A handler there keeps such messages, and every call that waits for
results checks them first, so a failed run is an error and never zeros.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

from weft.core.errors import DeviceError, OutOfMemoryError, WeftError
from weft.host.forks import lock_of


class Trap(logging.Handler):
    """Keeps the error messages of the logger "wgpu"."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self._guard = lock_of(self, "_guard")

    def emit(self, record: logging.LogRecord) -> None:
        with self._guard:
            self.messages.append(record.getMessage())

    def take(self) -> list[str]:
        """The messages so far, which are then forgotten."""
        with self._guard:
            taken, self.messages = self.messages, []
        return taken


_trap: Trap | None = None


def trap() -> Trap:
    """The one handler of this process, installed at first use."""
    global _trap
    if _trap is None:
        _trap = Trap()
        logging.getLogger("wgpu").addHandler(_trap)
    return _trap


def first_line(message: str) -> str:
    """A message on one line, without wgpu's drawings of the source."""
    lines = [x.strip() for x in str(message).splitlines() if x.strip()]
    return "; ".join(lines[:4])[:500]


_PLACE = re.compile(r"┌─ \S*:(\d+):(\d+)")
_WIDTH = 96  # columns of source shown


def refusal(message: str, kernel: str, source: str) -> str:
    """Returns the reason why a WGSL compiler rejects a kernel. Below it, if the compiler names a
    place, is the line of `source` with a caret."""
    words = _reason(message)
    place = _PLACE.search(message)
    lines = source.splitlines()
    if place is None or not 1 <= int(place[1]) <= len(lines):
        return f"kernel {kernel}: {words}"
    line, column = lines[int(place[1]) - 1], int(place[2]) - 1
    marks = re.search(r"\^+", message[place.end() :])
    start = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
    shown = line[start : start + _WIDTH]
    indent = len(shown) - len(shown.lstrip())
    at = max(column - start - indent, 0)
    caret = "^" * max(1, min(len(marks[0]) if marks else 1, len(shown) - indent - at))
    head = f"kernel {kernel}, line {place[1]} of its WGSL: {words}"
    return f"{head}\n    {shown.strip()}\n    {' ' * at}{caret}"


def _reason(message: str) -> str:
    """A compiler's verdict and the last of its notes, which is the most exact."""
    lines = [x.strip() for x in message.splitlines() if x.strip()]
    heads = [x.partition(": ")[2] for x in lines if x.startswith("Shader ")]
    notes = [x[2:] for x in lines if x.startswith("= ") and not x.startswith("= note")]
    if heads:
        return "; ".join([heads[0], *notes[-1:]])[:300]
    known = ("Validation Error", "Caused by:", "In wgpu")
    return "; ".join(x for x in lines if not x.startswith(known))[:300]


@contextlib.contextmanager
def guarded(wgpu: Any, device: str, doing: str) -> Iterator[None]:
    """Runs a block of wgpu calls; its errors come out as DeviceError or OutOfMemoryError."""
    try:
        yield
    except WeftError:
        raise
    except wgpu.GPUOutOfMemoryError as error:
        trap().take()
        raise OutOfMemoryError(
            f"{device}: out of memory {doing}: {first_line(str(error))}"
        ) from error
    except (wgpu.GPUError, RuntimeError, ValueError) as error:
        trap().take()
        raise DeviceError(f"{device} failed {doing}: {first_line(str(error))}") from error
