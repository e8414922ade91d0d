"""One engine, played by a thread of its own; what it makes is handed to the event loop step by
step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from weft.core.errors import DeviceError, WeftError
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.engine.ticket import Ticket
from weft.serve.metrics import Metrics

_log = logging.getLogger(__name__)
IDLE_SECONDS = 60.0  # the thread looks around at least so often


@dataclass
class Answer:
    """One job's outputs, for whoever awaits them on the event loop."""

    player: Player
    ticket: Ticket | None = None
    outputs: deque[Output] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    begun: float = field(default_factory=time.monotonic)
    told: float = 0.0  # when the last output came

    async def __aiter__(self) -> AsyncIterator[Output]:
        """The outputs as they come, the last one with `finish`. Raises the job's WeftError."""
        while True:
            while self.outputs:
                output = self.outputs.popleft()
                if output.error is not None:
                    raise output.error
                yield output
                if output.finish is not None:
                    return
            self.news.clear()
            await self.news.wait()

    def close(self) -> None:
        """Ends the job at the next step, where it still runs."""
        if self.ticket is not None:
            self.player.cancel(self.ticket)


class Player:
    """Plays `engine` in a thread until closed. Made on the event loop that awaits the answers."""

    def __init__(self, engine: Engine, name: str, metrics: Metrics) -> None:
        self.engine, self.name, self._metrics = engine, name, metrics
        self.failed: str | None = None  # why nothing more is played
        self._loop = asyncio.get_running_loop()
        self._work = threading.Condition()
        self._closing = False
        self._batch: list[tuple[Answer, Output]] = []  # of the step being played
        self._thread = threading.Thread(target=self._run, name=f"weft-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Answer:
        """Hands a job in. Raises what Engine.submit raises, DeviceError where the engine has
        ended."""
        if self.failed is not None:
            raise DeviceError(self.failed)
        answer = Answer(self)
        answer.ticket = self.engine.submit(job, lambda out: self._batch.append((answer, out)))
        with self._work:
            self._work.notify()
        return answer

    def cancel(self, ticket: Ticket) -> None:
        self.engine.cancel(ticket)
        with self._work:
            self._work.notify()

    @property
    def idle(self) -> bool:
        return not self.engine.has_work

    async def close(self) -> None:
        """Ends what runs and lets the thread go."""
        with self._work:
            self._closing = True
            self._work.notify()
        while self._thread.is_alive():
            await asyncio.sleep(0.01)

    def _run(self) -> None:
        try:
            while self._wait():
                self.engine.step()
                self._hand_over()
            self.engine.close()
        except BaseException as e:  # an engine's step raises for nothing that a job does
            _log.exception("the engine of %s ended", self.name)
            self.failed = f"the engine of {self.name} ended: {type(e).__name__}"
            with contextlib.suppress(Exception):
                self.engine.close()
        finally:
            self._hand_over()

    def _wait(self) -> bool:
        with self._work:
            while not (self._closing or self.engine.has_work):
                self._work.wait(IDLE_SECONDS)
            return not self._closing

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver, batch)

    def _deliver(self, batch: list[tuple[Answer, Output]]) -> None:
        now = time.monotonic()
        for answer, output in batch:
            self._metrics.came(self.name, answer, output, now)
            answer.told = now
            answer.outputs.append(output)
            answer.news.set()


def submit_all(player: Player, jobs: list[Job]) -> list[Answer]:
    """All of the jobs or none: where one is refused, those before it are ended."""
    answers: list[Answer] = []
    try:
        for job in jobs:
            answers.append(player.submit(job))
    except WeftError:
        for answer in answers:
            answer.close()
        raise
    return answers
