"""scripts/test and the hooks of pre-commit run the same checks; --changed runs what is touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "test"


def checks() -> list[str]:
    """The commands of scripts/test that check without running tests."""
    found = re.findall(r"^ +(\.venv/bin/(?:ruff|mypy)[^>\n]*?)(?: >.*)?$", SCRIPT.read_text(), re.M)
    assert len(found) > 2
    return found


def test_the_hooks_are_the_checks_of_the_script() -> None:
    """Each from .venv: nothing is fetched from anywhere."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == checks()
    for hook in hooks:
        assert hook["language"] == "system" and hook["pass_filenames"] is False
        assert (ROOT / hook["entry"].split()[0]).name in ("ruff", "mypy")


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(
    ("given", "found", "ran"),
    [
        (["--changed"], "tests/a.py\ntests/b.py", "HEAD|tests/a.py tests/b.py"),
        (["--changed", "main", "-x"], "tests/a.py", "main|tests/a.py -x"),
        (["--changed", "-x"], "tests", "HEAD|tests -x"),
        (["--changed"], "", "HEAD|no test"),
        (["--fast", "tests/kernel"], "tests/a.py", "|tests/kernel"),
    ],
)
def test_what_the_script_runs(given: list[str], found: str, ran: str, tmp_path: Path) -> None:
    base, _, words = ran.partition("|")
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts" / "test")
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    asked = tmp_path / "asked"
    python = f"""#!/bin/sh
case "$1" in
scripts/changed.py) echo "$2" >'{asked}'; printf '%s' '{found}' ;;
-m) echo "$@" ;;
esac
"""
    for name in ("python", "pytest"):
        (tools / name).write_text(python)
        (tools / name).chmod(0o755)
    command = ["sh", str(tmp_path / "scripts" / "test"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (asked.read_text().strip() if asked.exists() else "") == base
    assert f"worksteal {words}" in done.stdout or (not found and words in done.stdout)


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(("types", "tests"), [(0, 0), (1, 0), (0, 5)])
def test_types_are_checked_beside_the_tests(types: int, tests: int, tmp_path: Path) -> None:
    folder, tools = tmp_path / "scripts", tmp_path / ".venv" / "bin"
    folder.mkdir()
    tools.mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "test")
    (folder / "setup").write_text("")
    for name, status in (("ruff", 0), ("mypy", types), ("python", tests)):
        (tools / name).write_text(f"#!/bin/sh\necho said by {name}\nexit {status}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(["sh", str(folder / "test")], capture_output=True, text=True)
    assert done.returncode == (types or tests)
    assert done.stdout.splitlines()[-2:] == ["said by python", "said by mypy"]
