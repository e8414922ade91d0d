"""What a terminal shows: commands run on a pseudo-terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_cli import weft

pty = pytest.importorskip("pty")  # POSIX only

WIPE = "\x1b[2K"  # erases a line; every spinner ends with one
NO_DELAY = "from weft.host import progress; progress.DELAY = 0.0\n"
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
    assert process.wait(timeout=240) == 0, text
    return text


def test_no_spinner_wipes_text_that_has_begun(tmp_path: Path) -> None:
    """Decoding is compiled after the first token is out."""
    args = ("run", "class A", "--device", "cpu", "--max-new-tokens", "4")
    screen = on_terminal(*args, env={"WEFT_CACHE": str(tmp_path)})
    piped = weft(*args).stdout.decode()
    assert "compiling prefill" in screen
    assert screen.rpartition(WIPE)[2].partition("cpu:0, ")[0] == piped


BAR = (
    NO_DELAY
    + """
import time
from weft.training.report import Display
with Display(9, 0) as display:
    display.step(1, {"loss": 2.0, "lr": 0.1, "tokens_per_s": 5.0})
    with progress.progress("compiling"):
        time.sleep(0.3)
"""
)


def test_the_bar_of_training_leaves_room_for_an_echo_and_none_for_a_spinner() -> None:
    """A terminal writes "^C" at the end of the bar: a line that wraps is never erased."""
    screen = on_terminal(code=BAR, env={"COLUMNS": "80"})
    assert "loss 2.000" in screen and "compiling" not in screen
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", screen).splitlines()
    assert max(map(len, lines)) <= 76


def test_devices_fit_a_narrow_terminal() -> None:
    screen = on_terminal("devices", env={"COLUMNS": "80"})
    assert max(map(len, screen.splitlines())) <= 80
    wide = on_terminal("devices", env={"COLUMNS": "400"})
    for word in set(wide.split()) - {"driver", "dtypes,", "or", "what"}:  # of the header
        assert word in screen
