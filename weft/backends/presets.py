"""What Programs can be compiled for by name, whether it is here or not."""

from __future__ import annotations

from collections.abc import Iterable

from weft.backends import registry
from weft.backends.llvm import gpu_target
from weft.core.caps import PRESETS, Caps
from weft.core.errors import DeviceError, UnknownDeviceError
from weft.program.program import Program


def caps_of(device: str) -> Caps:
    """The Caps that `device` names: a preset's, a GPU architecture's or a device's of this machine.
    Raises DeviceError for none of these."""
    if device in PRESETS:
        return PRESETS[device]
    if not _opens(device):
        return gpu_target(device).caps
    try:
        return registry.get(device).caps
    except DeviceError as error:
        known = ", ".join(PRESETS)
        kind = UnknownDeviceError if isinstance(error, UnknownDeviceError) else DeviceError
        raise kind(f"{error}; what need not be here: {known}, sm_90, gfx942, ...") from None


def prepare(device: str, programs: Iterable[Program]) -> None:
    """Compiles the kernels of Programs for a device of this machine, so that weft's cache has them
    when they are played. Does nothing for one that need not be here."""
    if device not in PRESETS and _opens(device):
        for program in programs:
            registry.get(device).load(program.kernels)


def _opens(device: str) -> bool:
    """Whether the name is of something to be opened, not of an architecture."""
    return not device.startswith(("sm_", "gfx"))
