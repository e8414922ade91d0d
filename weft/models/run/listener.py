"""One sound while it is transcribed: options, passages, segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

import numpy as np

from weft.audio.voice import Span
from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.models.run.hearing import Work
from weft.models.run.speech_rules import TASKS
from weft.models.run.transcript import Segment

if TYPE_CHECKING:
    from weft.models.run.transcriber import Transcriber

HEAT = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Listening:
    """The options of `Transcriber.transcribe`."""

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    words: bool = False
    temperature: float | Sequence[float] = HEAT
    compression_ratio_threshold: float | None = 1.35
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous: bool = False
    batch: int | None = None
    vad: bool = False
    prompt: str | None = None
    max_new_tokens: int | None = None
    seed: int = 0

    def checked(self) -> Listening:
        """Returns the options. Raises UsageError for impossible ones."""
        if self.task not in TASKS:
            raise UsageError(f"task is {self.task!r:.40}; expected {' or '.join(TASKS)}")
        heat = self.heat
        if not heat or not all(isinstance(t, int | float) and 0 <= t <= 2 for t in heat):
            raise UsageError(f"temperature is {self.temperature!r:.60}; expected 0 to 2")
        if self.batch is not None and not 1 <= self.batch <= 64:
            raise UsageError(f"batch is {self.batch!r}; expected 1 to 64 passages at once")
        if self.condition_on_previous and self.apart:
            raise UsageError(
                "condition_on_previous reads the text so far; passages at once (batch, vad) have "
                "none: leave one out"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}; expected 1 or more")
        return self

    def only(self, taken: Sequence[str], family: str) -> Listening:
        """Returns the options. Raises UsageError for one that a family does not take."""
        for field in fields(self):
            if field.name not in taken and getattr(self, field.name) != field.default:
                raise UsageError(
                    f"{family} does not take {field.name} = {getattr(self, field.name)!r:.60}; it "
                    f"takes {', '.join(taken)}"
                )
        return self

    @property
    def apart(self) -> bool:
        """True if the sound is cut into passages that know nothing of each other."""
        return self.batch is not None or self.vad

    @property
    def heat(self) -> tuple[float, ...]:
        t = self.temperature
        return (t,) if isinstance(t, int | float) else tuple(t)


class KeptSound(Protocol):
    """A whole sound in a form that a model hears; `levels` are decibels, float32 [frames]."""

    levels: np.ndarray
    frames: int

    @property
    def duration(self) -> float:
        """Seconds."""

    def close(self) -> None:
        """Lets it go."""


class Listener:
    """One sound while it is transcribed: iterate over its segments, which come in order.

    `ready` are those that wait to be taken, `done` says that no further one will come, and `error`
    why not. `language` is known when the first segment comes. `show` is called with the text of a
    window after each token; the window may still be tried again at another temperature. `spans` are
    the passages, in frames of `kept`."""

    def __init__(
        self, model: Transcriber, kept: KeptSound, o: Listening, spans: Sequence[Span]
    ) -> None:
        self.model, self.kept, self.o, self.duration = model, kept, o, kept.duration
        self.language: str | None = None
        self.ready: deque[Segment] = deque()
        self.error: Exception | None = None
        self.show: Callable[[str], None] | None = None
        self.spans = spans
        self.done = not spans
        self._begun = self._told = 0  # passages
        self._held: dict[int, deque[Segment]] = {}  # by passage, until its turn
        self._over: set[int] = set()

    def passage(self, start: int, end: int) -> Work:
        """Yields the steps of the model for a passage, and its segments."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """False while only the first passage may be heard."""
        return True

    def __iter__(self) -> Iterator[Segment]:
        hearing = self.model.hearing
        hearing.add(self)
        try:
            while True:
                while self.ready:
                    yield self.ready.popleft()
                if self.error is not None:
                    raise self.error
                if self.done:
                    return
                hearing.turn()
        finally:
            hearing.remove(self)
            self.close()

    def close(self) -> None:
        """Lets the sound go."""
        self.kept.close()

    # -- as a source of work ----------------------------------------------------------------------

    def work(self) -> tuple[int, Work] | None:
        """Returns the next passage that may begin."""
        at, together = self._begun, self._begun - len(self._over)
        waits = together > 0 and (not self.settled or together >= (self.o.batch or 1))
        if self.error or waits or at >= len(self.spans):
            return None
        self._begun += 1
        return at, self.passage(*self.spans[at])

    def came(self, number: int, segment: Segment) -> None:
        """Takes a segment of a passage."""
        self._held.setdefault(number, deque()).append(segment)
        self._tell()

    def ended(self, number: int, error: Exception | None) -> None:
        """Notes that a passage has ended."""
        self.error = self.error or error
        self._over.add(number)
        self._tell()

    def _tell(self) -> None:
        while True:
            self.ready.extend(self._held.pop(self._told, ()))
            if self._told not in self._over:
                break
            self._told += 1
        self.done = self.error is not None or self._told == len(self.spans)
