"""torch.cuda's counts of memory, by what the driver says of the device."""

from __future__ import annotations

from typing import Any

from weft.backends.registry import get, opened
from weft.core.errors import UsageError


def _name(device: Any) -> str:
    at = device if isinstance(device, int) else getattr(device, "index", None) or 0
    return f"cuda:{at}"


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The bytes that are free, and those that the device has. Raises DeviceError without one."""
    found = get(_name(device))
    return found.free_memory(), found.info.memory


def memory_allocated(device: Any = None) -> int:
    """The bytes in use on a device, those of other processes too; 0 before weft opened it."""
    if opened(_name(device)) is None:
        return 0
    free, whole = mem_get_info(device)
    return whole - free


memory_reserved = memory_allocated


def max_memory_allocated(device: Any = None) -> int:
    """0 before weft opened the device. Raises UsageError afterwards: weft counts no peak."""
    if opened(_name(device)) is not None:
        raise UsageError(
            "max_memory_allocated: weft counts no peak of a device's memory; call "
            "memory_allocated where it is large"
        )
    return 0


max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Changes nothing: weft counts no peak."""


reset_max_memory_allocated = reset_accumulated_memory_stats = reset_peak_memory_stats


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """One line about a device's memory."""
    return f"{_name(device)}: {memory_allocated(device):,} bytes in use"


NAMES = [
    "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "memory_summary", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_peak_memory_stats",
]  # fmt: skip
