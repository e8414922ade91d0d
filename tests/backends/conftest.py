"""The GPUs of both vendors, as stand-ins for their bindings."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_bindings import Bindings, install


@pytest.fixture(params=["cuda", "hip"])
def gpu(request: Any, monkeypatch: pytest.MonkeyPatch) -> Bindings:
    return install(monkeypatch, request.param)
