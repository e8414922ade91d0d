from __future__ import annotations

from pathlib import Path

import pytest
from hint_kit import Here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Here(tmp_path, monkeypatch)
