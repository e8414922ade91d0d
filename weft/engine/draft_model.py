"""Drafts by a small model: greedy answers from an engine of its own.

That engine finds the tokens it has already read in its prefix cache, up to the first rejected one.
So it follows acceptance and rollback without extra bookkeeping. It batches the requests of several
sequences.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from weft.core.errors import WeftError
from weft.engine.costs import Trust
from weft.engine.drafts import DraftRequest
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.host.clock import compiling

MOST = 15  # tokens proposed at once
SALTS = 256  # salts and adapters whose success rates are kept


class ModelDrafts:
    """Drafts computed by `engine`, which is stepped within `turn()`; `clock` returns seconds."""

    def __init__(
        self,
        engine: Engine,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._turn, self._clock = engine, turn, clock
        self._trusts: OrderedDict[tuple[bytes, str], Trust] = OrderedDict()
        self._asked: dict[int, Trust] = {}
        self._each: deque[float] = deque(maxlen=7)  # seconds per token proposed

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        """Returns a draft for each sequence. Raises WeftError if the model fails."""
        return self._answers(asked, [self._count(ask) for ask in asked])

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        if number in self._asked:
            self._asked[number].learn(proposed, accepted)

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        self._asked.pop(number, None)

    def _count(self, ask: DraftRequest) -> int:
        """Returns how many tokens to ask the model for."""
        key = ask.job.salt, ask.job.adapter
        self._asked[ask.number] = trust = self._trusts.setdefault(key, Trust())
        self._trusts.move_to_end(key)
        while len(self._trusts) > SALTS:
            self._trusts.popitem(last=False)
        most = min(ask.most, MOST, self._engine.runner.context - len(ask.tokens))
        if most < 1 or not trust.asked:
            return 0
        each = sorted(self._each)[len(self._each) // 2] if self._each else 0.0
        return trust.take(trust.chances(most), ask.worth, each)

    def _answers(self, asked: Sequence[DraftRequest], counts: Sequence[int]) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in asked]
        if not any(counts):
            return made
        begun, compiled = self._clock(), compiling.total
        tickets, errors = [], list[WeftError]()

        def sink(draft: list[int], output: Output) -> None:
            draft += [chosen.id for chosen in output.tokens]
            errors.extend([output.error] if output.error else [])

        try:
            for ask, count, draft in zip(asked, counts, made):
                if count:
                    tokens, salt = tuple(ask.tokens), ask.job.salt
                    job = Job(tokens, count, salt=salt, drafts=False, decoded=False)
                    tickets.append(self._engine.submit(job, partial(sink, draft)))
            while not all(ticket.done for ticket in tickets):
                with self._turn():
                    self._engine.step()
        finally:
            for ticket in tickets:
                self._engine.cancel(ticket)
        if errors:
            raise errors[0]
        passed = self._clock() - begun - (compiling.total - compiled)
        self._each.append(passed / sum(counts))
        return made
