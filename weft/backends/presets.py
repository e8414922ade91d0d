"""What Programs can be compiled for by name, whether it is here or not."""

from __future__ import annotations

from weft.backends import registry
from weft.backends.llvm import gpu_target
from weft.core.caps import PRESETS, Caps
from weft.core.errors import DeviceError


def caps_of(device: str) -> Caps:
    """The Caps that `device` names: a preset's, a GPU architecture's or a device's of this machine.
    Raises DeviceError for none of these."""
    if device in PRESETS:
        return PRESETS[device]
    if device.startswith(("sm_", "gfx")):
        return gpu_target(device).caps
    try:
        return registry.get(device).caps
    except DeviceError as error:
        known = ", ".join(PRESETS)
        raise DeviceError(f"{error}; what need not be here: {known}, sm_90, gfx942, ...") from None
