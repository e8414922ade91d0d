"""The emulator as a process that shares its memory with us, and is ordered about by two pipes."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from weft.backends.emulated.machines import Machine
from weft.core.errors import DeviceError


class Process:
    """One guest. `memory` is what it sees at guest.BASE, as bytes; the first eight are the number
    of the step that runs."""

    def __init__(self, machine: Machine, program: bytes) -> None:
        self.machine = machine
        self.lost = ""  # the reason why it ended
        self._owner = os.getpid()
        if not hasattr(os, "memfd_create"):
            raise DeviceError(f"{machine.name}: memory is shared with the emulator on Linux only")
        file = os.memfd_create(f"weft {machine.name}")
        try:
            os.ftruncate(file, machine.memory)
            self._map = mmap.mmap(file, machine.memory)
            self.memory = np.frombuffer(self._map, np.uint8)
            self._start(program, file)
        finally:
            os.close(file)

    def _start(self, program: bytes, file: int) -> None:
        self._said = tempfile.TemporaryFile(prefix="weft-")  # noqa: SIM115 (open until the end)
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = Path(folder) / "guest"
            path.write_bytes(program)
            path.chmod(0o700)
            command = [*self.machine.qemu, str(path)]
            try:
                self._process = subprocess.Popen(
                    command, bufsize=0, pass_fds=(file,), stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=self._said,
                )  # fmt: skip
            except OSError as error:
                raise DeviceError(f"{command[0]} does not start: {error.strerror}") from None
            self._wait(lambda: "it started")
            self.play(file, self.machine.memory, 0, 0, lambda: "it mapped its memory")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ours(self) -> bool:
        """True if this process started it, not the parent that it was forked from."""
        return self._owner == os.getpid()

    def check(self) -> None:
        """Raises DeviceError when the process is gone."""
        if not self.ours:
            raise DeviceError(f"{self.machine.name} belongs to the process this one is a fork of")
        if self.lost:
            raise DeviceError(f"{self.machine.name} is gone ({self.lost}); open it again")

    def play(
        self, table: int, steps: int, scalars: int, scratch: int, doing: Callable[[], str]
    ) -> None:
        """Orders the steps and waits until they are done; `doing` says what, for errors. Raises
        DeviceError when the process has ended, or ends."""
        self.check()
        order = struct.pack(f"{self.machine.order}4q", table, steps, scalars, scratch)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order)
        except OSError:
            raise self._ended(doing) from None
        self._wait(doing)

    def _wait(self, doing: Callable[[], str]) -> None:
        assert self._process.stdout is not None
        try:
            answer = self._process.stdout.read(1)
        except BaseException:  # interrupted: later replies would belong to another order
            self.lost = "interrupted"
            self._process.kill()
            raise
        if not answer:
            raise self._ended(doing)

    def running(self) -> int:
        """The number of the step that ran last."""
        (number,) = struct.unpack_from(f"{self.machine.order}q", self._map)
        return int(number)

    def _ended(self, doing: Callable[[], str]) -> DeviceError:
        code = self._process.wait()
        why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self._said.seek(0)
        text = self._said.read(4000).decode(errors="replace").strip().splitlines()
        said = f": {text[0]}" if text else ""
        self.lost = f"{self.machine.qemu[0]} ended ({why}{said}) while {doing()}"
        return DeviceError(f"{self.machine.name}: {self.lost}")

    def close(self) -> None:
        """Ends the process; its memory stays readable while a reference to it remains."""
        self.lost = self.lost or "closed"
        if not self.ours:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def forget(self, start: int, nbytes: int) -> None:
        """Gives whole pages back to the system."""
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, (start + nbytes) // page * page
        if last > first:
            self._map.madvise(mmap.MADV_REMOVE, first, last - first)
