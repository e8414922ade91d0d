"""torch.accelerator: the best GPU that weft finds, under the name that tensors take."""

from __future__ import annotations

from weft.backends.registry import hardware
from weft.core.errors import UsageError
from weft.torch.cuda import empty_cache as empty_cache, synchronize as synchronize
from weft.torch.tensor import Device


def is_available() -> bool:
    """True if there is a hardware GPU that weft uses; a software rasteriser is none."""
    return bool(hardware())


def device_count() -> int:
    """The number of hardware GPUs of the best one's kind."""
    found = [name.partition(":")[0] for name in hardware()]
    return found.count(found[0]) if found else 0


def current_accelerator(check_available: bool = False) -> Device | None:
    """The name of the best GPU, such as "cuda:0" or "vulkan:0"; None without one. PyTorch names a
    kind that it was built for, unless check_available is True."""
    return next((Device(name) for name in hardware()), None)


def current_device_index() -> int:
    """0: a kind alone names its first device; others are named, like "cuda:1"."""
    return 0


def set_device_index(device: object) -> None:
    """Accepts the first device. Raises UsageError for another one: weft lacks a current device."""
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if index not in (None, 0):
        raise UsageError(f"device {index} cannot become the current one; pass its name, such as "
                         f'device="cuda:{index}"')  # fmt: skip


current_device_idx, set_device_idx = current_device_index, set_device_index


def __dir__() -> list[str]:
    return [
        "current_accelerator", "current_device_idx", "current_device_index", "device_count",
        "empty_cache", "is_available", "set_device_idx", "set_device_index", "synchronize",
    ]  # fmt: skip
