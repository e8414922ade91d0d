"""torch.cuda: what CUDA devices there are. weft waits for a device where a value is read."""

from __future__ import annotations

from typing import Any

from weft.backends.registry import get, probe
from weft.torch.cuda import amp as amp
from weft.torch.randomness import manual_seed as manual_seed

manual_seed_all = manual_seed


def is_available() -> bool:
    """True if there is a device that works."""
    return any(info.available for info in probe("cuda"))


def device_count() -> int:
    """The number of devices that work."""
    return sum(info.available for info in probe("cuda"))


def current_device() -> int:
    """0: "cuda" means the first device; others are named, like "cuda:1"."""
    return 0


def get_device_name(device: Any = None) -> str:
    """The name of a device. Raises DeviceError if it is not there."""
    at = device if isinstance(device, int) else getattr(device, "index", None) or 0
    return get(f"cuda:{at}").info.name


def empty_cache() -> None:
    """Changes nothing: weft gives memory back by itself."""


def synchronize(device: Any = None) -> None:
    """Changes nothing: a value that is read is finished."""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: kernels compute bfloat16 on every device."""
    return True


def __dir__() -> list[str]:
    return [n for n in globals() if n[0] != "_" and n not in ("Any", "annotations", "get", "probe")]
