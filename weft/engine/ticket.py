"""A job in the engine, and the engine's figures."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from weft.core.records import dataclass
from weft.engine.answer import Answer
from weft.engine.costs import Trust
from weft.engine.job import Job, Sink
from weft.engine.schedule import Schedule
from weft.engine.sequence import SequenceState, Shifted


@dataclass(eq=False)
class Ticket:
    """A job after `submit`. `done` is True once its last output has been sent."""

    number: int
    job: Job
    sink: Sink
    answer: Answer
    place: SequenceState
    draft: list[int] = field(default_factory=list)  # proposed for this step
    guessed: bool = False  # True if a draft source proposed it, False if a constraint forced it
    trust: Trust = field(default_factory=Trust)  # success rate of tokens that its constraint forces
    begun: float = 0.0  # when its first step began, by the engine's clock
    done: bool = False
    cancelled: bool = False

    @property
    def scores(self) -> bool:
        """True while logprobs of the prompt have yet to be computed."""
        job = self.job
        return job.prompt_logprobs is not None and len(self.answer.scored) < len(job.prompt)

    def shift(self, schedule: Schedule, context: int, lock: Any) -> None:
        """Lets half of a job's tokens leave the cache, after the first ones that it keeps, if
        the context is full and the job goes on. The others are read again at new positions.
        `lock` guards the schedule."""
        place, keep = self.place, self.job.shift
        if keep is None or self.done or len(place.tokens) <= context:
            return
        leaves = (len(place.tokens) - keep) // 2
        self.answer.shifted += leaves
        with lock:
            schedule.leave(place)
            place.tokens = Shifted(self.answer.tokens, keep, keep + self.answer.shifted)
            place.chain, place.prompt = place.chain.anew(), len(place.tokens)
            place.preempted += 1
            schedule.add(place)


@dataclass(frozen=True)
class Stats:
    """The engine's figures. `running` and `waiting` count jobs. Running jobs hold `held` of
    `pages`; `cached` pages are unreferenced but can be found again.

    The others count since the start. `cached_tokens` of `prompt_tokens` were found in the cache;
    `accepted` of `drafted` tokens were right.
    """

    running: int
    waiting: int
    pages: int
    held: int
    cached: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    drafted: int
    accepted: int
    preempted: int
    steps: int


@dataclass
class Counts:
    """The fields of `Stats` that the engine counts itself."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
