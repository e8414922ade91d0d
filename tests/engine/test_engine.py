"""The engine case by case: what other engines got wrong, and what may fail."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from engine_kit import PROMPT, check, engine_of
from paged_kit import VOCAB, Fake, Only, logits_of, oracle
from test_engine_schedules import compare

from weft.core.errors import BusyError, DeviceError, LimitError, UsageError
from weft.engine.job import Job, Output
from weft.engine.sampler import Sampling


def test_a_second_turn_finds_prompt_and_answer() -> None:
    engine = engine_of(Fake(2, 16, 4, 32))
    first = check(engine, Job(PROMPT, 10))[0]
    answer = tuple(t.id for o in first for t in o.tokens)
    second = check(engine, Job((*PROMPT, *answer, 5, 6), 4))[0]
    assert second[-1].usage is not None and second[-1].usage.cached == len(PROMPT) + 10 - 1
    assert engine.stats.cached_tokens == 17 and engine.stats.held == 0


def test_a_prompt_that_is_all_there_is_fed_its_last_token() -> None:
    engine = engine_of(Fake(2, 16, 4, 32))
    for cached in (0, 7, 7):
        outputs = check(engine, Job(PROMPT, 1))[0]
        assert outputs[-1].usage is not None and outputs[-1].usage.cached == cached


@pytest.mark.parametrize("other", [{"salt": b"b"}, {"adapter": "x"}])
def test_another_salt_or_adapter_finds_nothing(other: dict[str, Any]) -> None:
    engine = engine_of(Fake(2, 16, 4, 32))
    check(engine, Job(PROMPT, 4, salt=b"a"))
    outputs = check(engine, Job(PROMPT, 4, **{"salt": b"a", **other}))[0]
    assert outputs[-1].usage is not None and outputs[-1].usage.cached == 0


def test_one_being_admitted_preempts_nobody_and_is_not_preempted() -> None:
    """Three that each fill most of the pool: the second waits until the first has ended."""
    engine = engine_of(Fake(3, 9, 4, 32))
    jobs = [Job((n, *PROMPT), 20) for n in range(3)]
    check(engine, *jobs)
    assert engine.stats.preempted > 0  # all started, and pages ran out as they grew
    tight = engine_of(Fake(3, 8, 4, 32))
    check(tight, *[Job(PROMPT * 3, 8, salt=bytes([n])) for n in range(3)])
    assert tight.stats.preempted == 0


def test_cancelled_while_preempted() -> None:
    engine = engine_of(Fake(3, 6, 4, 32))
    outputs: list[list[Output]] = [[], [], []]
    tickets = [engine.submit(Job((n, 2, 3), 18), outputs[n].append) for n in range(3)]
    while not engine.stats.preempted:
        engine.step()
    waiting = [t for t in tickets if t.place.slot is None]
    engine.cancel(waiting[0])
    engine.cancel(waiting[0])
    while engine.step():
        engine.check()
    for ticket, mine in zip(tickets, outputs):
        compare(mine, oracle(ticket.job, 32), ticket is waiting[0])
    assert outputs[waiting[0].number - 1][-1].finish == "cancelled"


def test_cancelled_before_it_entered_and_after_it_ended() -> None:
    engine = engine_of(Fake(1, 4, 4, 16))
    mine: list[Output] = []
    ticket = engine.submit(Job(PROMPT, 4), mine.append)
    engine.cancel(ticket)
    assert not engine.step() and mine[-1].finish == "cancelled" and mine[-1].usage is not None
    done = engine.submit(Job(PROMPT, 2), mine.append)
    while engine.step():
        pass
    engine.cancel(done)
    assert not engine.has_work and mine[-1].finish == "length"


@pytest.mark.parametrize("job", [
    Job(PROMPT, 0), Job(PROMPT, 0, prompt_logprobs=2), Job((3,), 1),
    Job((3,), 0, prompt_logprobs=0),
    Job((5,) * 16, 9), Job((5,) * 16, 0), Job((5,) * 15, 9, prompt_logprobs=1),
    Job(PROMPT, 4, constraint=lambda: Only(0)), Job(PROMPT, 9, constraint=lambda: Only(2)),
])  # fmt: skip
def test_edges(job: Job) -> None:
    for page in (1, 4, 16):
        check(engine_of(Fake(2, 32 // page, page, 16)), job, job)


def test_any_number_of_sequences() -> None:
    """More than 64 at once, and more than there are slots."""
    fake = Fake(80, 320, 4, 16)
    check(engine_of(fake), *[Job((n % VOCAB, n // VOCAB), 5, index=n) for n in range(100)])
    assert fake.most >= 80


def test_a_long_prompt_does_not_hold_up_those_that_decode() -> None:
    fake = Fake(2, 64, 4, 128)
    engine = engine_of(fake, budget=8)
    short: list[Output] = []
    engine.submit(Job((1, 2), 30), short.append)
    engine.step()
    engine.submit(Job((5,) * 100, 1), lambda output: None)
    for n in range(10):
        engine.step()
        assert sum(len(o.tokens) for o in short) >= n
    assert fake.most <= 8


def test_prompts_are_read_in_smaller_parts_beside_those_that_decode() -> None:
    fake = Fake(3, 64, 4, 128)
    engine = engine_of(fake, budget=64, beside=8)
    engine.submit(Job((5,) * 60, 3, drafts=False), lambda output: None)
    engine.step()
    assert fake.most == 60  # nobody waits
    fake.most = 0
    engine.submit(Job((6,) * 60, 1), lambda output: None)
    engine.step()
    engine.step()
    assert fake.most <= 9
    engine.step()  # the first has ended
    assert fake.most == 60 - 2 * 8


def test_priorities_order_the_waiting_jobs_of_one_salt() -> None:
    engine = engine_of(Fake(1, 32, 4, 16))
    order: list[tuple[bytes, int]] = []
    for salt, priority in ((b"a", 0), (b"a", 5), (b"b", 9), (b"a", -1), (b"a", 5), (b"b", 2)):

        def ended(output: Output, mine: tuple[bytes, int] = (salt, priority)) -> None:
            if output.finish is not None:
                order.append(mine)

        engine.submit(Job((1, 2, 3), 2, salt=salt, priority=priority), ended)
    while engine.step():
        engine.check()
    assert [p for s, p in order if s == b"a"] == [-1, 0, 5, 5]
    assert [p for s, p in order if s == b"b"] == [2, 9]


def test_salts_take_turns() -> None:
    """One that asks for much does not keep another waiting."""
    engine = engine_of(Fake(2, 32, 4, 16))
    order: list[bytes] = []

    def noted(salt: bytes) -> Any:
        return lambda output: order.append(salt) if output.usage else None

    for _ in range(6):
        engine.submit(Job(PROMPT, 3, salt=b"much"), noted(b"much"))
    engine.submit(Job(PROMPT, 3, salt=b"little"), noted(b"little"))
    while engine.step():
        pass
    assert order.index(b"little") <= 2


def test_many_salts_of_one_owner_are_one() -> None:
    """A key gets no more turns by a new cache_salt with each request."""
    engine = engine_of(Fake(2, 32, 4, 16))
    order: list[bytes] = []
    much, little = b"m" * 32, b"l" * 32
    for salt in [*(much + bytes([n]) for n in range(6)), little]:
        engine.submit(
            Job(PROMPT, 3, salt=salt),
            lambda output, salt=salt: order.append(salt) if output.usage else None,
        )
    while engine.step():
        pass
    assert order.index(little) <= 2


def test_one_owner_cannot_keep_the_others_out_of_the_queue() -> None:
    engine = engine_of(Fake(1, 2, 4, 32), queue=16)
    much, little = b"m" * 32, b"l" * 32
    for n in range(17):
        engine.submit(Job((1,), 1, salt=much + bytes([n])), lambda output: None)
    with pytest.raises(BusyError, match="17 of them of this key"):
        engine.submit(Job((1,), 1, salt=much), lambda output: None)
    for _ in range(2):
        engine.submit(Job((1,), 1, salt=little), lambda output: None)
    with pytest.raises(BusyError, match="2 of them of this key"):
        engine.submit(Job((1,), 1, salt=little), lambda output: None)
    for n in range(14):
        engine.submit(Job((1,), 1, salt=bytes([n]) * 32), lambda output: None)
    with pytest.raises(BusyError, match="33 jobs wait"):
        engine.submit(Job((1,), 1, salt=b"x" * 32), lambda output: None)


def test_what_cannot_be_is_refused_at_once() -> None:
    engine = engine_of(Fake(1, 2, 4, 32), queue=1)
    for job, kind, said in [
        (Job((), 1), UsageError, "empty"),
        (Job((VOCAB,), 1), UsageError, "outside the vocabulary"),
        (Job((-1,), 1), UsageError, "outside the vocabulary"),
        (Job((1,), 1, Sampling(logit_bias=((VOCAB, 1.0),))), UsageError, "outside"),
        (Job((1,), -1), UsageError, "max_new_tokens is -1"),
        (Job((1,), 1, logprobs=VOCAB + 1), UsageError, "logprobs"),
        (Job((1,), 1, adapter="none"), UsageError, "unknown adapter"),
        (Job((1,) * 33, 1), LimitError, "the context holds 32"),
        (Job((1,) * 5, 5), LimitError, "take 3 pages of 4; there are 2"),
    ]:
        with pytest.raises(kind, match=said):
            engine.submit(job, lambda output: None)
    for _ in range(2):  # one has a place at the next step, one may wait
        engine.submit(Job((1,), 1), lambda output: None)
    with pytest.raises(BusyError, match="2 jobs wait"):
        engine.submit(Job((1,), 1), lambda output: None)
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.submit(Job((1,), 1), lambda output: None)
    assert not engine.has_work


def test_state_is_read_from_its_beginning_and_shares_nothing() -> None:
    engine = engine_of(Fake(2, 8, 4, 32, state=True), budget=4)
    check(engine, Job(PROMPT, 12), Job(PROMPT, 12), Job((*PROMPT, 1), 12))
    assert engine.stats.cached_tokens == engine.stats.drafted == 0 < engine.stats.preempted


def test_proposals_are_right_where_a_text_repeats_itself() -> None:
    engine = engine_of(Fake(1, 64, 4, 256))
    job = Job((1, 7, 3, 9, 7) * 3, 100)
    steps = [check(engine, Job(job.prompt, 100, drafts=drafts))[0] for drafts in (False, True)]
    assert len(steps[1]) < len(steps[0])
    assert steps[1][-1].usage is not None and steps[1][-1].usage.drafted > 0


def test_jobs_from_many_threads() -> None:
    engine = engine_of(Fake(4, 32, 4, 32))
    outputs: dict[int, list[Output]] = {n: [] for n in range(24)}

    def ask(n: int) -> None:
        for i in range(n, 24, 4):
            engine.submit(Job((i % VOCAB, 3), 9), outputs[i].append)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while engine.step() or any(t.is_alive() for t in threads):
        pass
    for n, mine in outputs.items():
        compare(mine, oracle(Job((n % VOCAB, 3), 9), 32))


def test_logits_are_read_block_by_block_beside_jobs(monkeypatch: Any) -> None:
    monkeypatch.setattr("weft.engine.engine.SCORED", 4)
    engine = engine_of(Fake(1, 4, 4, 16))
    mine: list[Output] = []
    engine.submit(Job((1, 2, 3), 5), mine.append)
    engine.step()
    ids = list(range(10))
    want = np.stack([logits_of("", ids[: n + 1]) for n in range(10)])
    np.testing.assert_array_equal(np.concatenate(list(engine.read(ids))), want)
    np.testing.assert_array_equal(np.concatenate(list(engine.read(ids, 3))), want[3:])
    blocks = engine.read(ids)
    np.testing.assert_array_equal(next(blocks), want[:4])
    while engine.step():
        engine.check()
    compare(mine, oracle(Job((1, 2, 3), 5), 16))
    with pytest.raises(UsageError, match="came between"):
        next(blocks)
    engine.check()


def test_prompts_with_one_beginning_that_come_together_read_it_once() -> None:
    """The first one reads it; the others find its pages, and answer as alone."""
    fake = Fake(4, 64, 4, 64)
    head = tuple(n % VOCAB for n in range(30))
    jobs = [Job((*head, n), 6) for n in range(4)]
    engine = engine_of(fake, budget=256)
    outputs = check(engine, *jobs)
    cached = sorted(output[-1].usage.cached for output in outputs)
    assert cached == [0, 28, 28, 28]  # pages have 4 positions


def test_a_prompt_that_parts_within_a_page_copies_it() -> None:
    """Another text continued that page, which it needs itself: nothing is read again."""
    engine = engine_of(Fake(2, 64, 16, 64))
    prompt = tuple(n % VOCAB for n in range(24))
    check(engine, Job(prompt, 20))
    again = check(engine, Job(prompt, 4), Job((*prompt[:20], 3, 2), 4))
    assert [output[-1].usage.cached for output in again] == [23, 20]


def test_a_page_that_cannot_be_copied_is_read_again() -> None:
    fake = Fake(2, 64, 16, 64)

    def lost(pages: Any) -> Any:
        raise DeviceError("lost")

    fake.read_pages = lost  # type: ignore
    engine = engine_of(fake)
    prompt = tuple(n % VOCAB for n in range(24))
    check(engine, Job(prompt, 20))
    (again,) = check(engine, Job(prompt, 4))
    assert again[-1].usage.cached == 16
