"""The watch for gradients that are not numbers, which names the op whose derivative made one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import GradientError
from weft.program.array import DeviceArray


class _Watch(threading.local):
    on = False
    nan = True  # whether it looks at gradients


_WATCH = _Watch()


def watching() -> tuple[bool, bool]:
    """Returns two flags: backward passes of this thread are watched, and they are for NaN."""
    return _WATCH.on, _WATCH.nan


def watch(on: bool, nan: bool = True) -> None:
    """Has backward passes of this thread raise GradientError at the first NaN, or not."""
    _WATCH.on, _WATCH.nan = bool(on), bool(nan)


def pulled(node: Any, grad: Any, operands: tuple[Any, ...]) -> Sequence[Any]:
    """The gradients of a node's operands, looked at if this thread watches."""
    parts: Sequence[Any] = node.pull(grad, operands)
    if not (_WATCH.on and _WATCH.nan):
        return parts
    return [_numbers(node.name, i, part) for i, part in enumerate(parts)]


def _numbers(name: str, number: int, part: Any) -> Any:
    """The gradient of an operand. Raises GradientError if it is known and has a NaN."""
    made = part() if isinstance(part, Callable) else part  # type: ignore[arg-type]
    held = made.numpy() if isinstance(made, DeviceArray) else made
    if isinstance(held, np.ndarray) and bool(np.isnan(held).any()):
        raise GradientError(
            f"backward through {name}: the gradient of its operand {number} {list(held.shape)} has "
            f"{int(np.isnan(held).sum())} NaN; look at what {name} was given"
        )
    return made
