"""What a terminal shows: commands run on a pseudo-terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_cli import weft

pty = pytest.importorskip("pty")  # POSIX only

WIPE = "\x1b[2K"  # erases a line; every spinner ends with one
NO_DELAY = "from weft.models import progress; progress.DELAY = 0.0\n"
MAIN = NO_DELAY + "from weft.cli.main import main; main()"


def on_terminal(*args: str, code: str = MAIN, env: Mapping[str, str] | None = None) -> str:
    """What the command writes to a terminal, stdout and stderr together."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, *args]
    env = {**os.environ, "TERM": "xterm", **(env or {})}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 4096):
            written += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    text = written.decode(errors="replace").replace("\r\n", "\n")
    assert process.wait(timeout=60) == 0, text
    return text


def test_no_spinner_wipes_text_that_has_begun(tmp_path: Path) -> None:
    """Decoding is compiled after the first token is out."""
    args = ("run", "class A", "--device", "cpu", "--max-new-tokens", "4")
    screen = on_terminal(*args, env={"WEFT_CACHE": str(tmp_path)})
    piped = weft(*args).stdout.decode()
    assert "compiling prefill" in screen
    assert screen.rpartition(WIPE)[2].partition("cpu:0: loaded")[0] == piped
