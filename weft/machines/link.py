"""Commands from rank 0 to the following ranks, step by step.

A command is one int32 array: the word, then its numbers. A STEP has the numbers of model and
runner, the numbers still in use, slots and pages, the kind of step, n, and the inputs. Inputs are
int32 and small; every rank gets the same.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from weft.core.errors import RankError, UsageError
from weft.core.notices import tell
from weft.models.run.model import Decoder
from weft.models.run.runner import DECODE, PREFILL, ROWS, SCORE, Runner
from weft.ranks import Ranks
from weft.ranks.base import LOST, Pending

END, MEASURE, MEET, FIT, STEP = range(5)  # commands of rank 0
COMMAND, STREAM = 1, 2  # tags: commands, and rows of the residual stream
MOST = 1 << 26  # bytes of a command
GRACE = 3.0  # seconds to deliver final answers before this process exits
KINDS = (PREFILL, DECODE, SCORE)  # kinds of steps; others are ROWS with a number
NAMES = ("ids", "where", "last", "table")  # names of inputs; others are "at." with a number


@dataclass(frozen=True)
class StepCommand:
    """The content of a STEP command."""

    model: int
    runner: int
    slots: int
    pages: int
    kind: str
    n: int
    live: tuple[int, ...]
    inputs: Mapping[str, np.ndarray]


def written(step: StepCommand) -> np.ndarray:
    """Returns the command, int32 [any]."""
    kind = KINDS.index(step.kind) if step.kind in KINDS else -int(step.kind.removeprefix(ROWS))
    head = [STEP, step.model, step.runner, step.slots, step.pages, kind, step.n]
    head += [len(step.live), *step.live, len(step.inputs)]
    parts = []
    for name, value in step.inputs.items():
        code = NAMES.index(name) if name in NAMES else -int(name.removeprefix("at."))
        head += [code, value.ndim, *value.shape]
        parts.append(value.reshape(-1))
    return np.concatenate([np.array(head, np.int32), *parts])


def read(command: np.ndarray) -> StepCommand:
    """Returns the STEP in a command. Raises ValueError or IndexError if it is damaged."""
    numbers = iter(command[1:].tolist())
    model, runner, slots, pages, kind, n, count = itertools.islice(numbers, 7)
    live = tuple(itertools.islice(numbers, count))
    at, shapes = 9 + count, []
    for _ in range(command[at - 1]):
        code, axes = (int(v) for v in command[at : at + 2])
        shapes.append((code, tuple(command[at + 2 : at + 2 + axes].tolist())))
        at += 2 + axes
    inputs = {}
    for code, shape in shapes:
        size = math.prod(shape)
        name = NAMES[code] if code >= 0 else f"at.{-code}"
        inputs[name] = command[at : at + size].reshape(shape)
        at += size
    said = KINDS[kind] if kind >= 0 else f"{ROWS}{-kind}"
    return StepCommand(model, runner, slots, pages, said, n, live, inputs)


class Lead:
    """Rank 0's end of the link: one command at a time, from any thread."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._live: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()

    def enlist(self, what: object) -> int:
        """Returns a number by which the other ranks know a model or a runner, while it lives."""
        number = next(self._numbers)
        self._live[number] = what
        return number

    @contextmanager
    def steps(
        self, model: int, number: int, runner: Runner, kind: str
    ) -> Iterator[Callable[[Mapping[str, np.ndarray], int], None]]:
        """Wraps steps of all ranks. Yields a function of inputs and their number of rows, which
        begins a step at the other ranks and does not wait for them. After an error inside, this
        process exits soon, because the other ranks cannot learn of it."""
        said: list[Pending] = []

        def begin(rows: Mapping[str, np.ndarray], n: int) -> None:
            live = tuple(self._live)
            step = StepCommand(model, number, runner.slots, runner.pages, kind, n, live, rows)
            said.extend(self._start(written(step)))

        try:
            with self._lock, self.ranks.together():
                yield begin
                for each in said:
                    each.wait()
        except BaseException as error:
            threading.Timer(GRACE, self._leave, (error,)).start()
            raise

    def spread(self, x: np.ndarray) -> None:
        """Sends rows of the residual stream to all ranks."""
        sent = [self.ranks.start_send(x, r, STREAM) for r in range(1, self.ranks.size)]
        for each in sent:
            each.wait()

    @contextmanager
    def command(self, word: int, *numbers: int) -> Iterator[None]:
        """Wraps another collective operation."""
        with self._lock, self.ranks.together():
            self._say(np.array([word, *numbers], np.int32))
            yield

    def _say(self, command: np.ndarray) -> None:
        for each in self._start(command):
            each.wait()

    def _start(self, command: np.ndarray) -> list[Pending]:
        return [self.ranks.start_send(command, r, COMMAND) for r in range(1, self.ranks.size)]

    def _leave(self, error: BaseException) -> None:
        tell(f"weft: {error or type(error).__name__}; stopping")
        self.ranks.leave(LOST)


def next_command(ranks: Ranks) -> np.ndarray:
    """Returns rank 0's next command, int32. Raises RankError."""
    command = ranks.receive(0, COMMAND, MOST)
    if command.dtype != np.int32 or command.ndim != 1 or not len(command):
        raise RankError(f"{ranks.name(0)} sent no command; start the same version everywhere")
    return command


def whole(x: np.ndarray) -> np.ndarray:
    """Returns x as a contiguous array, which can be sent."""
    return np.ascontiguousarray(x)


def received(ranks: Ranks, source: int, n: int, width: int) -> np.ndarray:
    """Receives rows from another rank, float32 [n, width]. Raises RankError for anything else."""
    x = ranks.receive(source, STREAM, n * width * 4)
    if x.shape != (n, width) or x.dtype != np.float32:
        raise RankError(f"{ranks.name(source)} sent {x.dtype}{list(x.shape)}, not a step's rows")
    return x


class Leading(Runner):
    """Rank 0's Runner, whose steps are shared with the following ranks. They know the model by the
    number `number`."""

    def __init__(self, lead: Lead, number: int, model: Decoder, slots: int, pages: int) -> None:
        super().__init__(model.config, model.context, slots, pages)
        self._lead, self._numbers = lead, (number, lead.enlist(self))

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        raise UsageError("pages that lie on several machines are not read")

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        raise UsageError("pages that lie on several machines are not written")
