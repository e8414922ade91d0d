"""Random schedules against the one-by-one oracle: whatever comes, is cut, found, thrown away,
proposed or given up, an answer is what it is alone, and the books agree after every step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from paged_kit import VOCAB, Expected, Fake, Letters, Only, Sliding, logits_of, oracle

from weft.core.errors import DeviceError, LimitError
from weft.engine.draft_model import ModelDrafts
from weft.engine.drafts import DraftRequest, Drafts, Either, NoDrafts
from weft.engine.engine import Engine
from weft.engine.job import Job, Output, SampledToken
from weft.engine.sampler import Sampling
from weft.engine.suffixes import Suffixes

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
    """Proposes what it likes: noise, the truth in whole or in part, ids that are none, more than
    is asked. `truth` is what greedy jobs answer, by their prompts."""

    truth: ClassVar[dict[tuple[int, ...], list[int]]] = {}

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        return [self._one(ask.tokens, ask.most) for ask in asked]

    def _one(self, tokens: Sequence[int], most: int) -> list[int]:
        kind = self._rng.integers(5)
        noise = self._rng.integers(0, VOCAB, most).tolist()
        found = [p for p in self.truth if tuple(tokens[: len(p)]) == p]
        ahead = self.truth[found[0]][len(tokens) - len(found[0]) :] if found else []
        proposals = [noise, ahead, [*ahead[: most // 2], *noise], [VOCAB, -1], [*ahead, *noise]]
        return list(proposals[kind])

    def learn(self, number: int, proposed: int, accepted: int) -> None:
        assert 0 <= accepted <= proposed

    def leave(self, number: int, job: Job, tokens: Sequence[int]) -> None:
        assert tuple(tokens[: len(job.prompt)]) == job.prompt


def small() -> ModelDrafts:
    """A draft model that mostly says what the model would, in an engine with few pages."""
    runner = Fake(4, 16, 2, 32, see=lambda adapter, tokens: logits_of("", tokens[-12:]))
    engine = Engine(runner, VOCAB, drafts=NoDrafts())
    runner.held = lambda page: engine._pages.refs[page]
    return ModelDrafts(engine, clock=count().__next__)


@st.composite
def jobs(draw: Any, context: int, heads: Sequence[tuple[int, ...]], adapters: list[str]) -> Job:
    head = draw(st.sampled_from(heads))
    prompt = (*head, *draw(st.lists(st.integers(0, VOCAB - 1), max_size=6)))[:context]
    if draw(st.integers(0, 9)) == 0:
        prompt = (prompt * context)[:context]
    return Job(
        prompt,
        draw(st.sampled_from([0, 1, 2, 9, 20, 60, 60, 60])),
        draw(SAMPLINGS),
        seed=draw(st.integers(0, 2)),
        index=draw(st.integers(0, 1)),
        eos=draw(st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset([5])])),
        stop=draw(st.sampled_from([(), (), (), ("ab", "cd", "zz", "e."), ("e",)])),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0, 2])),
        adapter=draw(st.sampled_from(adapters)),
        salt=draw(st.sampled_from([b"", b"", b"a"])),
        drafts=draw(st.booleans()),
        decoded=draw(st.booleans()),
        constraint=draw(st.sampled_from([None, None, lambda: Only(0), lambda: Only(6)])),
        shift=draw(st.sampled_from([None, None, None, 0, 3])),
    )


class Schedules(RuleBasedStateMachine):
    heads, adapters = HEADS, ["", "", "x"]
    fake: Any
    see = staticmethod(logits_of)

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.fake = self.runner(data)
        self.context = self.fake.context
        drafts = data.draw(st.sampled_from([Suffixes, Hostile, *self.models()]))()
        budget = data.draw(st.sampled_from([1, 3, 8, 64]))
        ticks = np.random.default_rng(0).random(1 << 16).cumsum()  # steps of any length
        clock = map(float, ticks).__next__
        few = data.draw(st.sampled_from([1, 16]))  # 1: prompts pause, and others go on in between
        self.engine = Engine(
            self.fake, VOCAB, Letters, budget=budget, drafts=drafts, few=few, clock=clock
        )
        self.fake.held = lambda page: self.engine._pages.refs[page]
        self.jobs: list[tuple[Any, Job, list[Output]]] = []
        self.cancelled: set[int] = set()
        self.lost: list[DeviceError] = []
        Hostile.truth = {}

    def runner(self, data: st.DataObject) -> Any:
        """What the engine plays on."""
        slots = data.draw(st.integers(1, 6))
        page = data.draw(st.sampled_from([1, 2, 4, 8]))
        context = data.draw(st.sampled_from([16, 32]))
        pages = data.draw(st.integers(context // page // 2, 3 * context // page // 2))
        state = data.draw(st.integers(0, 5)) == 0
        given = slots, pages, page, context, state
        window = data.draw(st.sampled_from([0, 1, 3, 4, 9]))
        if not window:
            return Fake(*given)
        return Sliding(*given, window=window, rows=data.draw(st.sampled_from([1, 2, 8, 64])))

    def models(self) -> list[Callable[[], Drafts]]:
        """Drafts by a model."""
        return [small, lambda: Either(Suffixes(), small())]

    def truth(self, job: Job) -> Expected:
        return oracle(job, self.context, self.see)

    @precondition(lambda self: len(self.jobs) < 14)
    @rule(data=st.data(), count=st.integers(1, 3))
    def submit(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.submit_one(data)

    def submit_one(self, data: st.DataObject) -> None:
        job, outputs = data.draw(jobs(self.context, self.heads, self.adapters)), []
        try:
            ticket = self.engine.submit(job, outputs.append)
        except LimitError:
            limit = min(job.max_new_tokens, self.context - len(job.prompt) + 1)
            last = len(job.prompt) + max(limit, 1) - 1
            assert -(-last // self.fake.page) > self.fake.pages
            return
        self.jobs.append((ticket, job, outputs))
        if not job.adapter and not job.sampling.temperature:
            Hostile.truth[job.prompt] = [t.id for t in self.truth(job).tokens]

    @precondition(lambda self: self.jobs and not self.lost)
    @rule(after=st.integers(0, 6), stop=st.booleans())
    def fail(self, after: int, stop: bool) -> None:
        """The device is lost once, after some calls; or somebody presses Ctrl-C in one."""
        left = [after]

        def fails() -> None:
            left[0] -= 1
            if left[0] == -1:
                if stop:
                    raise KeyboardInterrupt
                self.lost.append(DeviceError("lost"))
                raise self.lost[-1]

        self.fake.fails = fails

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), sure=st.integers(0, 2))
    def cancel(self, data: st.DataObject, sure: int) -> None:
        if sure:  # seldom
            return
        ticket = data.draw(st.sampled_from([ticket for ticket, _, _ in self.jobs]))
        self.engine.cancel(ticket)
        self.cancelled.add(ticket.number)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            try:
                more = self.engine.step()
            except KeyboardInterrupt:
                more = self.engine.has_work
            assert more == self.engine.has_work == any(not t.done for t, _, _ in self.jobs)
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.fake.fails = lambda: None
        for _ in range(4000):  # far more than every token read and made again by itself
            if not self.engine.step():
                break
            self.engine.check()
        assert not self.engine.has_work, "it does not come to an end"
        assert self.engine.stats.held == 0
        for ticket, job, outputs in self.jobs:
            compare(outputs, self.truth(job), ticket.number in self.cancelled, self.lost)


def compare(
    outputs: list[Output], want: Expected, cancelled: bool = False, lost: Sequence[Any] = ()
) -> None:
    """Joined outputs are the answer; a cancelled or lost job's are its beginning, or whole."""
    last = outputs[-1]
    assert last.usage is not None and (last.error is None or last.error in lost)
    assert all(o.finish is None and o.usage is None for o in outputs[:-1])
    text = "".join(o.text for o in outputs)
    tokens = tuple(t for o in outputs for t in o.tokens)
    prompts = [o.prompt for o in outputs if o.prompt]
    if last.finish == "cancelled" or last.error is not None:
        assert cancelled or last.error
        assert want.text.startswith(text) and len(tokens) <= len(want.tokens)
        same(tokens, want.tokens[: len(tokens)])
        assert len(prompts) <= 1
        return
    assert (text, last.finish) == (want.text, want.finish)
    same(tokens, want.tokens)
    assert len(prompts) == bool(want.prompt)
    same(prompts[0] if prompts else (), want.prompt)
    assert last.usage.new == len(want.tokens)


def same(got: Sequence[SampledToken], want: Sequence[SampledToken]) -> None:
    assert [t.id for t in got] == [t.id for t in want]
    for g, w in zip(got, want):
        assert (g.logprob is None) == (w.logprob is None)
        np.testing.assert_allclose(g.logprob or 0, w.logprob or 0, atol=1e-12)
        assert [i for i, _ in g.top] == [i for i, _ in w.top]
        np.testing.assert_allclose([p for _, p in g.top], [p for _, p in w.top], atol=1e-12)


COMMON = {
    "stateful_step_count": 25,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}
Schedules.TestCase.settings = settings(max_examples=40, **COMMON)
TestSchedules = Schedules.TestCase


@pytest.mark.slow
def test_ten_thousand_schedules() -> None:
    """WEFT_SCHEDULES says how many; others each time."""
    from hypothesis.stateful import run_state_machine_as_test

    count = int(os.environ.get("WEFT_SCHEDULES", "10000"))
    how = settings(max_examples=count, derandomize=False, database=None, **COMMON)
    run_state_machine_as_test(Schedules, settings=how)
