"""Runs one step: feeds tokens to the runner and passes the logits to each job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import UsageError, WeftError
from weft.engine.job import Inserting, Movable, PagedRunner, Pausing
from weft.engine.pace import PromptPace
from weft.engine.propose import Proposer
from weft.engine.schedule import Schedule
from weft.engine.sequence import SequenceState, needed
from weft.engine.ticket import Counts, Ticket
from weft.host.clock import compiling

FEW = 16  # rows of a prompt that may join a decode step, at about the cost of one row
DEEP = 1 << 13  # unless together they look back on so many positions: each reads them by itself
PAUSE = 0.04  # seconds after which a prompt's part lets the others decode in between
SCORED = 64  # rows whose logits are kept at once

_log = logging.getLogger(__name__)


class RunnerFailure(Exception):
    """An exception of the runner, in `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class StepRunner:
    """The part of the engine that runs the steps of a schedule on the runner. `alone` does work for
    one job only and returns True if it succeeded. `told` sends what is new of jobs in the middle of
    a step. `away` is True while the runner works, and stays
    True if the runner is interrupted."""

    def __init__(
        self,
        runner: PagedRunner,
        schedule: Schedule,
        counts: Counts,
        alone: Callable[..., bool],
        few: int,
        proposer: Proposer,
        pace: PromptPace,
        clock: Callable[[], float],
        told: Callable[[Sequence[Ticket]], None],
    ) -> None:
        self._runner, self._alone = runner, alone
        self._schedule, self._counts = schedule, counts
        self._few, self._proposer, self._pace, self._clock = few, proposer, pace, clock
        self._told = told
        self.away = False
        self._stretch = 0.0  # the longest time in this step in which no other sequence had its turn
        self._turns = 0.0  # the seconds of those turns
        self._insets = runner.insets if isinstance(runner, Inserting) else None
        self._written: dict[int, list[int]] = {}  # the pages in the runner's table, by slot

    def play(self, parts: Sequence[tuple[Ticket, int]]) -> None:
        """Feeds the given number of tokens of each job. Short parts and drafts go in one call; long
        parts of prompts follow one after the other. Raises RunnerFailure if the runner fails."""
        started, compiled, self._stretch, self._turns = self._clock(), compiling.total, 0.0, 0.0
        for ticket, _ in parts:  # All tables first, before anything can be interrupted.
            self.table(ticket.place)
            ticket.begun = ticket.begun or started
            # what an earlier step fed ahead must not meet the logits of this one
            ticket.draft, ticket.guessed = [], False
        prompts = [(ticket.place.fed, count) for ticket, count in parts if ticket.place.rest > 1]
        self._play(parts)
        if prompts:
            passed = self._clock() - started - (compiling.total - compiled) - self._turns
            if decode := len(parts) - len(prompts):
                passed -= min(self._proposer.costs.of(decode), passed)
            rows = sum(count for _, count in prompts)
            self._pace.note(max(prompts)[0], rows, self._stretch or passed, passed)

    def _play(self, parts: Sequence[tuple[Ticket, int]]) -> None:
        decodes = [ticket for ticket, _ in parts if ticket.place.rest == 1 and not ticket.scores]
        together: list[tuple[Ticket, int]] = []
        long: list[tuple[Ticket, int]] = []
        for ticket, count in parts:
            place = ticket.place
            if place.pending:
                self._restore(place)
            if ticket.scores:
                self._score(ticket, count)
            elif self._is_long(place, count, decodes):
                long.append((ticket, count))
            else:
                together.append((ticket, count))
        if together:
            self._together(together, self._schedule.budget - sum(count for _, count in parts))
        if long:
            self._told([ticket for ticket, _ in parts])
        for ticket, count in sorted(long, key=lambda part: part[1]):
            self._feed_long(ticket, count, [other for other, _ in parts if other is not ticket])

    def _feed_long(self, ticket: Ticket, count: int, others: Sequence[Ticket]) -> None:
        """Feeds a part of a prompt by itself, and tokens of `others` that decode meanwhile."""
        place, adapter = ticket.place, ticket.job.adapter
        ids = place.tokens[place.fed : place.fed + count]
        decoding = [t for t in others if not t.done and t.place.rest == 1 and not t.scores]
        with self._pausing(decoding):
            logits = self._call(self._runner.prefill, place.slot, ids, place.fed, adapter)
        self._settle(ticket, count, logits[None])

    def _is_long(self, place: SequenceState, count: int, decoding: Sequence[Ticket]) -> bool:
        """True if a part is fed by itself: it has many rows or vectors of its own. Or, joined to
        others, its rows would read far more of the cache, or hold them up for longer than PAUSE."""
        if count == 1 and not _inset(place, count):
            return False
        deep = count * place.fed > DEEP
        return count > self._few or deep or _inset(place, count) or self._holds(count, decoding)

    def _holds(self, count: int, decoding: Sequence[Ticket]) -> bool:
        """True if a part could pause, and in the step of `decoding` is known to take longer than
        PAUSE."""
        if self._pauser(decoding) is None:
            return False
        costs, rows = self._proposer.costs, len(decoding)
        return PAUSE < costs.of(rows + count) - costs.of(rows) < float("inf")

    def _pauser(self, decoding: Sequence[Ticket]) -> Pausing | None:
        """Returns the runner if it may pause for `decoding`."""
        runner = self._runner
        shared = bool(decoding) and self._schedule.shared
        return runner if shared and isinstance(runner, Pausing) else None

    @contextlib.contextmanager
    def _pausing(self, decoding: Sequence[Ticket]) -> Iterator[None]:
        """Lets the runner pause in a long part of a prompt, so that `decoding` get tokens
        meanwhile: a deep cache may take longer to read than they should wait."""
        runner, begun = self._pauser(decoding), self._clock()
        if runner is None:
            yield
            return

        def pause() -> None:
            nonlocal begun
            passed = self._clock() - begun
            if passed >= PAUSE:
                self._stretch = max(self._stretch, passed)
                runner.pause = None
                self._meanwhile(decoding)
                runner.pause, self.away = pause, True
                self._turns -= begun + passed
                begun = self._clock()
                self._turns += begun

        runner.pause = pause
        try:
            yield
        finally:
            runner.pause = None
            if self._stretch:
                self._stretch = max(self._stretch, self._clock() - begun)

    def _meanwhile(self, decoding: Sequence[Ticket]) -> None:
        """Feeds one token of each of `decoding` for which pages are idle, and room is left for the
        token that the step itself will feed."""
        those = []
        for ticket in decoding:
            place = ticket.place
            ready = not (ticket.done or ticket.cancelled or place.pending) and place.rest == 1
            end = place.fed + 2
            if ready and end <= self._runner.context and self._schedule.extend(place, end):
                self.table(place)
                ticket.draft, ticket.guessed = [], False
                those.append((ticket, 1))
        if those:
            self._together(those, 0)
            self._told([ticket for ticket, _ in those])

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
        slot, pages = place.slot or 0, place.pages
        if self._written.get(slot) != pages:  # most steps take no page
            row = self._runner.tables[slot]
            row[: len(pages)] = pages
            row[len(pages) :] = 0
            self._written[slot] = [*pages]
        if self._insets is not None:
            self._insets.pop(slot, None)
            if place.insets is not None:
                self._insets[slot] = place.insets
        if (windows := self._schedule.windows) is not None:
            row = self._runner.window_tables[slot]
            row[:] = 0
            row[place.seen : place.end] = windows.at(pages[place.seen : place.end])

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
            if not self._alone(ticket, answer.score, logits[known:]):
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
            self._alone(ticket, self._choose, ticket, count, logits)

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
        except RunnerFailure:  # of another step, in a pause
            self.away = False
            raise
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


def copied(
    runner: PagedRunner, pages: Sequence[int], *window: bool
) -> Mapping[str, np.ndarray] | None:
    """Returns the contents of pages for a preempted sequence, so that it is not computed again."""
    try:
        return runner.read_pages(pages, *window) if isinstance(runner, Movable) else None
    except UsageError:  # pages that are split across machines are not copied
        return None
    except Exception:  # the next step reports the cause
        _log.exception("pages could not be copied to the host")
        return None
