"""The GPUs of both vendors, as stand-ins for their bindings; an end for a module's devices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from gpu_bindings import Bindings, install


@pytest.fixture(params=["cuda", "hip"])
def gpu(request: Any, monkeypatch: pytest.MonkeyPatch) -> Bindings:
    return install(monkeypatch, request.param)


@pytest.fixture(scope="module", autouse=True)
def devices_end() -> Iterator[None]:
    """A Vulkan device keeps its pipelines (lavapipe: 0.3 MB each), so none outlives its module."""
    yield
    for module, name in (("wgpu_case", "device"), ("tiny_kit", "browser")):
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()
