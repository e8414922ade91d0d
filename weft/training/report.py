"""The reports of a run: a progress bar, a log of JSON lines, a picture at the end."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, UsageError
from weft.core.install import how
from weft.core.notices import tell
from weft.host.files import naming, write_bytes, write_text
from weft.host.progress import line_taken
from weft.importers.hf_config import parse_json, read_bounded

MAX_LOG = 1 << 32  # bytes; a record takes about 150


class Log:
    """A log of JSON lines, each written out before the next. A resumed run drops the records after
    the step it resumes from. Writing raises StorageError."""

    def __init__(self, path: Path, start: int) -> None:
        kept = [r for r in read_log(path) if r["step"] <= start] if start else []
        write_text(path, "".join(json.dumps(r) + "\n" for r in kept))
        self.path = path
        # unbuffered, so that closing does not retry a failed write.
        self._file = path.open("ab", buffering=0)

    def write(self, **record: Any) -> None:
        """Writes one record."""
        line = memoryview((json.dumps(record) + "\n").encode())
        with naming(self.path):
            while line:
                line = line[self._file.write(line) :]

    def sync(self) -> None:
        """Waits until the log is on disk."""
        with naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a log, each with its "step"; [] without a log. Ignores a truncated
    last line. Raises FileFormatError."""
    if not path.exists():
        return []
    lines = read_bounded(path, MAX_LOG).splitlines()
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line, f"{path}: line {number}")
        except FileFormatError as error:
            if number == len(lines):
                break
            raise FileFormatError(f"{error}; remove or repair the file") from None
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            raise FileFormatError(
                f"{path}: line {number} is not a record of a step; remove or repair the file"
            )
        records.append(record)
    return records


class Best:
    """The lowest held-out loss so far, starting from a log's records. `enough` is True once
    `patience` evaluations in a row (0: never) were not lower."""

    def __init__(self, records: list[dict[str, Any]], patience: int) -> None:
        self.step, self.loss, self._since, self._patience = -1, math.inf, 0, patience
        for step, loss in _points(records, "eval_loss"):
            self.take(step, loss)

    def take(self, step: int, loss: float) -> bool:
        """Records an evaluation. Returns True if its loss is the lowest."""
        if loss < self.loss:
            self.step, self.loss, self._since = step, loss, 0
            return True
        self._since += 1
        return False

    @property
    def enough(self) -> bool:
        return 0 < self._patience <= self._since


class Display:
    """A progress bar if stderr is a terminal; otherwise only notices."""

    def __init__(self, steps: int, done: int) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._shown = ExitStack()
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}"), BarColumn(None),
                TextColumn("{task.description}"), TimeRemainingColumn(),
                console=_console(), expand=True,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=steps, completed=done)

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._shown.enter_context(self._bar)
            self._shown.enter_context(line_taken())
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.close()

    def step(self, number: int, facts: Mapping[str, float]) -> None:
        """Shows that a step is done."""
        if self._bar is not None:
            speed = f"{facts['tokens_per_s']:,.0f} tok/s"
            text = f"loss {facts['loss']:.3f}  lr {facts['lr']:.1e}  {speed}"
            self._bar.update(self._task, completed=number, description=text)

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            tell(text)


def _console() -> Any:
    """Returns a console on stderr, a few columns narrower. A terminal writes "^C" to the right of
    the bar, and a line that wraps is never erased."""
    from rich.console import Console, ConsoleDimensions

    class Narrow(Console):
        # read-only here.
        @property  # type: ignore[misc]  # ours is only read
        def size(self) -> ConsoleDimensions:
            whole = super().size
            return ConsoleDimensions(max(whole.width - len("^C^C"), 20), whole.height)

    return Narrow(stderr=True)


def draw_curve(records: list[dict[str, Any]], path: Path, title: str = "") -> None:
    """Draws a PNG of the training loss by step, with evaluations if any. Raises UsageError without
    matplotlib."""
    figure = new_figure("the loss curve (the log has its numbers)", "train")
    axes = figure.subplots()
    steps, held = _points(records, "loss"), _points(records, "eval_loss")
    if steps:
        axes.plot(*zip(*steps), color="#8fb8de", lw=0.8, label="training")
        axes.plot(*zip(*_smooth(steps)), color="#1f5f99", lw=1.6, label="training, smoothed")
    if held:
        axes.plot(*zip(*held), color="#c0392b", lw=1.6, marker="o", ms=3, label="held-out text")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(figure, path)


def new_figure(what: str, extra: str, width: float = 8.0, height: float = 4.5) -> Any:
    """Returns an empty figure; width and height in inches. Raises UsageError without matplotlib,
    which weft's `extra` installs."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"{what} needs matplotlib: {how(extra)}") from None
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Writes the figure, as SVG if `path` ends in .svg, else as PNG. Raises StorageError."""
    picture = io.BytesIO()
    figure.savefig(picture, format="svg" if path.suffix == ".svg" else "png")
    write_bytes(path, picture.getvalue())


def _points(records: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Returns (step, value) of the records that have a number."""
    return [(r["step"], r[name]) for r in records if type(r.get(name)) in (int, float)]


def _smooth(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns the mean of each point and its neighbours, 1% of the run on either side."""
    reach, out = len(points) // 100, []
    for i, (step, _) in enumerate(points):
        near = [loss for _, loss in points[max(i - reach, 0) : i + reach + 1]]
        out.append((step, sum(near) / len(near)))
    return out


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Makes Ctrl-C and SIGTERM append True to the list instead of ending the program; a second one
    raises KeyboardInterrupt. Signals ignored at the start (background, nohup) stay ignored. Does
    nothing outside the main thread."""
    import signal
    import threading

    asked: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    before = {s: handler for s, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
