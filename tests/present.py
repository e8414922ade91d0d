"""The devices of this machine."""

from __future__ import annotations

import pytest

from weft.backends import registry
from weft.core.errors import DeviceError
from weft.program.device import Device


def opened(name: str) -> Device:
    """The device of that name; where it is not there, the test is skipped. The CPU and the
    interpreter always are."""
    try:
        return registry.get(name)
    except DeviceError as error:
        if not name.startswith(("vulkan", "cuda", "hip")):
            raise
        pytest.skip(str(error), allow_module_level=True)
