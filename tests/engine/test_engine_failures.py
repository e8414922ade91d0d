"""The engine where something fails: a device, a constraint, a sink, an interrupt in any place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_kit import PROMPT, check, engine_of, played
from paged_kit import VOCAB, Fake, Only, oracle
from test_engine_schedules import compare

from weft.core.errors import DeviceError, ModelError
from weft.engine.job import Job, Output
from weft.engine.sampler import Sampling


def test_nan_ends_one_job_alone() -> None:
    fake = Fake(2, 16, 4, 32)
    fake.bad = lambda tokens: tokens[0] == 2 and len(tokens) > 6
    engine = engine_of(fake)
    outputs = played(engine, Job((2, 3, 4), 9), Job(PROMPT, 9), Job((2, 2), 9, Sampling(1.0)))
    for bad, made in ((outputs[0], 4), (outputs[2], 5)):
        assert isinstance(bad[-1].error, ModelError) and "not finite" in str(bad[-1].error)
        assert sum(len(o.tokens) for o in bad) == made
    compare(outputs[1], oracle(Job(PROMPT, 9), 32))


class Dead:
    ended = False

    def allowed(self) -> np.ndarray:
        return np.zeros(VOCAB, np.bool_)

    def accept(self, token: int) -> None:
        raise AssertionError


def broken() -> Any:
    raise RuntimeError("no such grammar")


@pytest.mark.parametrize(("rule", "said"), [(Dead, "allows no token"), (broken, "no such grammar")])
def test_a_constraint_that_fails_ends_one_job_alone(rule: Any, said: str) -> None:
    engine = engine_of(Fake(2, 16, 4, 32))
    outputs = played(engine, Job(PROMPT, 9, constraint=rule), Job(PROMPT, 9))
    assert said in str(outputs[0][-1].error)
    compare(outputs[1], oracle(Job(PROMPT, 9), 32))


def test_a_sink_that_fails_is_cancelled() -> None:
    engine = engine_of(Fake(2, 16, 4, 32))
    calls: list[Output] = []

    def fails(output: Output) -> None:
        calls.append(output)
        raise ValueError("gone")

    engine.submit(Job(PROMPT, 9), fails)
    compare(played(engine, Job(PROMPT, 9))[0], oracle(Job(PROMPT, 9), 32))
    assert len(calls) == 2 and calls[-1].finish == "cancelled"


def test_a_lost_device_ends_who_runs_and_nobody_hangs() -> None:
    fake = Fake(2, 16, 4, 32)
    engine = engine_of(fake)
    outputs: list[list[Output]] = [[], [], []]
    for n in range(3):
        engine.submit(Job((n, 2, 3), 9), outputs[n].append)
    engine.step()
    error = DeviceError("the device was lost")

    def lost() -> None:
        raise error

    fake.fails = lost
    engine.step()
    assert [o[-1].error for o in outputs[:2]] == [error, error] and outputs[2] == []
    assert engine.stats.cached == 0
    fake.fails = lambda: None
    while engine.step():
        engine.check()
    compare(outputs[2], oracle(Job((2, 2, 3), 9), 32))
    check(engine, Job((0, 2, 3), 9))


@pytest.mark.parametrize("state", [False, True])
def test_an_interrupt_in_a_step_changes_nothing(state: bool) -> None:
    fake = Fake(2, 16, 4, 32, state)
    engine = engine_of(fake, budget=4)
    outputs: list[list[Output]] = [[], []]
    jobs = [Job(PROMPT, 9), Job((2, 2), 9)]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)

    def interrupted() -> None:
        if np.random.default_rng(fake.most).integers(2):
            fake.most += 1
            raise KeyboardInterrupt
        fake.most += 1

    fake.fails = interrupted
    hits = 0
    while engine.has_work:
        try:
            engine.step()
        except KeyboardInterrupt:
            hits += 1
        engine.check()
    for job, mine in zip(jobs, outputs):
        compare(mine, oracle(job, 32))
    assert hits > 2


def test_an_interrupt_between_the_books_ends_all_and_new_jobs_are_right(monkeypatch: Any) -> None:
    engine = engine_of(Fake(2, 16, 4, 32))
    outputs: list[list[Output]] = [[], [], []]
    for n in range(3):
        engine.submit(Job((n, 2, 3), 9), outputs[n].append)
    engine.step()

    def torn(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine._schedule, "advance", torn)
        engine.step()
    assert all(mine[-1].error is not None for mine in outputs) and not engine.has_work
    check(engine, Job(PROMPT, 9), Job((0, 2, 3), 9))


def test_who_is_preempted_is_moved_and_not_read_again() -> None:
    """Pages go to the host and back, but for those that the cache still has."""
    fake = Fake(3, 24, 4, 64)
    rows: list[int] = []
    step = fake.rows
    fake.rows = lambda ids, *more: rows.append(len(ids)) or step(ids, *more)  # type: ignore
    engine = engine_of(fake)
    jobs = [Job((n, *PROMPT), 40, drafts=False) for n in range(3)]
    check(engine, *jobs)
    assert engine.stats.preempted > 0 and fake.moved > 0
    assert sum(rows) == sum(len(job.prompt) + 39 for job in jobs)


def test_what_cannot_be_copied_is_read_again(monkeypatch: Any) -> None:
    fake = Fake(3, 24, 4, 64)

    def lost(pages: Any) -> Any:
        raise DeviceError("lost")

    monkeypatch.setattr(fake, "read_pages", lost)
    engine = engine_of(fake)
    check(engine, *[Job((n, *PROMPT), 40, drafts=False) for n in range(3)])
    assert engine.stats.preempted > 0


def test_after_a_lost_device_nothing_moved_is_written_back() -> None:
    fake = Fake(3, 24, 4, 64)
    engine = engine_of(fake)
    outputs: list[list[Output]] = [[], [], []]
    for n in range(3):
        engine.submit(Job((n, *PROMPT), 40, drafts=False), outputs[n].append)
    while not fake.moved:
        engine.step()
    waiting = engine._schedule.waiting[0]
    assert waiting.held is not None
    fake.fails = lambda: (_ for _ in ()).throw(DeviceError("lost"))
    engine.step()
    assert waiting.held is None
    fake.fails = lambda: None
    while engine.step():
        engine.check()
    mine = outputs[waiting.number - 1]
    compare(mine, oracle(Job((waiting.number - 1, *PROMPT), 40), 64))


@pytest.mark.parametrize(
    "first", [Job(PROMPT, 4, prompt_logprobs=2, constraint=lambda: Only(0)), Job((7,) * 32, 1)]
)
def test_an_interrupt_does_not_forget_who_had_ended_in_that_step(first: Job) -> None:
    """A job that wants its prompt's logprobs alone is read whole, or one gets its last token where
    the context ends; then comes Ctrl-C."""
    fake = Fake(2, 32, 4, 32)
    engine, outputs = engine_of(fake), [list[Output](), list[Output]()]
    jobs = [first, Job((5,) * 20, 4)]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    fake.fails = fails
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    for _ in range(20):
        engine.step()
    for job, mine in zip(jobs, outputs):
        compare(mine, oracle(job, 32))


def test_an_interrupt_leaves_no_table_unwritten() -> None:
    """Who found its beginning in the cache and was not fed before Ctrl-C, nor right after it."""
    fake = Fake(3, 6, 4, 16)
    engine = engine_of(fake, budget=8)
    head = (4, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8)
    first: list[Output] = []
    engine.submit(Job((*head, 0, 0, 0), 1), first.append)
    while engine.step():
        pass
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    outputs: list[list[Output]] = [[], []]
    jobs = [Job((2, 0, 0), 4, prompt_logprobs=0), Job((*head, 4, 4, 5), 1)]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)
    fake.fails = fails
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.check()
    while engine.step():
        engine.check()
    for job, mine in zip(jobs, outputs):
        compare(mine, oracle(job, 16))
