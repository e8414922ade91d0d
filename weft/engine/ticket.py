"""A job in the engine, and the engine's figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.engine.answer import Answer
from weft.engine.costs import Trust
from weft.engine.job import Job, Sink
from weft.engine.schedule import Place


@dataclass(eq=False)
class Ticket:
    """A job from `submit` on. `done` once its last output has gone out."""

    number: int
    job: Job
    sink: Sink
    answer: Answer
    place: Place
    draft: list[int] = field(default_factory=list)  # proposed for this step
    guessed: bool = False  # by drafts, rather than forced
    trust: Trust = field(default_factory=Trust)  # in what its constraint forces
    done: bool = False
    cancelled: bool = False

    @property
    def scores(self) -> bool:
        """Whether logprobs of the prompt are still to be worked out."""
        job = self.job
        return job.prompt_logprobs is not None and len(self.answer.scored) < len(job.prompt)


@dataclass(frozen=True)
class Stats:
    """How things stand: jobs that run and wait; pages, of which `held` by running jobs, and
    `cached` by nobody, but to be found again. Counts since the start, of tokens, preemptions and
    steps: `cached_tokens` of `prompt_tokens` were found, `accepted` of `drafted` were right."""

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
    """Those of `Stats` that the engine counts itself."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
