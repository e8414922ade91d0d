"""Methods that are handed out without their object."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def weakly(method: Callable[..., R]) -> Callable[..., R]:
    """Returns a function that calls a bound method while its object lives. An object may pass it to
    what it owns: a reference back would make a cycle, whose memory waits for the collector. Raises
    ReferenceError once the object is gone."""
    held = weakref.WeakMethod(method)

    def call(*values: Any) -> R:
        found = held()
        if found is None:
            raise ReferenceError("the object behind this call is gone")
        return found(*values)

    return call
