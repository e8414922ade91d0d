"""The engine: takes jobs in, runs steps, sends outputs.

    engine = Engine(runner, vocab)
    ticket = engine.submit(job, sink)     # from any thread
    while engine.step(): pass             # one thread at a time

`schedule` decides which tokens a step feeds, `answer` what to do with the logits. A job that fails
by itself (NaN logits, its constraint) ends alone. If the runner fails, all running jobs end with
its error, the cache is cleared, and waiting jobs run next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from weft.core.errors import ModelError, UsageError, WeftError
from weft.core.weak import weakly
from weft.engine.answer import Answer, Explain, guarded
from weft.engine.drafts import Drafts
from weft.engine.job import Job, PagedRunner, Sink, Texts
from weft.engine.limits import check_queue, limit_of
from weft.engine.pace import PromptPace
from weft.engine.pages import Chain, Pages, root
from weft.engine.play import FEW, SCORED, RunnerFailure, StepRunner, as_weft, copied
from weft.engine.propose import Proposer
from weft.engine.schedule import Schedule
from weft.engine.sequence import Feed, SequenceState
from weft.engine.suffixes import Suffixes
from weft.engine.ticket import Counts, Stats, Ticket
from weft.engine.windows import Windows
from weft.host.forks import lock_of

BUDGET = 512  # rows per step
BESIDE = 128  # the most rows of prompts in a step in which other sequences decode
QUEUE = 1024  # largest number of waiting jobs

_log = logging.getLogger(__name__)


def _not_finite() -> WeftError:
    return ModelError("the logits are not finite; check the model's weights")


class Engine:
    """A runner of jobs, as many at once as the model's slots and pages allow.

    `vocab`: token ids are 0 to vocab - 1. `texts`: makes the streams that turn tokens into text.
    `explain`: returns the error for logits that are not finite. `budget`: rows per step. `beside`:
    the most rows for prompts in a step in which others decode. `queue`: the most jobs that may
    wait. `drafts`: the source of proposed tokens (None: `Suffixes`). `few`: the most rows of a
    prompt that join a decode step. `clock`: returns seconds, by which the engine decides if drafts
    pay and how many rows of prompts a step takes (`pace`).
    """

    def __init__(
        self,
        runner: PagedRunner,
        vocab: int,
        texts: Texts = lambda: None,
        explain: Explain = _not_finite,
        budget: int = BUDGET,
        beside: int = BESIDE,
        queue: int = QUEUE,
        drafts: Drafts | None = None,
        few: int = FEW,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner, self.vocab, self.queue = runner, vocab, queue
        self._texts, self._explain, self._sizes = texts, explain, (budget, beside)
        self._few, self.clock = few, clock
        self._live: dict[int, Ticket] = {}  # from submit to the last output
        self._inbox: list[Ticket] = []
        self._cancelled: list[Ticket] = []
        self._number = 0
        self._closed = False
        self._counts = Counts()
        self.told: Callable[[], None] = lambda: None  # called after outputs in the middle of a step
        self._fresh(drafts or Suffixes())
        self._lock = lock_of(self)
        self._playing = lock_of(
            self, "_playing", "an engine's step was being played in another thread when this "
            "process was forked; make another engine here",
        )  # fmt: skip

    def _fresh(self, drafts: Drafts) -> None:
        runner = self.runner
        pool = runner.windows
        windows = None if pool is None else Windows(pool, runner.page)
        self._pages = Pages(runner.pages, runner.page, windows)
        shared = runner.resumes(0, runner.page)  # True if a sequence consists of its pages alone
        budget, beside = self._sizes
        pace = PromptPace(beside, budget)
        self._schedule = Schedule(
            self._pages, runner.slots, budget, shared, pace.rows, partial(copied, runner)
        )
        self._proposer = Proposer(runner, self.vocab, self._schedule, drafts)
        self._player = StepRunner(
            runner, self._schedule, self._counts, weakly(self._alone), self._few, self._proposer,
            pace, self.clock, weakly(self._told),
        )  # fmt: skip

    # -- from any thread --------------------------------------------------------------------------

    def submit(self, job: Job, sink: Sink) -> Ticket:
        """Adds a job; the thread that steps the engine calls `sink` with its outputs. Raises
        UsageError for an empty prompt, ids outside the vocabulary, an unknown adapter, numbers out
        of range, or a closed engine. Raises LimitError for a prompt longer than the context or an
        answer too long for the pages. Raises BusyError if too many jobs wait."""
        limit = self.limit_of(job)
        answer = Answer(job, limit, job.texts or self._texts, self._explain)
        with self._lock:
            if self._closed:
                raise UsageError("the engine is closed; make another")
            free = self.runner.slots - len(self._schedule.running)
            waiting = [*(other.place for other in self._inbox), *self._schedule.waiting]
            check_queue(waiting, self.queue, free, job.salt)
            self._number += 1
            chain = Chain(root(job.salt, job.adapter), self.runner.page)
            reads = 0 if job.prompt_logprobs is not None else self.runner.context
            most = min(len(job.prompt) + max(limit, 1) - 1, self.runner.context)
            place = SequenceState(self._number, answer.tokens, job.salt, chain, reads, most)
            place.prompt, place.priority = len(job.prompt), job.priority
            place.insets = job.insets
            ticket = Ticket(self._number, job, sink, answer, place)
            self._live[ticket.number] = ticket
            self._inbox.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends a job at the next step with the tokens it has by then; does nothing if it has
        ended."""
        with self._lock:
            if not (ticket.done or ticket.cancelled):
                ticket.cancelled = True
                self._cancelled.append(ticket)

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return bool(self._live)

    @property
    def stats(self) -> Stats:
        """The engine's figures now."""
        with self._lock:
            schedule, pages = self._schedule, self._pages
            waiting = len(schedule.waiting) + len(self._inbox)
            return Stats(
                running=len(schedule.running), waiting=waiting, pages=pages.count,
                held=pages.count - pages.idle, cached=pages.cached,
                cached_tokens=schedule.found, preempted=schedule.preemptions,
                **asdict(self._counts),
            )  # fmt: skip

    @property
    def drafts(self) -> Drafts:
        """The source of proposed tokens; it may be replaced between steps."""
        return self._proposer.drafts

    @drafts.setter
    def drafts(self, drafts: Drafts) -> None:
        self._proposer.drafts = drafts

    def close(self) -> None:
        """Ends all jobs as cancelled and accepts no more."""
        with self._playing:
            with self._lock:
                self._closed = True
                live = list(self._live.values())
            for ticket in live:
                self.cancel(ticket)
            self._enter()

    def limit_of(self, job: Job) -> int:
        """Returns how many new tokens a job may have. Raises UsageError and LimitError as `submit`
        does."""
        return limit_of(job, self.runner, self.vocab)

    # -- playing ----------------------------------------------------------------------------------

    def step(self) -> bool:
        """Runs one step and calls the sinks; returns True if there is more to do. Errors of a
        device or a job do not raise: jobs end with them. KeyboardInterrupt and the like pass
        through; if they interrupt the runner, all jobs are as they were before the step."""
        with self._playing:
            try:
                self._enter()
                with self._lock:
                    parts = self._schedule.plan()
                if parts:
                    self._play(parts)
            except RunnerFailure as failed:
                self._end_running(failed.error)
            except Exception as e:
                _log.exception("a step of the engine failed")
                self._end_all(e)
            except BaseException as e:
                if self._player.away:
                    self._player.away = False
                    self._tell_ended()
                    if not self._schedule.shared:
                        for place in self._schedule.running:
                            self._schedule.restart(place)
                else:
                    self._end_all(e)
                raise
            return self.has_work

    def read(self, ids: Sequence[int], first: int = 0) -> Iterator[np.ndarray]:
        """Yields logits float32 [at most 64, vocab] of the positions of `ids` from `first` on; each
        block is valid until the next. It preempts running jobs, which resume later. If waiting jobs
        take its slot back, it raises UsageError. Raises what the runner raises."""
        with self._playing:
            place = self._schedule.lend(len(ids))
        chunk = min(self._schedule.most, len(ids)) if self._schedule.windows else len(ids)
        try:
            begin = 0
            while begin < len(ids):
                with self._playing:
                    if place.slot is None:
                        raise UsageError("another call on this model came between blocks of logits")
                    end = begin + SCORED if begin >= first else min(begin + chunk, first)
                    part = ids[begin:end]
                    self._schedule.extend(place, begin + len(part))
                    self._player.table(place)
                    if begin < first:
                        out = self.runner.prefill(place.slot, part, begin)
                    else:
                        pos = range(begin, begin + len(part))
                        out = self.runner.rows(part, [place.slot] * len(part), pos)
                    place.fed = begin + len(part)
                    self._schedule.slide(place)
                if begin >= first:
                    yield out
                begin += len(part)
        finally:
            with self._playing:
                self._schedule.lent_back(place)

    def check(self) -> None:
        """Raises AssertionError if pages, sequences and tables disagree."""
        with self._playing:
            self._schedule.check(self.runner.tables)
            places = [*self._schedule.running, *self._schedule.waiting]
            entered = self._live.keys() - {ticket.number for ticket in self._inbox}
            assert {p.number for p in places} == entered

    def _enter(self) -> None:
        """Admits new jobs and ends cancelled ones."""
        with self._lock:
            new, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, []
            for ticket in new:
                self._schedule.add(ticket.place)
        for ticket in cancelled:
            if not ticket.done:
                ticket.answer.finish = "cancelled"
                self._tell(ticket)
        for ticket in new:
            if not ticket.done:
                self._counts.prompt_tokens += len(ticket.job.prompt)
                self._alone(ticket, ticket.answer.begin)
                if ticket.answer.finish is not None and not ticket.scores:
                    self._tell(ticket)

    def _play(self, parts: list[Feed]) -> None:
        self._counts.steps += 1
        played = [(self._live[part.place.number], part.count) for part in parts]
        self._player.play(played)
        for ticket, _ in played:
            if not ticket.done:
                self._tell(ticket)
            ticket.shift(self._schedule, self.runner.context, self._lock)

    # -- endings ----------------------------------------------------------------------------------

    def _tell(self, ticket: Ticket, error: WeftError | None = None) -> None:
        """Sends the sink what is new; removes the job if it has ended."""
        answer, place = ticket.answer, ticket.place
        over = error is not None or (answer.finish is not None and not self._unscored(ticket))
        if over:
            with self._lock:
                self._schedule.leave(place)
                self._live.pop(ticket.number, None)
            self.drafts.leave(ticket.number, ticket.job, answer.tokens)
            ticket.done = True
        elif not answer.news:
            return
        try:
            ticket.sink(answer.output(place.cached, error))
        except Exception:
            _log.exception("the reader of job %d failed: it is cancelled", ticket.number)
            self.cancel(ticket)

    def _told(self, tickets: Sequence[Ticket]) -> None:
        """Sends what is new of jobs in the middle of a step."""
        for ticket in tickets:
            if not ticket.done:
                self._tell(ticket)
        self.told()

    def _tell_ended(self) -> None:
        """Ends the jobs that had finished when a step was interrupted: no later step feeds them."""
        for ticket in [self._live[place.number] for place in self._schedule.running]:
            if ticket.answer.finish is not None and not self._unscored(ticket):
                self._tell(ticket)

    def _unscored(self, ticket: Ticket) -> bool:
        return ticket.scores and ticket.answer.finish != "cancelled"

    def _alone(self, ticket: Ticket, work: Callable[..., None], *given: Any) -> bool:
        """Does work that concerns one job only. Returns False if it failed, which ends that job."""
        try:
            guarded("job", work, *given)
        except WeftError as error:
            self._tell(ticket, error)
            return False
        return True

    def _end_running(self, error: Exception) -> None:
        """Ends all running jobs with the runner's error and clears the cache."""
        for place in list(self._schedule.running):
            self._tell(self._live[place.number], as_weft(error))
        self._schedule.forget()

    def _end_all(self, error: BaseException) -> None:
        """Ends all jobs and starts with an empty cache: the state may be inconsistent."""
        with self._lock:
            live, self._live = list(self._live.values()), {}
            self._inbox, self._cancelled = [], []
            self._fresh(self.drafts)
        for ticket in live:
            self.drafts.leave(ticket.number, ticket.job, ticket.answer.tokens)
            ticket.done = True
            try:
                ticket.sink(ticket.answer.output(ticket.place.cached, as_weft(error)))
            except Exception:
                _log.exception("the reader of job %d failed", ticket.number)
