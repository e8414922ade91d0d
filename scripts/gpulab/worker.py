"""The other end of gpulab.serve: a contender in a process of its own, and results kept on disk."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def stop(process: subprocess.Popen[Any]) -> None:
    """Ends a process of ours and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


class Worker:
    """A contender. It starts at the first request, and again after it died or was too slow."""

    def __init__(
        self, module: str, args: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.command = [sys.executable, "-m", f"gpulab.{module}", *args]
        self.log = log
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()

    def _start(self) -> subprocess.Popen[str]:
        self.lines = queue.Queue()
        with self.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=self.env, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(process, self.lines), daemon=True).start()
        return process

    @staticmethod
    def _listen(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def ask(self, seconds: float, /, **message: Any) -> dict[str, Any]:
        """The answer, or {"error": why} when it takes longer than `seconds` or the process ends."""
        if self.process is None:
            self.process = self._start()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.close()
            return {"error": f"no answer within {seconds:.0f} s"}
        except OSError:
            line = None
        if line is None:
            self.close()
            return {"error": f"the process ended: {self._last()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            stop(self.process)
            self.process = None


def command(
    argv: Sequence[str], seconds: float, log: Path, env: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Exit status (None: it was cut off after `seconds`) and stdout of a command; stderr goes to
    the end of `log`."""
    with log.open("a", encoding="utf-8") as errors:
        errors.write(f"+ {' '.join(argv)}\n")
        errors.flush()
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            stop(process)
            out, _ = process.communicate()
            return None, out
        except BaseException:
            stop(process)
            raise
    return process.returncode, out


class NotHereError(Exception):
    """A part that this machine cannot run, and what it lacks."""


class Store:
    """results.json in a folder: read at the start, written whole after every change."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / "results.json"
        self.data: dict[str, Any] = {"parts": {}, "cases": {}, "machine": {}}
        with contextlib.suppress(OSError, ValueError):
            self.data |= json.loads(self.path.read_text(encoding="utf-8"))

    def save(self) -> None:
        """Replaces the file in one step."""
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)


class Clock:
    """The remaining seconds of a part."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)
