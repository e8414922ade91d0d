"""One engine, run by a thread of its own, which passes the results to the event loop after each
step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.errors import BusyError, DeviceError, WeftError
from weft.core.weak import weakly
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.engine.ticket import Stats, Ticket
from weft.serve.metrics import ServerMetrics

_log = logging.getLogger(__name__)
IDLE_SECONDS = 60.0  # the thread looks around at least so often


@dataclass(eq=False)
class JobOutputs:
    """One job's outputs, for a task that awaits them on the event loop. `ticket` is None until the
    answer's turn within its request has come."""

    player: EngineThread
    turns: RequestQueue
    ticket: Ticket | None = None
    outputs: deque[Output] = field(default_factory=deque)
    waiting: asyncio.Future[None] | None = None  # of the task that awaits the next output
    begun: float = field(default_factory=time.monotonic)
    told: float = 0.0  # when the last output came
    first: float = 0.0  # when the first token came
    context: Any = None  # the request's context, for its spans

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
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting

    def give(self, output: Output) -> None:
        """Adds an output and wakes the task that awaits it."""
        self.outputs.append(output)
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def close(self) -> None:
        """Ends the job at the next step, where it still runs."""
        if self.ticket is not None:
            self.player.cancel(self.ticket)
        else:
            self.turns.drop(self)


class RequestQueue:
    """The answers of one request that are not with the engine yet; `running` are."""

    def __init__(self, player: EngineThread, jobs: Sequence[Job]) -> None:
        context = player.metrics.context()
        self.answers = [JobOutputs(player, self, context=context) for _ in jobs]
        self.left = deque(zip(self.answers, jobs))
        self.running = 0

    def drop(self, answer: JobOutputs) -> None:
        """Removes an answer that has not started."""
        self.left = deque((a, job) for a, job in self.left if a is not answer)


class EngineThread:
    """Plays `engine` in a thread until closed, or until `check`, called before each step, raises an
    error. Made on the event loop that awaits the answers."""

    def __init__(
        self, engine: Engine, name: str, metrics: ServerMetrics,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.engine, self.name, self.metrics, self._check = engine, name, metrics, check
        self.failed: str | None = None  # the reason why the engine has stopped, if it has
        self._loop = asyncio.get_running_loop()
        self._work = threading.Condition()
        self._closing = False
        self._batch: list[tuple[JobOutputs, Output]] = []  # outputs of the present step
        self._turns: deque[RequestQueue] = deque()  # requests that have more answers to hand in
        self._calls: deque[Callable[[], None]] = deque()  # work between steps
        self._thread = threading.Thread(target=self._run, name=f"weft-{name}", daemon=True)
        engine.told = weakly(self._hand_over)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> list[JobOutputs]:
        """Takes the jobs of a request, all or none. The engine has as many of them at once as it
        runs; the others follow as those end, in turns with other requests'. Raises the errors of
        Engine.submit, BusyError if not even the first may wait, DeviceError if the engine has
        ended."""
        for job in jobs:
            self.engine.limit_of(job)
        turns = RequestQueue(self, jobs)
        self._hand_in(turns)
        self._turns.append(turns)
        self._go_round()
        return turns.answers

    def _hand_in(self, turns: RequestQueue) -> None:
        """Hands in the next job of a request."""
        if self.failed is not None:
            raise DeviceError(self.failed)
        answer, job = turns.left[0]
        answer.ticket = self.engine.submit(job, lambda out: self._batch.append((answer, out)))
        turns.left.popleft()
        turns.running += 1
        with self._work:
            self._work.notify()

    def _go_round(self) -> None:
        """Hands in what the engine has room for, a job of each request in turn."""
        waiting = [turns for turns in self._turns if turns.left]
        most = self.engine.runner.slots
        self._turns = deque(waiting)
        while ready := [turns for turns in self._turns if turns.left and turns.running < most]:
            for turns in ready:
                try:
                    self._hand_in(turns)
                except BusyError:  # Other jobs are first; their ends call this again.
                    return
                except WeftError as error:  # The engine has ended or will end.
                    answer, _ = turns.left.popleft()
                    ended = Output(finish="cancelled") if self._closing else Output(error=error)
                    answer.give(ended)

    def later(self, work: Callable[[], None]) -> None:
        """Does `work` in the engine's thread before its next step."""
        with self._work:
            self._calls.append(work)
            self._work.notify()

    async def between_steps(self, work: Callable[[], None]) -> None:
        """Does `work` in the engine's thread, between two steps. Raises its error, or DeviceError
        if the engine has ended."""
        done: Future[None] = Future()

        def call() -> None:
            try:
                work()
            except BaseException as e:
                done.set_exception(e)
            else:
                done.set_result(None)

        self.later(call)
        waiting = asyncio.wrap_future(done)
        while not waiting.done():
            if self.failed is not None or not self._thread.is_alive():
                raise DeviceError(self.failed or f"the engine of {self.name} has ended")
            await asyncio.wait([waiting], timeout=IDLE_SECONDS)
        waiting.result()

    def cancel(self, ticket: Ticket) -> None:
        """Cancels a job and wakes the engine's thread."""
        self.engine.cancel(ticket)
        with self._work:
            self._work.notify()

    @property
    def idle(self) -> bool:
        """True if no answer is running or waiting."""
        return not (self.engine.has_work or any(turns.left for turns in self._turns))

    @property
    def stats(self) -> Stats:
        """The engine's figures, with the answers that are yet to be handed in."""
        found = self.engine.stats
        return replace(found, waiting=found.waiting + sum(len(t.left) for t in self._turns))

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
                while self._calls:
                    self._calls.popleft()()
                self._check()
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
            while not (self._closing or self._calls or self.engine.has_work):
                self._work.wait(IDLE_SECONDS)
            return not self._closing

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        if batch or self._closing or self.failed is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed, so no task waits.
                self._loop.call_soon_threadsafe(self._deliver, batch)

    def _deliver(self, batch: list[tuple[JobOutputs, Output]]) -> None:
        now = time.monotonic()
        for answer, output in batch:
            self.metrics.came(self.name, answer, output, now)
            answer.told = now
            answer.give(output)
            if output.finish is not None or output.error is not None:
                answer.turns.running -= 1
        self._go_round()
