"""Drafts: who proposes what, when it pays, and that answers stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from paged_kit import VOCAB, Fake, Letters, Only, logits_of, oracle
from test_engine_schedules import compare

from weft.core.errors import DeviceError
from weft.engine.costs import Costs, Trust, Worth
from weft.engine.draft_model import ModelDrafts
from weft.engine.drafts import DraftRequest, Drafts, Either, NoDrafts
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.engine.sampler import Sampling
from weft.engine.suffixes import KEPT, POOLS, Suffixes

CONTEXT = 128
JOBS = [
    Job((1, 7, 3, 9, 7), 100),
    Job((1, 2, 3), 100, Sampling(0.8, top_k=8), seed=3),
    Job((1, 2, 3), 100, Sampling(1.0, repetition_penalty=1.3), seed=4, salt=b"b"),
]


def asked(tokens: Sequence[int], most: int = 8, number: int = 1, **of_job: Any) -> DraftRequest:
    """Where a step of any size takes a second."""
    costs = Costs()
    for rows in (1, 16):
        costs.note(rows, 1.0)
    return DraftRequest(
        number, Job(tuple(tokens), 8, **of_job), list(tokens), most, Worth(costs, 1, 1)
    )


def engine_of(drafts: Drafts, slots: int = 3, **options: Any) -> Engine:
    """Where a step of any size takes a second."""
    fake = Fake(slots, 40 * slots, 4, CONTEXT)
    engine = Engine(fake, VOCAB, Letters, drafts=drafts, clock=count().__next__, **options)
    fake.held = lambda page: engine._pages.refs[page]
    return engine


def played(engine: Engine, *jobs: Job) -> Engine:
    outputs: list[list[Output]] = [[] for _ in jobs]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)
    while engine.step():
        engine.check()
    for job, mine in zip(jobs, outputs):
        compare(mine, oracle(job, CONTEXT))
    return engine


def reader(right: float = 1.0, slots: int = 3) -> tuple[ModelDrafts, Fake]:
    """A draft model that says what the model would, that often."""

    def see(adapter: str, tokens: Sequence[int]) -> np.ndarray:
        out = logits_of(adapter, tokens)
        return out if hash(tuple(tokens)) % 100 < 100 * right else out[::-1].copy()

    fake = Fake(slots, 40 * slots, 4, CONTEXT, see=see)
    engine = Engine(fake, VOCAB, drafts=NoDrafts())
    fake.held = lambda page: engine._pages.refs[page]
    return ModelDrafts(engine, clock=lambda: 0.0), fake


# -- what pays


def test_rows_that_cost_nothing_pay_and_others_do_not() -> None:
    costs = Costs()
    assert Worth(costs, 1, 1).best([1.0]) == 0  # nothing is known yet
    costs.note(1, 1.0)
    assert Worth(costs, 1, 1).best([0.9] * 9) == 3  # four times the rows seen are tried
    for rows, seconds in ((2, 1.0), (4, 1.0), (8, 1.0), (16, 3.0)):
        costs.note(rows, seconds)
    assert Worth(costs, 1, 1).best([0.9] * 15) == 15
    assert Worth(costs, 1, 1).best([0.2] * 15) == 7
    assert Worth(costs, 1, 1).best([0.9, 0.4, 0.1], each=0.3) == 2
    assert Worth(costs, 8, 8).best([0.9]) == 0  # each saves an eighth of a step, and costs a fourth


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 10)), min_size=1, max_size=30))
def test_costs_lie_between_what_was_seen(steps: list[tuple[int, float]]) -> None:
    costs = Costs()
    for rows, seconds in steps:
        costs.note(rows, seconds)
    seen = [seconds for _, seconds in steps]
    most = max(rows for rows, _ in steps)
    for rows in range(1, most + 1):
        assert min(seen) - 1e-9 <= costs.of(rows) <= max(seen) + 1e-9


def test_who_is_wrong_is_asked_ever_more_seldom_and_comes_back() -> None:
    trust, worth = Trust(), asked([1]).worth
    slow = Costs()
    for rows in (1, 2, 4, 8):
        slow.note(rows, float(rows))

    def tokens(n: int, right: bool, worth: Worth) -> int:
        times = 0
        for _ in range(n):
            if trust.asked:
                proposed = trust.take(trust.chances(7), worth)
                trust.learn(proposed, proposed if right else 0)
                times += 1
        return times

    assert tokens(400, False, worth) < 15
    assert tokens(400, True, worth) > 300
    trust = Trust()
    assert tokens(400, True, Worth(slow, 1, 1)) < 15  # right, and dear


# -- texts


def test_the_most_frequent_goes_on_from_the_longest_suffix() -> None:
    text = [5, 1, 2, 3, 9, 9, 6, 1, 2, 3, 7, 7, 6, 1, 2, 3, 7, 8, 6, 1, 2, 3]
    made = Suffixes().propose([asked(text)])[0]
    assert made[0] == 7 and made == text[10 : 10 + len(made)][:1] + made[1:]
    assert Suffixes().propose([asked([5, 1, 2, 3, 9, 9, 4, 5, 1, 2, 3], 2)]) == [[9, 9]]
    assert Suffixes().propose([asked([1, 2, 3, 4, 5, 6])]) == [[]]
    assert Suffixes().propose([asked([1, 2, 1, 2, 1, 2, 1], 6)]) == [[2, 1, 2, 1, 2, 1]]


def test_earlier_answers_are_found_by_the_same_salt_and_adapter_alone() -> None:
    drafts = Suffixes()
    answer = [*range(10, 30)]
    drafts.leave(1, Job((8, 9), 30, salt=b"a", adapter="x"), [8, 9, *answer])
    tokens = [3, 10, 11, 12]
    for salt, adapter in ((b"", ""), (b"a", ""), (b"b", "x")):
        assert drafts.propose([asked(tokens, salt=salt, adapter=adapter)]) == [[]]
    assert drafts.propose([asked(tokens, 4, 2, salt=b"a", adapter="x")]) == [[13, 14, 15, 16]]
    drafts.leave(3, Job((8, 9), 30, salt=b"c", drafts=False), [8, 9, *answer])
    assert drafts.propose([asked(tokens, salt=b"c")]) == [[]]


def test_memory_is_bounded() -> None:
    drafts = Suffixes()
    for n in range(3 * POOLS):
        drafts.leave(n, Job((1,), 9, salt=bytes([n])), [1, *range(2 * KEPT)])
    assert len(drafts._pools) == POOLS
    pool = drafts._pools[bytes([3 * POOLS - 1]), ""]
    for n in range(9):
        pool.add(range(n, n + KEPT // 3))
        assert len(pool._tokens) == len(pool.text.tokens) <= KEPT
    assert not drafts._own


def test_ended_jobs_leave_nothing_but_their_pool() -> None:
    drafts = Suffixes()
    played(engine_of(drafts), *JOBS, Job((1, 2), 50, adapter="x"), Job((1, 2), 50, drafts=False))
    assert not drafts._own and set(drafts._pools) == {(b"", ""), (b"b", ""), (b"", "x")}


# -- a model


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_a_model_changes_no_token(right: float) -> None:
    drafts, _ = reader(right)
    engine = played(engine_of(drafts), *JOBS, Job((1, 2), 50, constraint=lambda: Only(30)))
    stats = engine.stats
    assert stats.accepted <= stats.drafted and (stats.accepted > 0 or not right)
    plain = played(engine_of(NoDrafts()), *JOBS, Job((1, 2), 50, constraint=lambda: Only(30)))
    assert right < 1 or stats.steps < plain.stats.steps / 2


@pytest.mark.parametrize("shift", [0, 3])
def test_no_draft_outlives_its_step(shift: int) -> None:
    """What a step fed ahead does not meet the logits of a context that is read again."""
    drafts, _ = reader()
    stats = played(engine_of(drafts), Job((1, 7, 3, 9, 7), 600, shift=shift)).stats
    assert stats.drafted == stats.accepted > 0


def test_a_model_reads_each_token_once_and_for_all_sequences_together() -> None:
    drafts, fake = reader()
    rows: list[int] = []
    step = fake.rows
    fake.rows = lambda ids, *more: rows.append(len(ids)) or step(ids, *more)  # type: ignore
    engine = played(engine_of(drafts), *[Job((n, 2, 3), 60) for n in range(3)])
    assert sum(rows) < 3 * 63 + engine.stats.drafted
    assert max(rows) >= 3 and len(rows) < 100


def test_texts_go_before_the_model() -> None:
    drafts, _ = reader()
    both = Either(Suffixes(), drafts)
    again, new = asked([5, 1, 2, 3, 9, 9, 4, 5, 1, 2, 3], 2), asked([1, 2, 3, 4, 5, 6], 2, 2)
    first, second = both.propose([again, new])
    assert first == [9, 9] and len(second) == 2
    assert drafts._engine.stats.new_tokens == 2
    both.learn(1, 2, 0)
    assert drafts._asked[2]._wrong == 1.0  # the text was wrong, not the model
    played(engine_of(both), *JOBS)


def test_a_model_with_a_shorter_context_stops_there() -> None:
    drafts, fake = reader()
    fake.context = 20
    engine = played(engine_of(drafts), *JOBS)
    assert engine.stats.drafted > 0 and engine.drafts is drafts


@pytest.mark.parametrize("after", [0, 5])
def test_a_model_that_fails_is_not_asked_again(after: int, caplog: Any) -> None:
    drafts, fake = reader()
    left = [after]

    def fails() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise DeviceError("lost")

    fake.fails = fails
    engine = played(engine_of(drafts), *JOBS)
    assert left[0] == -1 and isinstance(engine.drafts, NoDrafts)
    assert "not asked again" in caplog.text


def test_an_interrupt_while_drafting_leaves_jobs_as_they_were() -> None:
    drafts, fake = reader()
    left = [3]

    def fails() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    fake.fails = fails
    engine, outputs = engine_of(drafts), list[Output]()
    engine.submit(JOBS[0], outputs.append)
    with pytest.raises(KeyboardInterrupt):
        while engine.step():
            pass
    while engine.step():
        engine.check()
    compare(outputs, oracle(JOBS[0], CONTEXT))


# -- constraints


def test_what_is_forced_is_proposed_and_what_does_not_fit_is_not() -> None:
    class Even(Only):
        def forced(self) -> list[int]:
            return []

    for rule in (Only, Even):
        drafts, _ = reader()
        jobs = [Job((1, 2, n), 60, constraint=lambda: rule(50)) for n in range(3)]  # noqa: B023
        stats = played(engine_of(drafts), *jobs).stats
        assert stats.drafted > 0
