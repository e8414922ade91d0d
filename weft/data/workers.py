"""Worker processes of a loader: forks of this one, which load batches by their numbers and send
them back through a pipe. A fork has the data set already, so nothing is pickled."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import UsageError, WorkerError
from weft.data.collate import decoded, encoded
from weft.tensor.random import manual_seed

Load = Callable[[list[Any]], Any]


class WorkerInfo(NamedTuple):
    """A worker's number among those of its loader, the seed from which the random numbers of
    batches follow, and the data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_this: list[WorkerInfo] = []  # in a worker, what it is


def get_worker_info() -> WorkerInfo | None:
    """Returns what a worker of a loader is (`id`, `num_workers`, `seed`, `dataset`); None in the
    process of the loader.

    >>> data.get_worker_info() is None
    True
    """
    return _this[0] if _this else None


_FAILED = (1 << 64) - 1  # in place of a header's length: a text follows
_LONG = struct.Struct("<Q")


class Worker:
    """One process. Batches come back in the order in which they were asked for."""

    def __init__(self, info: WorkerInfo, load: Load, init: Any, others: list[Worker]) -> None:
        if not hasattr(os, "fork"):
            raise UsageError("num_workers: this system cannot fork; set num_workers=0")
        self.number = info.id
        ask_read, self._ask = os.pipe()
        self._answer, answer_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
                for fd in (self._ask, self._answer, *(f for o in others for f in o._open())):
                    os.close(fd)
                _this[:] = [info]
                _serve(ask_read, answer_write, info, load, init)
                status = 0
            finally:
                os._exit(status)
        os.close(ask_read)
        os.close(answer_write)

    def _open(self) -> tuple[int, ...]:
        return (self._ask, self._answer)

    def ask(self, batch: int, indices: list[Any]) -> None:
        """Has the worker load a batch."""
        body = b"".join(encoded([batch, indices]))
        try:
            _write(self._ask, _LONG.pack(len(body)) + body)
        except BrokenPipeError:
            raise self._lost(batch) from None

    def answer(self, batch: int, timeout: float) -> Any:
        """The oldest batch that was asked for. Raises WorkerError if its loading failed, if the
        worker is gone, or after `timeout` seconds (0: none)."""
        self._until = time.monotonic() + timeout if timeout else None

        def read(count: int) -> bytearray:
            return self._read(count, batch)

        (size,) = _LONG.unpack(read(8))
        if size == _FAILED:
            (size,) = _LONG.unpack(read(8))
            raise WorkerError(f"data worker {self.number}, batch {batch}: {read(size).decode()}")
        return decoded(bytes(read(size)), read)

    def _read(self, count: int, batch: int) -> bytearray:
        whole = bytearray(count)
        view, at = memoryview(whole), 0
        while at < count:
            if self._until is not None:
                left = max(self._until - time.monotonic(), 0.0)
                if not select.select([self._answer], [], [], left)[0]:
                    raise WorkerError(
                        f"data worker {self.number} did not finish batch {batch} in time; "
                        "set a longer timeout"
                    )
            got = os.readv(self._answer, [view[at:]])
            if not got:
                raise self._lost(batch)
            at += got
        return whole

    def _lost(self, batch: int) -> WorkerError:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"gone with status {code}"
        return WorkerError(
            f"data worker {self.number} was {how} while it loaded batch {batch}; if memory was "
            "short, use fewer workers"
        )

    def close(self) -> None:
        """Ends the process, whatever it does."""
        for fd in self._open():
            os.close(fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _write(fd: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _serve(ask: int, answer: int, info: WorkerInfo, load: Load, init: Any) -> None:
    """The worker's life: until the parent closes the pipe, or is gone."""
    failed = None
    try:
        if init is not None:
            init(info.id)
    except BaseException as error:
        failed = _text(error)
    with os.fdopen(ask, "rb") as asked:
        while len(asked.read(8)) == 8:
            (head,) = _LONG.unpack(asked.read(8))
            batch, indices = decoded(asked.read(head), asked.read)
            _seed(info.seed, batch)
            try:
                for part in failed or _loaded(load, indices):
                    _write(answer, part)
            except BrokenPipeError:
                return


def _loaded(load: Load, indices: Any) -> list[Any]:
    try:
        return encoded(load(indices))
    except BaseException as error:
        return _text(error)


def _text(error: BaseException) -> list[Any]:
    """An error in the place of a batch."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})".encode()
    return [_LONG.pack(_FAILED), _LONG.pack(len(text)), text]


def _seed(seed: int, batch: int) -> None:
    """Random numbers of a batch depend on its number, not on who loads it."""
    mixed = (seed * 1_000_003 + batch) & 0x7FFFFFFF
    manual_seed(mixed)
    random.seed(mixed)
    np.random.seed(mixed)
