"""The operations of a rank, and the rank that is alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

import numpy as np

from weft.core.errors import RankError, UsageError
from weft.core.notices import tell

LOST = 75  # exit status of a rank that cannot go on without the others (EX_TEMPFAIL): try again
# part of the message about such a rank, by which weft launch recognises it
SILENT = "said nothing for"


class Pending(Protocol):
    """A message under way."""

    def wait(self, seconds: float | None = None) -> None:
        """Returns when the array may be written again. Raises RankError."""


class Ranks:
    """Processes numbered 0 to `size` - 1, of which this is `rank`. This class holds what all kinds
    share; arrays are C-ordered and on the host."""

    rank: int = 0
    size: int = 1
    beside: int = 1  # ranks on this one's machine, itself among them
    torn: bool = False  # within what takes all ranks: an error there is the end of every one
    seconds: float = 0.0  # spent waiting for others, so far
    moved: int = 0  # bytes sent to others, so far

    def name(self, rank: int) -> str:
        """The name of a rank in messages."""
        return f"rank {rank}"

    def watch(self) -> None:
        """Watches the other ranks from here on: one that is silent for WEFT_PATIENCE seconds (20)
        is lost. A call that waits raises RankError; a process that does not wait within a few
        seconds more leaves."""

    def send(
        self, array: np.ndarray, to: int, tag: int = 0, seconds: float | None = None
    ) -> None:  # fmt: skip
        """Sends an array, which may be written again afterwards. `tag`: 0 to 32,767."""
        self.start_send(array, to, tag).wait(seconds)

    def start_send(self, array: np.ndarray, to: int, tag: int = 0) -> Pending:
        """Begins to send an array, which stays as it is until `wait` returns."""
        raise UsageError(f"rank {to} is not there: this process is alone")

    def receive(
        self, source: int, tag: int = 0, most: int = 1 << 31, seconds: float | None = None
    ) -> np.ndarray:
        """The next array that `source` sent with this tag, of at most `most` bytes. Raises
        RankError for a frame that is larger or malformed."""
        raise UsageError(f"rank {source} is not there: this process is alone")

    def broadcast(
        self, array: np.ndarray, root: int = 0, seconds: float | None = None
    ) -> np.ndarray:
        """Fills `array` with what it holds on `root`; returns it. The same shape and dtype on
        every rank."""
        return array

    def gather(
        self, part: np.ndarray, sizes: Sequence[int], seconds: float | None = None
    ) -> np.ndarray:
        """The parts of all ranks (flat, rank r's has sizes[r] elements) one after another, on
        every rank."""
        return part.reshape(-1).copy()

    def exchange(
        self, parts: Sequence[np.ndarray], sizes: Sequence[int], seconds: float | None = None
    ) -> list[np.ndarray]:
        """Gives parts[r] (flat, all of one dtype) to each rank r; returns what each rank had for
        this one, sizes[r] elements from rank r."""
        return [parts[0].reshape(-1).copy()]

    def barrier(self, seconds: float | None = None) -> None:
        """Returns once every rank has come here."""

    def finish(self) -> None:
        """Ends what all ranks did together; all call it, and nothing else afterwards."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context for an operation of all ranks: an error inside ends all of them. Raises
        RankError after an earlier one."""
        if self.torn:
            raise RankError("the ranks lost one another in an earlier step; start them again")
        self.torn = True
        yield
        self.torn = False

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """An error inside is shown, and this process leaves, where the others cannot know of it."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self.size == 1 or not (self.rank or self.torn):
                raise
            what = str(error) or type(error).__name__
            tell(f"weft: {self.name(self.rank)}: {what}")
            stopped = isinstance(error, KeyboardInterrupt)
            self.leave(LOST if isinstance(error, RankError) else 130 if stopped else 1)

    def leave(self, status: int) -> NoReturn:
        """Ends this process at once; a launcher then ends the others."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class SingleRank(Ranks):
    """The only rank."""
