"""Strangers' programs in a process of their own, with ends to its time, memory and answers.

A chat template and the patterns of a tokenizer are programs; neither library that runs them counts
what they do. The child runs Python without site, environment or other files of its parent, answers
JSON over a pipe, and ends when the pipe does. Its parent kills it when the time is up. Memory is
limited where the system can (Linux's RLIMIT_AS); elsewhere only time and the answer's size are.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.host import confined_main
from weft.host.confined_main import REPLY, REQUEST
from weft.host.forks import lock_of

if TYPE_CHECKING:
    import subprocess

START_SECONDS = 60.0  # time for Python to start on a busy machine
_KEPT = (
    "DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "RAYON_NUM_THREADS", "SYSTEMROOT",
    "TOKENIZERS_PARALLELISM", "TZ",
)  # fmt: skip


class Stopped(Exception):
    """A child that did not answer; `str` says why: "ran for more than 10 s"."""


class ChildError(Exception):
    """An error that the child reported in one line, while staying usable itself."""


@dataclass(frozen=True)
class Limits:
    """The limits of one request.

    seconds: wall time.
    memory: bytes beyond what the child needed to start and eight per byte of the request.
    reply: bytes of the reply.
    """

    seconds: float
    memory: int
    reply: int


class Confined:
    """A child that runs `worker`, a file with `handle(request) -> value` that may import the named
    `packages`. It starts with the first call, or the first after it had to be stopped, and is then
    sent `setup`. Any thread may call; a forked process gets a child of its own."""

    def __init__(
        self, worker: Path, packages: Sequence[str], setup: Mapping[str, Any], limits: Limits
    ) -> None:
        self._worker, self._packages = str(worker), packages
        self._setup, self._limits = setup, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = lock_of(self)
        self._made: Any = None
        _all.add(self)

    def start(self) -> Any:
        """The worker's answer to `setup`, starting the child if there is none."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()
            if self._process is None:
                self._launch()
                try:
                    self._made = self._exchange(self._setup, self._limits)
                except BaseException:
                    self.close()
                    raise
            return self._made

    def call(self, request: Mapping[str, Any], limits: Limits) -> Any:
        """The worker's answer. Raises Stopped or Failed; ValueError, TypeError or RecursionError
        for a request that JSON cannot hold."""
        with self._lock:
            self.start()
            return self._exchange(request, limits)

    def interrupt(self) -> None:
        """Ends the child during a call, which then raises Stopped in its own thread."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the child, if there is one."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._process = self._finalizer = None

    def forget(self) -> None:
        """Releases, in a forked process, the parent's child, which must see its pipe end."""
        process, self._process, self._finalizer = self._process, None, None
        if process is not None:
            _close_pipes(process)

    def _launch(self) -> None:
        import subprocess  # imported here, since most programs need no child

        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env["MALLOC_ARENA_MAX"] = (
            "4"  # each thread takes 64 MiB of address space, which the limit counts
        )
        flags = ["-I", "-S", "-X", "utf8"]
        command = [sys.executable or "python", *flags, confined_main.__file__, self._worker]
        command += _folders(self._packages)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=env, bufsize=0,
            )  # fmt: skip
        except OSError as e:
            raise Stopped(f"needs a process of its own, which did not start: {e}") from None
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process, os.getpid())
        self._guarded(process, None, Limits(START_SECONDS, 0, 0))

    def _exchange(self, request: Mapping[str, Any], limits: Limits) -> Any:
        data = json.dumps(request).encode()
        assert self._process is not None
        answer = json.loads(self._guarded(self._process, data, limits))
        if "value" in answer:
            return answer["value"]
        if "memory" in answer:
            self.close()
            raise Stopped(_too_much(limits))
        raise ChildError(answer["error"])

    def _guarded(
        self, process: subprocess.Popen[bytes], data: bytes | None, limits: Limits
    ) -> bytes:
        """Sends `data`, if any, and returns the reply. Any failure half-way ends the child."""
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limits.seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            if data is not None:
                memory = limits.memory + 8 * len(data)
                _write(process, REQUEST.pack(len(data), memory, limits.seconds) + data)
            (size,) = REPLY.unpack(_read(process, REPLY.size))
            if size > limits.reply:
                raise Stopped(f"wrote more than {limits.reply >> 20} MiB")
            return _read(process, size)
        except (OSError, EOFError):
            code = process.wait()
            alarm = -getattr(signal, "SIGALRM", 0)
            self.close()
            if late.is_set() or code == alarm:
                raise Stopped(f"ran for more than {limits.seconds:g} s") from None
            raise Stopped(f"crashed (status {code}) or {_too_much(limits)}") from None
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()


_all: weakref.WeakSet[Confined] = weakref.WeakSet()


def _forget_all() -> None:
    for confined in list(_all):
        confined.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _folders(packages: Sequence[str]) -> list[str]:
    """Returns the folders that contain the packages, each once. Raises ImportError."""
    found = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"No module named {name!r}")
        found.append(str(Path(spec.origin).resolve().parent.parent))
    return list(dict.fromkeys(found))


def _too_much(limits: Limits) -> str:
    return f"took more than {limits.memory >> 20} MiB of memory"


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    left = memoryview(data)
    while left:
        left = left[process.stdin.write(left) or 0 :]


def _read(process: subprocess.Popen[bytes], size: int) -> bytes:
    assert process.stdout is not None
    parts = []
    while size:
        part = process.stdout.read(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _end(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() == parent:
        process.kill()
        process.wait()
        _close_pipes(process)
