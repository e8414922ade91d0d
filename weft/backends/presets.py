"""The targets that Programs can be compiled for by name, present on this machine or not."""

from __future__ import annotations

from collections.abc import Iterable

from weft.backends import registry
from weft.backends.llvm import gpu_target
from weft.core.caps import PRESETS, Caps
from weft.core.errors import DeviceError, UnknownDeviceError
from weft.program.program import Program


def settled(device: str) -> str:
    """Returns the name of the device that "auto" means; any other name unchanged."""
    return registry.get(device).info.id.removesuffix(":0") if device == "auto" else device


def caps_of(device: str) -> Caps:
    """Returns the Caps of `device`: a preset, a GPU architecture or a device of this machine.
    Raises DeviceError for any other name."""
    if device in PRESETS:
        return PRESETS[device]
    if not _opens(device):
        return gpu_target(device).caps
    try:
        return registry.get(device).caps
    except DeviceError as error:
        known = ", ".join(PRESETS)
        kind = UnknownDeviceError if isinstance(error, UnknownDeviceError) else DeviceError
        raise kind(f"{error}; targets for other machines: {known}, sm_90, gfx942, ...") from None


def prepare(device: str, programs: Iterable[Program]) -> None:
    """Compiles the kernels of Programs for a device of this machine, so that weft's cache has them
    before the first run. Does nothing for a preset or an architecture."""
    if device not in PRESETS and _opens(device):
        for program in programs:
            registry.get(device).load(program.kernels)


def _opens(device: str) -> bool:
    """True if the name is a device to open, not an architecture."""
    return not device.startswith(("sm_", "gfx"))
