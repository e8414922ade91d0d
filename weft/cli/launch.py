"""`weft launch`."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from weft.core.errors import UsageError
from weft.ranks.join import mpiexec

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}(:[1-9][0-9]{0,3})?")
FINAL = (0, 1, 2, 130)  # statuses of a command that ended by itself: another start would end so too
GRACE = 5.0  # seconds for the launcher to end once a rank has gone silent


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Example:  weft launch -n 4 train config.toml
          weft launch -n 4 --hosts red:2,blue:2 --restarts 3 train config.toml
          weft launch -n 2 run MODEL 'Once upon a time'
          weft launch -n 2 serve MODEL --parallel columns
""",
)
@click.option("-n", "--ranks", "count", type=click.IntRange(1, 4096), required=True,
              help="Number of ranks (processes).")  # fmt: skip
@click.option("--hosts", help="Machines with their number of ranks, like red:2,blue:2. Reached by "
              "ssh; weft must be installed at the same path on each.")  # fmt: skip
@click.option("--restarts", type=click.IntRange(0, 1000), default=0, show_default=True,
              help="Restart this many times if a rank or a machine fails. Training resumes from "
              "its last checkpoint.")  # fmt: skip
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(count: int, hosts: str | None, restarts: int, words: tuple[str, ...]) -> int:
    """Run a weft COMMAND as several processes (ranks) that share its work. train divides each
    batch; run and serve divide a model by layers or columns. The result has the same bits as with
    one process. Needs mpiexec: in weft's clone, pip install '.[mpi]'."""
    where = _checked(hosts)
    line = [str(mpiexec()), "-n", str(count)]
    line += ["-hosts", ",".join(where)] if where else []
    env = environment(count, max(len(where), 1), os.environ)
    for again in range(restarts + 1):
        more = _onwards(words) if again else []
        status = _play([*line, sys.executable, "-m", "weft", *words, *more], env)
        if status in FINAL or again == restarts:
            return status
        _say(f"a rank was lost (status {status}); starting again, {again + 1} of {restarts}")
    raise AssertionError("the loop returns")


def environment(count: int, hosts: int, given: Mapping[str, str]) -> dict[str, str]:
    """`given`, with the cores of a machine divided among its ranks unless it says how."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    each = max((cores or 1) // math.ceil(count / hosts), 1)
    return {"WEFT_NUM_THREADS": str(each), **given}


def _checked(hosts: str | None) -> list[str]:
    found = hosts.split(",") if hosts else []
    for host in found:
        if not _HOST.fullmatch(host):
            raise UsageError(f"--hosts: {host[:60]!r} is neither a machine's name nor NAME:RANKS")
    return found


def _onwards(words: Sequence[str]) -> list[str]:
    """The options that make a command continue its earlier run."""
    from weft.cli.train import train
    from weft.training.checkpoints import found
    from weft.training.settings import read_settings

    if words[0] != "train" or "--resume" in words:
        return []
    given = train.make_context("train", list(words[1:]), resilient_parsing=True).params
    saved = found(Path(read_settings(given["config"]).output.folder))
    return ["--resume"] if saved else []


def _play(line: Sequence[str], env: Mapping[str, str]) -> int:
    """Runs MPI's launcher; its exit status. Ctrl-C and SIGTERM reach the ranks as
    Ctrl-C, so that training saves. Where a
    rank says that another is silent, the launcher may wait for a machine that is no longer there:
    it gets some seconds."""
    process = subprocess.Popen(line, env=env, stderr=subprocess.PIPE)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
    silent = threading.Event()
    reader = threading.Thread(target=_pass_on, args=(process, silent), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            if silent.is_set():
                return _ended(process)
            silent.wait(0.1)
        reader.join(GRACE)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, ended)


def _pass_on(process: subprocess.Popen[bytes], silent: threading.Event) -> None:
    """Hands stderr through, looking for the message about a silent rank."""
    from weft.ranks.base import SILENT

    assert process.stderr is not None
    for text in process.stderr:
        sys.stderr.write(text.decode("utf-8", "replace"))
        sys.stderr.flush()
        if SILENT.encode() in text:
            silent.set()


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Waits for the launcher to end by itself, then ends it."""
    from weft.ranks.base import LOST

    for end in (None, process.terminate, process.kill):
        if end is not None:
            end()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
        break
    return LOST


def _say(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr, flush=True)
