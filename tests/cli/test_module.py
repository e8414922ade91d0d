"""`python -m weft`, and the installation that runs the tests."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from weft.core import install


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "weft", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: weft ")


def test_a_script_beside_the_clone_finds_the_package(tmp_path: Path) -> None:
    """A folder called weft, as a clone is, is a package without content to Python."""
    try:
        distribution(install.name())
    except PackageNotFoundError:
        pytest.skip("weft is not installed here")
    (tmp_path / "weft").mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import weft; weft.tensor(1)"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=240)
