"""Random schedules against the one-by-one oracle: whatever comes, is cut, found, thrown away,
proposed or given up, an answer is what it is alone, and the books agree after every step."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from paged_kit import VOCAB, Expected, Fake, Letters, Only, oracle

from weft.core.errors import LimitError
from weft.engine.drafts import Lookup
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.engine.sampler import Sampling

HEADS = [(1, 7, 3, 9, 7, 3, 9, 7, 3), (4, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8), (2,)]
SAMPLINGS = st.sampled_from(
    [
        Sampling(),
        Sampling(),
        Sampling(1.0),
        Sampling(0.8, top_k=8, top_p=0.9),
        Sampling(1.2, min_p=0.05, repetition_penalty=1.2),
        Sampling(0.0, presence_penalty=0.7, frequency_penalty=0.3),
        Sampling(0.7, logit_bias=((3, 4.0), (9, -50.0))),
    ]
)


class Hostile:
    """Proposes what it likes: noise, the truth in part, ids that are none, more than is asked."""

    truth: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def propose(self, tokens: Any, most: int) -> list[int]:
        kind = self._rng.integers(4)
        noise = [int(t) for t in self._rng.integers(0, VOCAB, most)]
        found = [t for p, t in self.truth.items() if tuple(tokens[: len(p)]) == p]
        right = [t[len(tokens) - len(p) :] for p, t in self.truth.items() if p == tokens[: len(p)]]
        ahead = list(right[0] if right and found else ())
        if kind == 0:
            return noise
        if kind == 1:
            return [*ahead[: most // 2], *noise]
        return [VOCAB, -1] if kind == 2 else [*ahead, *noise]

    def learn(self, proposed: int, accepted: int) -> None:
        assert 0 <= accepted <= proposed


@st.composite
def jobs(draw: Any, context: int) -> Job:
    head = draw(st.sampled_from(HEADS))
    prompt = (*head, *draw(st.lists(st.integers(0, VOCAB - 1), max_size=6)))[:context]
    if draw(st.integers(0, 9)) == 0:
        prompt = (prompt * context)[:context]
    return Job(
        prompt,
        draw(st.sampled_from([0, 1, 2, 5, 9, 20, 60])),
        draw(SAMPLINGS),
        seed=draw(st.integers(0, 2)),
        index=draw(st.integers(0, 1)),
        eos=draw(st.sampled_from([frozenset(), frozenset([5]), frozenset([0, 31])])),
        stop=draw(st.sampled_from([(), (), ("e",), ("ab", "c d", "zz"), ("éa", "h")])),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0, 2])),
        adapter=draw(st.sampled_from(["", "", "x"])),
        salt=draw(st.sampled_from([b"", b"", b"a"])),
        drafts=draw(st.booleans()),
        decoded=draw(st.booleans()),
        constraint=draw(st.sampled_from([None, None, lambda: Only(0), lambda: Only(6)])),
    )


class Schedules(RuleBasedStateMachine):
    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        slots = data.draw(st.integers(1, 5))
        page = data.draw(st.sampled_from([1, 2, 4, 8]))
        context = data.draw(st.sampled_from([16, 32]))
        pages = data.draw(st.integers(context // page // 2, 3 * context // page))
        state = data.draw(st.integers(0, 5)) == 0
        self.context = context
        self.fake = Fake(slots, pages, page, context, state)
        drafter = data.draw(st.sampled_from([Lookup, Hostile]))
        budget = data.draw(st.sampled_from([1, 3, 8, 64]))
        self.engine = Engine(self.fake, VOCAB, Letters, budget=budget, drafter=drafter)
        self.fake.held = lambda page: self.engine._pages.refs[page]
        self.jobs: list[tuple[Any, Job, list[Output]]] = []
        self.cancelled: set[int] = set()

    @precondition(lambda self: len(self.jobs) < 14)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        job, outputs = data.draw(jobs(self.context)), list[Output]()
        try:
            ticket = self.engine.submit(job, outputs.append)
        except LimitError:
            limit = min(job.max_new_tokens, self.context - len(job.prompt) + 1)
            last = len(job.prompt) + max(limit, 1) - 1
            assert -(-last // self.fake.page) > self.fake.pages
            return
        self.jobs.append((ticket, job, outputs))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([ticket for ticket, _, _ in self.jobs]))
        self.engine.cancel(ticket)
        self.cancelled.add(ticket.number)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            more = self.engine.step()
            assert more == self.engine.has_work == any(not t.done for t, _, _ in self.jobs)
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(4000):  # far more than every token read and made again by itself
            if not self.engine.step():
                break
            self.engine.check()
        assert not self.engine.has_work, "it does not come to an end"
        assert self.engine.stats.held == 0
        for ticket, job, outputs in self.jobs:
            compare(outputs, oracle(job, self.context), ticket.number in self.cancelled)


def compare(outputs: list[Output], want: Expected, cancelled: bool = False) -> None:
    """Joined outputs are the answer; a cancelled job's are its beginning, or whole."""
    last = outputs[-1]
    assert last.error is None and last.usage is not None
    assert all(o.finish is None and o.usage is None for o in outputs[:-1])
    text = "".join(o.text for o in outputs)
    tokens = tuple(t for o in outputs for t in o.tokens)
    prompts = [o.prompt for o in outputs if o.prompt]
    if last.finish == "cancelled":
        assert cancelled
        assert want.text.startswith(text) and want.tokens[: len(tokens)] == tokens
        assert prompts in ([], [want.prompt])
        return
    assert (text, last.finish) == (want.text, want.finish)
    assert [t.id for t in tokens] == [t.id for t in want.tokens]
    for got, expected in zip((*tokens, *sum(prompts, ())), (*want.tokens, *want.prompt)):
        assert got.id == expected.id and (got.logprob is None) == (expected.logprob is None)
        np.testing.assert_allclose(got.logprob or 0, expected.logprob or 0, atol=1e-12)
        assert [i for i, _ in got.top] == [i for i, _ in expected.top]
        np.testing.assert_allclose([p for _, p in got.top], [p for _, p in expected.top])
    assert prompts == ([want.prompt] if want.prompt else []) or len(prompts) == 1
    assert sum(map(len, prompts)) == len(want.prompt)
    assert last.usage.new == len(want.tokens)


COMMON = {
    "stateful_step_count": 25,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}
Schedules.TestCase.settings = settings(max_examples=200, **COMMON)
TestSchedules = Schedules.TestCase


@pytest.mark.slow
def test_ten_thousand_schedules() -> None:
    """WEFT_SCHEDULES says how many; others each time."""
    from hypothesis.stateful import run_state_machine_as_test

    count = int(os.environ.get("WEFT_SCHEDULES", "10000"))
    how = settings(max_examples=count, derandomize=False, database=None, **COMMON)
    run_state_machine_as_test(Schedules, settings=how)
