"""Ctrl-C at any moment of a command ends it with status 130, or it has succeeded: no traceback, no
error that is not one. A test sends the signal at a given moment; whatever that moment meets, the
verdict is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rows import few

from weft.cli import start

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")

AT_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
left, found = int(sys.argv.pop(1)), []

class Finder:  # is asked about each module before it is imported
    def find_spec(self, name, path=None, target=None):
        found.append(name)
        if len(found) == left:
            os.kill(os.getpid(), signal.SIGINT)

from weft.cli.start import main
sys.meta_path.insert(0, Finder())
main()
"""
AFTER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "weft.cli.main":  # the first thing that the command imports
            print("ready", flush=True)

from weft.cli.start import main
sys.meta_path.insert(0, Finder())
main()
"""


def fine(status: int | None, out: str, said: str) -> None:
    assert status in (0, start.INTERRUPTED), (status, said)
    assert "Traceback" not in said and "mistake" not in said and "ImportError" not in said
    if status:
        assert said in ("", "weft: interrupted\n")
    assert "KeyboardInterrupt" not in said + out


def at_import(number: int, *args: str) -> int:
    command = [sys.executable, "-c", AT_IMPORT, str(number), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    fine(done.returncode, done.stdout, done.stderr)
    return done.returncode


@pytest.mark.parametrize(
    "number", few([1, 2, 5, 15, 40, 80, 120, 160, 250, 300, 400], 1, 5, 40, 120, 250, 400)
)
def test_an_interrupt_within_an_import(number: int) -> None:
    status = at_import(number, "devices", "--json")
    assert status == start.INTERRUPTED or number > 200


@pytest.mark.slow  # a start of Python each
@pytest.mark.parametrize("args", [("devices",), ("explain", "box"), ("list",), ("--help",)])
def test_an_interrupt_within_any_import(args: tuple[str, ...]) -> None:
    for number in range(1, 700, 9):
        at_import(number, *args)


@pytest.mark.parametrize("part", few(range(6), 0, 2, 4))
def test_an_interrupt_some_time_after_the_start(part: int) -> None:
    for step in range(4):
        command = [sys.executable, "-c", AFTER, "devices"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        timer = threading.Timer((part * 4 + step) * 0.02, process.send_signal, [signal.SIGINT])
        timer.start()
        out, said = process.communicate(timeout=240)
        timer.join()
        fine(process.returncode, out, said)


LATE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Late:  # goes when Python has taken its own handlers of signals away
    def __del__(self, kill=os.kill, me=os.getpid(), which=signal.SIGINT):
        kill(me, which)

late = Late()
from weft.cli.start import main
main()
"""


def test_an_interrupt_when_the_command_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", LATE, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_nothing_is_raised_within_an_import(tmp_path: Path, monkeypatch: Any) -> None:
    """A module that makes another error of what is raised in it, as NumPy does."""
    (tmp_path / "touchy_module.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(10):\n"
        "        time.sleep(0.01)\n"
        "except BaseException as e:\n"
        "    raise ImportError('half a module') from None\n"
        "whole = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = signal.signal(signal.SIGINT, start.interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            import touchy_module

            while touchy_module.whole:  # until the signal comes again
                signal.sigtimedwait([], 0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sys.modules.pop("touchy_module").whole


def test_who_ignores_interrupts_is_left_alone() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from weft.cli.start import main\n"
        "os.kill(os.getpid(), signal.SIGINT); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout


def test_a_confined_child_does_not_mind(tmp_path: Path) -> None:
    """The terminal sends its Ctrl-C to the child too, which may still be importing."""
    from weft.host.confined import Confined, Limits

    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
        "def handle(request): return request\n"
    )
    confined = Confined(worker, [], {"a": 1}, Limits(30, 64 << 20, 1 << 20))
    assert confined.start() == {"a": 1}
    confined.close()
