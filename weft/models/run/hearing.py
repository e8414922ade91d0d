"""Several sounds at once on one speech model: their tokens share the decoder's steps.

A piece of work is a generator. It asks for a step of the model (`Encode`, `Feed`) and goes on with
the result; the segments that it yields go to its source. Each work has a slot of the runner's state
for itself. A row's result has the same bits whatever else is in a step, so a transcript does not
depend on what is heard with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft.models.run.seq2seq_runner import STEPS, Heads
from weft.models.run.transcript import Segment


class Encode(NamedTuple):
    """Asks the encoder to read a sound: features float32 [frames, mels], or samples float32 [n].
    The result is what the encoder gives, valid until the next request."""

    sound: np.ndarray


class Feed(NamedTuple):
    """Asks the decoder to read tokens from position `start` on. The result is the logits of the
    positions `last` among them, float32 [len(last), vocab], valid until the next request, and the
    attention of `heads` (or None)."""

    ids: Sequence[int]
    start: int
    last: Sequence[int]
    heads: Heads = ()


Work = Generator[Encode | Feed | Segment, Any, None]


class Source(Protocol):
    """A sound: what has work, and takes segments."""

    def work(self) -> tuple[int, Work] | None:
        """Returns the next work that may begin, with its number; None: there is none now."""

    def came(self, number: int, segment: Segment) -> None:
        """Takes a segment of work."""

    def ended(self, number: int, error: Exception | None) -> None:
        """Notes that work has ended; `error` is what it raised."""


@dataclass
class _Running:
    source: Source
    number: int
    work: Work
    asks: Encode | Feed


class Hearing:
    """The works of a model's sounds. One thread uses it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sources: deque[Source] = deque()
        self._free = list(range(model.slots))[::-1]
        self._running: dict[int, _Running] = {}

    def add(self, source: Source) -> None:
        """Takes a source's works from now on."""
        self._sources.append(source)

    def remove(self, source: Source) -> None:
        """Forgets a source and ends its works."""
        if source in self._sources:
            self._sources.remove(source)
        for slot in [k for k, r in self._running.items() if r.source is source]:
            self._running.pop(slot).work.close()
            self._free.append(slot)

    @property
    def busy(self) -> bool:
        """True if there is a source."""
        return bool(self._sources)

    def turn(self) -> None:
        """Begins work where slots are free, and advances each work by a step."""
        self._begin()
        single: list[int] = []
        for slot, running in list(self._running.items()):
            asks = running.asks
            if isinstance(asks, Feed) and len(asks.ids) == len(asks.last) == 1 and not asks.heads:
                single.append(slot)
            elif self._running.get(slot) is running:
                self._alone(slot, running)
        for at in range(0, len(single), STEPS[1]):
            self._together([slot for slot in single[at : at + STEPS[1]] if slot in self._running])

    def _begin(self) -> None:
        """Gives free slots to the sources in turn."""
        without = 0
        while self._free and without < len(self._sources):
            source = self._sources[0]
            self._sources.rotate(-1)
            found = source.work()
            if found is None:
                without += 1
                continue
            without, slot = 0, self._free.pop()
            number, work = found
            running = _Running(source, number, work, Feed((), 0, ()))
            self._running[slot] = running
            self._resume(slot, running, None)

    def _alone(self, slot: int, running: _Running) -> None:
        asks, model = running.asks, self._model
        try:
            if isinstance(asks, Encode):
                found: Any = model.runner.encode(slot, asks.sound)
            else:
                found = model.prefill(slot, asks.ids, asks.last, asks.start, asks.heads)
        except Exception as error:
            self._failed([slot], error)
            return
        self._resume(slot, running, found)

    def _together(self, slots: list[int]) -> None:
        if not slots:
            return
        running = [self._running[slot] for slot in slots]
        asks = [r.asks for r in running if isinstance(r.asks, Feed)]
        try:
            ids, starts = [a.ids[0] for a in asks], [a.start for a in asks]
            logits, _ = self._model.runner.step(ids, slots, starts)
        except Exception as error:
            self._failed(slots, error)
            return
        for i, slot in enumerate(slots):
            if self._running.get(slot) is running[i]:
                self._resume(slot, running[i], (logits[i : i + 1], None))

    def _resume(self, slot: int, running: _Running, found: Any) -> None:
        """Lets a work go on until it asks for the next step."""
        try:
            asks = running.work.send(found)
            while isinstance(asks, Segment):
                running.source.came(running.number, asks)
                asks = next(running.work)
        except StopIteration:
            self._end(slot, None)
        except Exception as error:
            self._end(slot, error)
        else:
            running.asks = asks

    def _failed(self, slots: Sequence[int], error: Exception) -> None:
        for slot in slots:
            if slot in self._running:
                self._running[slot].work.close()
                self._end(slot, error)

    def _end(self, slot: int, error: Exception | None) -> None:
        running = self._running.pop(slot)
        self._free.append(slot)
        running.source.ended(running.number, error)
