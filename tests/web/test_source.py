"""The player's source: types, lint; and the package that bundlers and npm make of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from page_device import PLAYER
from page_kit import MODULES, need

CONFIG = Path(__file__).with_name("eslint.config.mjs")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the player beside npm's packages."""
    (tmp_path / "node_modules").symlink_to(MODULES)
    return Path(shutil.copytree(PLAYER, tmp_path / "js"))


def tool(name: str, *args: str, at: Path) -> str:
    command = [str(MODULES / ".bin" / name), *args]
    out = subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=200)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def test_types(source: Path) -> None:
    need("typescript", "@webgpu/types", "@types/node")
    tool("tsc", "-p", "jsconfig.json", at=source)


def test_lint(source: Path) -> None:
    need("eslint")
    shutil.copy(CONFIG, source)
    tool("eslint", "--max-warnings=0", ".", at=source)
