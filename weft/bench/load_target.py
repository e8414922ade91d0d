"""Servers that are measured: started here and ended here, or running already."""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.bench.load_client import place_of
from weft.core.errors import DeviceError

START_SECONDS = 600.0
_STOP_SECONDS = 60.0


@dataclass
class Target:
    """A server and its name in the results. `process` is set if it was started here; `start_s` is
    the number of seconds until it reported health."""

    name: str
    url: str
    process: subprocess.Popen[bytes] | None = None
    start_s: float = 0.0

    def rss_mib(self, peak: bool = False) -> float | None:
        """Resident memory of its processes now, or the most each had, in MiB; None where it was
        not started here."""
        if self.process is None:
            return None
        key = "VmHWM:" if peak else "VmRSS:"
        kib = sum(_status(pid, key) for pid in _tree(self.process.pid))
        return round(kib / 1024, 1)


@contextlib.contextmanager
def started(name: str, command: str) -> Iterator[Target]:
    """A server until the block ends. `command` is split as a shell would; {port} in it becomes a
    free port of this machine. Raises DeviceError where it ends or is not well in START_SECONDS."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [part.replace("{port}", str(port)) for part in shlex.split(command)]
    with tempfile.TemporaryFile() as log:
        begun = time.perf_counter()
        try:
            process = subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        except OSError as e:
            raise DeviceError(f"{name}: cannot start {line[0]!r}: {e.strerror}") from None
        try:
            url = f"http://127.0.0.1:{port}"
            while not well(url):
                log.seek(0)
                late = time.perf_counter() - begun > START_SECONDS
                if late or process.poll() is not None:
                    said = log.read().decode(errors="replace").strip()[-300:]
                    how = f"ended with {process.returncode}" if not late else "does not answer"
                    raise DeviceError(f"{name} {how}: {said}")
                time.sleep(0.02)
            yield Target(name, url, process, round(time.perf_counter() - begun, 3))
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def well(url: str) -> bool:
    """True if GET /health answers with 200."""
    connection = http.client.HTTPConnection(*place_of(url), timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _status(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1])
    return 0


def _tree(pid: int) -> list[int]:
    """A process and those below it (Linux)."""
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            below = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
            found += [p for child in below for p in _tree(int(child))]
    return found
