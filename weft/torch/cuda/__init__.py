"""torch.cuda: what CUDA devices there are. weft waits for a device where a value is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from weft.backends.registry import get, probe
from weft.core.errors import OutOfMemoryError as OutOfMemoryError, UsageError
from weft.torch import typed as _typed
from weft.torch.creation import device as device
from weft.torch.cuda import amp as amp
from weft.torch.cuda.memory import (
    max_memory_allocated as max_memory_allocated,
    max_memory_reserved as max_memory_reserved,
    mem_get_info as mem_get_info,
    memory_allocated as memory_allocated,
    memory_reserved as memory_reserved,
    memory_summary as memory_summary,
    reset_accumulated_memory_stats as reset_accumulated_memory_stats,
    reset_max_memory_allocated as reset_max_memory_allocated,
    reset_peak_memory_stats as reset_peak_memory_stats,
)
from weft.torch.randomness import (
    get_rng_state as get_rng_state,
    manual_seed as manual_seed,
    set_rng_state as set_rng_state,
)

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


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """The device's `name` and its `total_memory` in bytes. Raises DeviceError if it is not
    there."""
    at = device if isinstance(device, int) else getattr(device, "index", None) or 0
    found = get(f"cuda:{at}").info
    return SimpleNamespace(name=found.name, total_memory=found.memory)


def set_device(device: Any) -> None:
    """Accepts the first device. Raises UsageError for another one, which calls name."""
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if index not in (None, 0):
        raise UsageError(f'set_device: {index}; pass its name, such as device="cuda:{index}"')


def empty_cache() -> None:
    """Changes nothing: weft gives memory back by itself."""


def synchronize(device: Any = None) -> None:
    """Changes nothing: a value that is read is finished."""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: kernels compute bfloat16 on every device."""
    return True


globals().update(_typed.ON_CUDA)
_HIDDEN = ("Any", "SimpleNamespace", "UsageError", "annotations", "get", "probe")


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)


def __dir__() -> list[str]:
    return [n for n in globals() if n[0] != "_" and n not in _HIDDEN]
