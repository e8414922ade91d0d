"""Chooses the tokens that a step feeds ahead of the known ones: forced by a constraint, or
drafted."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from weft.engine.costs import Costs, ProposalChooser, Worth
from weft.engine.drafts import DraftRequest, Drafts, NoDrafts
from weft.engine.job import PagedRunner
from weft.engine.schedule import Schedule
from weft.engine.sequence import needed
from weft.engine.ticket import Ticket

DRAFTED = 64  # tokens are proposed up to this many rows per step
_log = logging.getLogger(__name__)


class Proposer:
    """The part of the engine that gives tickets their drafts. The caller records step times in
    `costs`."""

    def __init__(self, runner: PagedRunner, vocab: int, schedule: Schedule, drafts: Drafts) -> None:
        self.drafts, self.costs = drafts, Costs()
        # keyed by the number of proposing sequences, in powers of two
        self._turns: dict[int, ProposalChooser] = {}
        self._now: ProposalChooser | None = None
        self._runner, self._vocab, self._schedule = runner, vocab, schedule

    def propose(self, together: Sequence[tuple[Ticket, int]], left: int) -> None:
        """Gives drafts to the decoding tickets among `together`, pairs of (ticket, tokens it
        feeds). It stops when the step has no more room for rows, `left` of its budget. A source of
        drafts that fails is not asked again."""
        rows = sum(count for _, count in together)
        room = min(DRAFTED - rows, left)
        those = [ticket for ticket, count in together if self._may(ticket, count)]
        self._now = None
        if not those:
            return
        now = self._turns.setdefault(len(those).bit_length(), ProposalChooser())
        if rows == len(together):  # otherwise most of the step's time belongs to prompts
            self._now = now
        if not now.proposes:
            return
        worth = Worth(self.costs, rows, len(those))
        asked: list[tuple[Ticket, DraftRequest]] = []
        for ticket in those:
            tokens, most = ticket.answer.tokens, min(self._most(ticket), room)
            if most <= 0:
                continue
            room -= self._take(ticket, self._forced(ticket, most, worth))
            if not ticket.draft:
                asked.append((ticket, DraftRequest(ticket.number, ticket.job, tokens, most, worth)))
        for (ticket, ask), draft in zip(asked, self._guesses([ask for _, ask in asked])):
            most = min(ask.most, room)
            room -= self._take(ticket, ticket.answer.fitting(draft[: max(most, 0)]))
            ticket.guessed = bool(ticket.draft)

    def took(self, seconds: float, tokens: int) -> None:
        """Records the total seconds of the step that was proposed for, and its tokens."""
        if self._now is not None:
            self._now.note(seconds, tokens)

    def learn(self, ticket: Ticket, right: int) -> None:
        """Records that `right` tokens of a ticket's draft were right."""
        if ticket.guessed:
            self.drafts.learn(ticket.number, len(ticket.draft), right)
        else:
            ticket.trust.learn(len(ticket.draft), right)

    def _may(self, ticket: Ticket, count: int) -> bool:
        """Returns True if a ticket decodes and wants drafts."""
        decodes = count == ticket.place.rest and ticket.answer.finish is None
        whole = ticket.place.tokens is ticket.answer.tokens  # drafts know no others
        return decodes and whole and ticket.job.drafts and self._schedule.shared

    def _most(self, ticket: Ticket) -> int:
        """Returns how many tokens the answer, the context and a step have room for after the next
        one."""
        answer = ticket.answer
        new, context = answer.limit - len(answer.ids), self._runner.context
        place = ticket.place
        return min(new - 1, context - len(place.tokens), self._schedule.most - place.rest)

    @staticmethod
    def _forced(ticket: Ticket, most: int, worth: Worth) -> list[int]:
        """Returns the tokens that a constraint forces, as many as are likely to match the model's
        spelling."""
        if ticket.job.constraint is None or not ticket.trust.asked:
            return []
        draft = ticket.answer.forced(most)
        return draft[: ticket.trust.take(ticket.trust.chances(len(draft)), worth)] if draft else []

    def _guesses(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        if not asked:
            return []
        try:
            return self.drafts.propose(asked)
        except Exception:
            _log.exception("drafts failed, and are not asked again")
            self.drafts = NoDrafts()
            return []

    def _take(self, ticket: Ticket, draft: list[int]) -> int:
        """Makes `draft` follow a ticket's tokens, if it is valid and pages are free for it. Returns
        its length, or 0."""
        if not draft or not 0 <= min(draft) <= max(draft) < self._vocab:
            return 0
        place, pages = ticket.place, self._schedule.pages
        positions = len(place.tokens) + len(draft)
        lacks = needed(positions, pages.size) - len(place.pages)
        spare = max(pages.idle - self._schedule.soon, 0)
        if lacks > spare or not self._schedule.extend(place, positions):
            return 0
        ticket.draft = draft
        return len(draft)
