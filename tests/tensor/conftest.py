"""The devices that tensors are tried on."""

from __future__ import annotations

import pytest

from weft.backends import registry
from weft.core.errors import DeviceError


@pytest.fixture(params=["cpu", "interp", "vulkan"])
def device(request: pytest.FixtureRequest) -> str:
    try:
        registry.get(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return str(request.param)
