"""One step: what is fed to the runner, and what comes of the logits for each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.engine.job import PagedRunner
from weft.engine.schedule import Place, Schedule, needed
from weft.engine.ticket import Counts, Ticket

FEW = 16  # rows of a prompt that go along with those that decode, for about the price of one
SCORED = 64  # rows whose logits are held at once
DRAFTED = 16  # rows of a step up to which tokens are proposed


class Failed(Exception):
    """The runner failed, with `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Player:
    """Plays the steps of a schedule on its runner. `alone` does what concerns one job only, and
    says whether it went well. `away` is True while the runner plays, and stays so where it was
    interrupted."""

    def __init__(
        self,
        runner: PagedRunner,
        vocab: int,
        schedule: Schedule,
        counts: Counts,
        alone: Callable[[Ticket, Callable[[], None]], bool],
        few: int,
    ) -> None:
        self._runner, self._vocab, self._alone = runner, vocab, alone
        self._schedule, self._pages, self._counts = schedule, schedule.pages, counts
        self._few = few
        self.away = False

    def play(self, parts: Sequence[tuple[Ticket, int]]) -> None:
        """Feeds so many tokens of each job: long parts of prompts one after the other, the others
        and what is proposed in one go. Raises Failed where the runner does."""
        together = []
        for ticket, count in parts:
            place = ticket.place
            self.table(place)
            if ticket.scores:
                self._score(ticket, count)
            elif count > self._few:
                ids, adapter = place.tokens[place.fed : place.fed + count], ticket.job.adapter
                logits = self._call(self._runner.prefill, place.slot, ids, place.fed, adapter)
                self._settle(ticket, count, logits[None])
            else:
                together.append((ticket, count))
        if together:
            self._propose(together, self._schedule.budget - sum(count for _, count in parts))
            self._together(together)

    def table(self, place: Place) -> None:
        """Tells the runner where a sequence's pages are."""
        row = self._runner.tables[place.slot]
        row[: len(place.pages)] = place.pages
        row[len(place.pages) :] = 0

    def _propose(self, together: list[tuple[Ticket, int]], left: int) -> None:
        """Further tokens for those that decode, while a step has room for their rows, `left` of
        its budget."""
        room = min(DRAFTED - sum(count for _, count in together), left)
        for ticket, count in together:
            place, answer = ticket.place, ticket.answer
            ticket.draft = []
            if ticket.lookup is None or room <= 0 or count < place.rest:
                continue
            length = len(place.tokens)
            most = min(answer.limit - len(answer.ids) - 1, self._runner.context - length, room)
            draft = ticket.lookup.propose(place.tokens, most)[:most] if most > 0 else []
            if draft and not 0 <= min(draft) <= max(draft) < self._vocab:
                continue
            spare = self._pages.idle - self._schedule.soon
            lacks = needed(length + len(draft), self._pages.size) - len(place.pages)
            if (
                draft
                and lacks <= max(spare, 0)
                and self._schedule.extend(place, length + len(draft))
            ):
                ticket.draft = draft
                room -= len(draft)
                self.table(place)

    def _together(self, together: list[tuple[Ticket, int]]) -> None:
        ids: list[int] = []
        slots: list[int] = []
        pos: list[int] = []
        adapters: list[str] = []
        for ticket, count in together:
            place = ticket.place
            fed = [*place.tokens[place.fed : place.fed + count], *ticket.draft]
            ids += fed
            slots += [place.slot or 0] * len(fed)
            pos += range(place.fed, place.fed + len(fed))
            adapters += [ticket.job.adapter] * len(fed)
        logits = self._call(self._runner.rows, ids, slots, pos, adapters)
        end = 0
        for ticket, count in together:
            end += count + len(ticket.draft)
            self._settle(ticket, count, logits[end - len(ticket.draft) - 1 : end])

    def _score(self, ticket: Ticket, count: int) -> None:
        """Feeds `count` tokens of a prompt whose logprobs are wanted."""
        place, answer = ticket.place, ticket.answer
        for begin in range(place.fed, place.fed + count, SCORED):
            ids = place.tokens[begin : min(begin + SCORED, place.fed + count)]
            pos = range(begin, begin + len(ids))
            adapters = [ticket.job.adapter] * len(ids)
            logits = self._call(self._runner.rows, ids, [place.slot] * len(ids), pos, adapters)
            known = max(len(answer.scored) - 1 - begin, 0)  # before it was preempted
            if not self._alone(ticket, lambda: answer.score(logits[known:])):  # noqa: B023
                return
        place.reads = len(answer.scored) - 1 if ticket.scores else self._runner.context
        self._settle(ticket, count, logits[-1:])

    def _settle(self, ticket: Ticket, count: int, logits: np.ndarray) -> None:
        """What comes of `count` tokens that were fed: `logits` of the last and of those proposed
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
        if draft and ticket.lookup is not None:
            ticket.lookup.learn(len(draft), right)
            answer.drafted += right
            self._counts.drafted += len(draft)
            self._counts.accepted += right

    def _call(self, work: Callable[..., np.ndarray], *args: object) -> np.ndarray:
        """What the runner gives."""
        self.away = True
        try:
            out = work(*args)
        except Exception as e:
            self.away = False
            raise Failed(e) from e
        self.away = False
        return out
