"""Turning wgpu's errors into weft's, also those that only reach its log.

wgpu-py raises what goes wrong inside a call. What goes wrong later (a lost device, an error found
on another thread) it writes to the logger "wgpu". A handler there keeps such messages, and every
call that waits for results looks at them first, so a failed run is an error and never zeros.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from weft.core.errors import DeviceError, OutOfMemoryError, WeftError
from weft.core.forks import lock_of


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
