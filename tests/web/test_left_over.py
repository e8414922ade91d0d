"""No browser is left where what drives it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from page_kit import need

HERE = Path(__file__).parent
RUN = HERE.parents[1] / "scripts" / "web_bench" / "run.mjs"
DRIVEN = """
import { drive } from "./driven.mjs";
await drive(async () => ({ page: {} }));
console.log("closed");
"""


def until(what: Callable[[], bool]) -> None:
    for _ in range(600):
        if what():
            return
        time.sleep(0.05)
    pytest.fail("it did not come")


def test_the_tests_end_in_the_midst_of_a_line() -> None:
    need()
    line = '{"who": "a", "code": "await new Promise(() => {})"}\n'
    command = ["node", "--input-type=module", "-e", DRIVEN]
    done = subprocess.run(command, input=line, capture_output=True, text=True, cwd=HERE, timeout=60)
    assert done.stdout == "closed\n", done.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "the parent"])
def test_the_benchmark_ends_its_browser(how: signal.Signals | str, tmp_path: Path) -> None:
    """The browser is a program that sleeps; its number is in a file."""
    need()
    number, browser = tmp_path / "number", tmp_path / "browser"
    browser.write_text(
        f"#!/bin/sh\necho $$ > {number}.new; mv {number}.new {number}; exec sleep 300\n"
    )
    browser.chmod(0o755)
    (tmp_path / "profiles").mkdir()
    env = {**os.environ, "CHROMIUM": str(browser), "TMPDIR": str(tmp_path / "profiles")}
    shell = f"node {RUN} weft none float16 wasm & echo $!; wait"
    parent = subprocess.Popen(["sh", "-c", shell], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    node = int(parent.stdout.readline())
    until(number.exists)
    pid = int(number.read_text())
    if isinstance(how, str):
        parent.kill()
    else:
        os.kill(node, how)
    until(lambda: not Path(f"/proc/{pid}/exe").exists() and not any(tmp_path.glob("profiles/*")))
    parent.wait(60)
