"""The trace that a thread is building, if any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from weft.graph.ir import Node

if TYPE_CHECKING:
    from weft.tensor.base import TensorBase
    from weft.tensor.guards import TraceReads


class Capturing(Protocol):
    """The trace in progress, as this module needs it."""

    facts: TraceReads

    def capture(self, tensor: TensorBase) -> Node: ...

    def assign(self, tensor: TensorBase, value: Node) -> None: ...

    def reads_grad(self, tensor: TensorBase) -> None: ...

    def writes_grad(self, tensor: TensorBase) -> None: ...

    def guard(self, check: Callable[[], bool]) -> None: ...

    def check(self, flags: TensorBase, refuse: Callable[[Any], None]) -> None: ...


class _Current(threading.local):
    trace: Capturing | None = None
    transforms = 0  # derivatives and maps that run, inside which compiled functions just run
    casts = 0  # contexts of autocast that are open


CURRENT = _Current()  # what this thread is doing
