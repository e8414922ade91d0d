"""Runs one step: feeds tokens to the runner and passes the logits to each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import WeftError
from weft.engine.job import Inserting, Movable, PagedRunner
from weft.engine.pace import PromptPace
from weft.engine.propose import Proposer
from weft.engine.schedule import Schedule
from weft.engine.sequence import SequenceState, needed
from weft.engine.ticket import Counts, Ticket
from weft.host.clock import compiling

FEW = 16  # rows of a prompt that may join a decode step, at about the cost of one row
SCORED = 64  # rows whose logits are kept at once


class RunnerFailure(Exception):
    """An exception of the runner, in `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class StepRunner:
    """The part of the engine that runs the steps of a schedule on the runner. `alone` does work for
    one job only and returns True if it succeeded. `away` is True while the runner works, and stays
    True if the runner is interrupted."""

    def __init__(
        self,
        runner: PagedRunner,
        schedule: Schedule,
        counts: Counts,
        alone: Callable[[Ticket, Callable[[], None]], bool],
        few: int,
        proposer: Proposer,
        pace: PromptPace,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._alone = runner, alone
        self._schedule, self._counts = schedule, counts
        self._few, self._proposer, self._pace, self._clock = few, proposer, pace, clock
        self.away = False
        self._insets = runner.insets if isinstance(runner, Inserting) else None

    def play(self, parts: Sequence[tuple[Ticket, int]]) -> None:
        """Feeds the given number of tokens of each job. Long parts of prompts go one after the
        other; the rest and the drafts go in one call. Raises Failed if the runner fails."""
        started, compiled = self._clock(), compiling.total
        for ticket, _ in parts:  # All tables first, before anything can be interrupted.
            self.table(ticket.place)
            ticket.begun = ticket.begun or started
            # what an earlier step fed ahead must not meet the logits of this one
            ticket.draft, ticket.guessed = [], False
        prompts = [(ticket.place.fed, count) for ticket, count in parts if ticket.place.rest > 1]
        self._play(parts)
        if prompts:
            passed = self._clock() - started - (compiling.total - compiled)
            if decode := len(parts) - len(prompts):
                passed -= min(self._proposer.costs.of(decode), passed)
            self._pace.note(max(prompts)[0], sum(count for _, count in prompts), passed)

    def _play(self, parts: Sequence[tuple[Ticket, int]]) -> None:
        together = []
        for ticket, count in parts:
            place = ticket.place
            if place.pending:
                self._restore(place)
            if ticket.scores:
                self._score(ticket, count)
            elif count > self._few or _inset(place, count):
                ids, adapter = place.tokens[place.fed : place.fed + count], ticket.job.adapter
                logits = self._call(self._runner.prefill, place.slot, ids, place.fed, adapter)
                self._settle(ticket, count, logits[None])
            else:
                together.append((ticket, count))
        if together:
            self._together(together, self._schedule.budget - sum(count for _, count in parts))

    def _restore(self, place: SequenceState) -> None:
        """Writes what is held on the host to a sequence's pages, except pages still in the
        cache."""
        held, runner = place.held, self._runner
        assert held is not None and isinstance(runner, Movable)
        begin, end = place.filled, needed(held.fed, runner.page)
        planes = {name: plane[begin - held.first :] for name, plane in held.planes.items()}
        self._call(runner.write_pages, place.pages[begin:end], planes)
        if (windows := self._schedule.windows) is not None:
            begin = max(begin, place.seen)
            planes = {name: plane[begin - held.seen :] for name, plane in held.twins.items()}
            twins = windows.at(place.pages[begin:end])
            self._call(runner.write_pages, twins, planes, True)
        place.held, place.pending = None, False

    def table(self, place: SequenceState) -> None:
        """Writes a sequence's pages into the runner's table."""
        row = self._runner.tables[place.slot]
        row[: len(place.pages)] = place.pages
        row[len(place.pages) :] = 0
        if self._insets is not None:
            self._insets.pop(place.slot or 0, None)
            if place.insets is not None:
                self._insets[place.slot or 0] = place.insets
        if (windows := self._schedule.windows) is not None:
            row = self._runner.window_tables[place.slot]
            row[:] = 0
            row[place.seen : place.end] = windows.at(place.pages[place.seen : place.end])

    def _together(self, together: list[tuple[Ticket, int]], left: int) -> None:
        """Runs one call for decoding sequences and short parts of prompts; drafts may use `left`
        rows."""
        started, compiled, had = self._clock(), compiling.total, self._counts.new_tokens
        self.away = True
        self._proposer.propose(together, left)
        self.away = False
        ids: list[int] = []
        slots: list[int] = []
        pos: list[int] = []
        adapters: list[str] = []
        for ticket, count in together:
            place = ticket.place
            if ticket.draft:
                self.table(place)
            fed = [*place.tokens[place.fed : place.fed + count], *ticket.draft]
            ids += fed
            slots += [place.slot or 0] * len(fed)
            pos += range(place.fed, place.fed + len(fed))
            adapters += [ticket.job.adapter] * len(fed)
        begun = self._clock()
        logits = self._call(self._runner.rows, ids, slots, pos, adapters)
        made = compiling.total - compiled
        self._proposer.costs.note(len(ids), self._clock() - begun - made)
        end = 0
        for ticket, count in together:
            end += count + len(ticket.draft)
            self._settle(ticket, count, logits[end - len(ticket.draft) - 1 : end])
        passed = self._clock() - started - made
        self._proposer.took(passed, self._counts.new_tokens - had)

    def _score(self, ticket: Ticket, count: int) -> None:
        """Feeds `count` tokens of a prompt whose logprobs were requested."""
        place, answer = ticket.place, ticket.answer
        for begin in range(place.fed, place.fed + count, SCORED):
            ids = place.tokens[begin : min(begin + SCORED, place.fed + count)]
            pos = range(begin, begin + len(ids))
            adapters = [ticket.job.adapter] * len(ids)
            logits = self._call(self._runner.rows, ids, [place.slot] * len(ids), pos, adapters)
            known = max(len(answer.scored) - 1 - begin, 0)  # already scored before preemption
            if not self._alone(ticket, lambda: answer.score(logits[known:])):  # noqa: B023
                return
        place.reads = len(answer.scored) - 1 if ticket.scores else self._runner.context
        self._settle(ticket, count, logits[-1:])

    def _settle(self, ticket: Ticket, count: int, logits: np.ndarray) -> None:
        """Handles the logits after `count` fed tokens: those of the last one and of the drafts
        after it."""
        place = ticket.place
        if count < place.rest or ticket.answer.finish is not None:
            self._schedule.advance(place, count)
        else:
            self._alone(ticket, lambda: self._choose(ticket, count, logits))

    def _choose(self, ticket: Ticket, count: int, logits: np.ndarray) -> None:
        answer, draft, right = ticket.answer, ticket.draft, 0
        token = answer.next(logits[0])
        while answer.finish is None and right < len(draft) and draft[right] == token:
            right += 1
            token = answer.next(logits[right])
        self._schedule.advance(ticket.place, count + right)
        self._counts.new_tokens += right + (token is not None)
        if draft:
            self._proposer.learn(ticket, right)
            answer.drafted += right
            self._counts.drafted += len(draft)
            self._counts.accepted += right

    def _call(self, work: Callable[..., Any], *args: object) -> Any:
        """Calls the runner and returns its result. Raises Failed if it raises."""
        self.away = True
        try:
            out = work(*args)
        except Exception as e:
            self.away = False
            raise RunnerFailure(e) from e
        self.away = False
        return out


def _inset(place: SequenceState, count: int) -> bool:
    """Returns True if the next tokens of a sequence have vectors of their own."""
    at = place.fed
    return place.insets is not None and any(place.insets.between(at, at + count))


def as_weft(error: BaseException) -> WeftError:
    """Converts an error that ended a step into its jobs' error."""
    if isinstance(error, WeftError):
        return error
    made = WeftError(f"a step failed: {type(error).__name__}: {str(error)[:200]}; ask again")
    made.__cause__ = error
    return made
