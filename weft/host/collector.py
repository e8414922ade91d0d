"""Python's garbage collector, held back while one makes a million objects that all stay, and kept
from those that stay as long as a model does."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Own(threading.local):
    depth = 0  # blocks of this thread


class _Pause:
    def __init__(self) -> None:
        self.lock, self.own = threading.Lock(), _Own()
        self.blocks, self.was_on = 0, False

    def change(self, by: int) -> None:
        with self.lock:
            if not self.blocks:
                self.was_on = gc.isenabled()
                gc.disable()
            self.blocks, self.own.depth = self.blocks + by, self.own.depth + by
            self.settle()

    def settle(self) -> None:
        if not self.blocks and self.was_on:
            gc.enable()

    def in_child(self) -> None:
        """The child of a fork has this thread's blocks alone."""
        self.lock = threading.Lock()
        if self.blocks:
            self.blocks = self.own.depth
            self.settle()


_PAUSE = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PAUSE.in_child)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pauses the collector, which would walk through all of a graph again and again while it grows:
    two fifths of the time that 10,000 parameters take to compile. It goes on when the last block of
    all threads has ended, unless it was off before the first."""
    _PAUSE.change(1)
    try:
        yield
    finally:
        _PAUSE.change(-1)


def set_apart() -> None:
    """Sets all objects apart, so that no collection walks through them. With a loaded model that
    walk takes 50 ms and more, in the middle of a step. Objects in cycles are not freed until
    `take_back`."""
    gc.collect(1)  # what a load has left
    gc.freeze()


def take_back() -> None:
    """Lets the collector free objects that were set apart."""
    gc.unfreeze()
