"""The devices that tensors are tried on."""

from __future__ import annotations

import pytest
from present import opened


@pytest.fixture(params=["cpu", "interp", "vulkan"])
def device(request: pytest.FixtureRequest) -> str:
    opened(request.param)
    return str(request.param)
