"""The progress bar for fetching and checking files, on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from weft.core.errors import HubError


class Bar:
    """A progress bar on stderr if that is a terminal, else nothing; shown from the first `show`
    on."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, what: str, total: int) -> None:
        """Starts a new line: `what`, with `total` bytes to go."""
        if not sys.stderr.isatty():
            return
        if self._progress is None:
            self._progress = _progress()
            self._progress.start()
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total)

    def step(self, nbytes: int) -> None:
        if self._progress is not None:
            self._progress.advance(self._task, nbytes)

    def counter(self, what: str, limit: int) -> type:
        """Returns a replacement for tqdm, with which huggingface_hub counts a file's bytes. It
        raises HubError for more than `limit` bytes."""
        bar = self

        class Counter:
            def __init__(self, *_: Any, **__: Any) -> None:
                self._left = limit

            def update(self, n: float | None = 1) -> None:
                self._left -= int(n or 0)
                if self._left < 0:
                    raise HubError(
                        f"{what}: the hub sends more than the {limit} bytes that it lists"
                    )
                bar.step(int(n or 0))

            def __enter__(self) -> Counter:
                return self

            def __exit__(self, *_: object) -> None: ...

            def __getattr__(self, name: str) -> Any:
                return lambda *_, **__: None  # tqdm's other methods only affect its own bar

        return Counter


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(),
        DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), transient=True)
