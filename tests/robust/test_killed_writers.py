"""Processes that are killed while they write leave nothing for good; live ones are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weft.host import files

WRITER = """
import sys, time
from pathlib import Path
from weft.host import files
target = Path(sys.argv[2])
with getattr(files, sys.argv[1])(target) as new:
    (new / "weights").write_bytes(b"half") if sys.argv[1] == "replacing_folder" else (
        new.write_bytes(b"half"))
    print("writing", flush=True)
    sys.stdin.readline()
"""


def writer(kind: str, target: Path) -> subprocess.Popen[str]:
    """A process in the middle of its writing."""
    pipe = subprocess.PIPE
    made = subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(target)], stdin=pipe, stdout=pipe, text=True
    )
    assert made.stdout is not None and made.stdout.readline() == "writing\n"
    return made


def write(kind: str, target: Path) -> None:
    with getattr(files, kind)(target) as new:
        (new / "weights" if kind == "replacing_folder" else new).write_bytes(b"whole")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
@pytest.mark.parametrize("kind", ["replacing_folder", "replacing"])
def test_what_a_killed_writer_left_goes_with_the_next_one(kind: str, tmp_path: Path) -> None:
    target, other = tmp_path / "site", tmp_path / "site2"
    dead, elsewhere, live = (writer(kind, t) for t in (target, other, target))
    for each in (dead, elsewhere):
        each.send_signal(signal.SIGKILL)
        each.wait()
    assert len([p for p in tmp_path.iterdir() if p.name.startswith(".")]) == 3
    write(kind, target)
    left = [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert len(left) == 2  # the live one's, and what somebody left of another target
    live.communicate("\n")
    assert live.returncode == 0
    write(kind, other)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["site", "site2"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_what_was_put_aside_comes_back(tmp_path: Path) -> None:
    """Killed between putting the old folder aside and the new one in its place."""
    aside = tmp_path / ".site.01234567.weft-old"
    aside.mkdir()
    (aside / "weights").write_bytes(b"old")
    with pytest.raises(ValueError), files.replacing_folder(tmp_path / "site"):
        assert (tmp_path / "site" / "weights").read_bytes() == b"old"
        raise ValueError
    assert [p.name for p in tmp_path.iterdir()] == ["site"]
