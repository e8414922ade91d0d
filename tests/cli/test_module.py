"""`python -m weft`."""

import subprocess
import sys


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "weft", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: weft ")
