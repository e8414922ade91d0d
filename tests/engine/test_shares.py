"""A long prompt beside others: each gets its share of the rows. Counted in steps."""

from __future__ import annotations

import math

import pytest
from engine_kit import engine_of
from paged_kit import Fake, oracle
from test_engine_schedules import compare

from weft.engine.engine import Engine
from weft.engine.job import Job, Output

ROWS, LONG, SHORT = 32, 960, 20


def made() -> Engine:
    """An engine whose steps have few rows, and as many beside streams."""
    return engine_of(Fake(4, 500, 8, 1024), budget=ROWS, beside=ROWS, clock=lambda: 0.0)


def job(owner: str, tokens: int, new: int = 1, priority: int = 0, seed: int = 0) -> Job:
    prompt = tuple((n * 7 + len(owner) + tokens + seed) % 11 + 1 for n in range(tokens))
    return Job(prompt, new, salt=owner.encode().ljust(32), priority=priority, drafts=False)


def ask(engine: Engine, job: Job) -> list[Output]:
    outputs: list[Output] = []
    engine.submit(job, outputs.append)
    return outputs


def steps(engine: Engine, outputs: list[Output]) -> int:
    """How many steps are played until a job has an output."""
    count = 0
    while not outputs:
        engine.step()
        engine.check()
        count += 1
    return count


@pytest.mark.parametrize("streams", [0, 1])
@pytest.mark.parametrize("owner", ["another", "long's"])
def test_a_short_prompt_beside_a_long_one(owner: str, streams: int) -> None:
    """It waits for no more than its own rows need at half of each step, whoever asks."""
    engine = made()
    for _ in range(streams):
        steps(engine, ask(engine, job("stream", 2, 500)))
    long = ask(engine, job("long's", LONG))
    engine.step()
    short = job(owner, SHORT)
    found = ask(engine, short)
    assert steps(engine, found) <= math.ceil(SHORT / (ROWS // 2)) + 1
    compare(found, oracle(short, engine.runner.context))
    least = math.ceil((LONG + SHORT) / ROWS)
    assert least - 4 <= steps(engine, long) <= least + 3  # and few rows of a step stay empty


def test_keys_get_equal_shares() -> None:
    """One key's two long prompts take no more of another's rows than one would."""
    engine = made()
    first, second = (ask(engine, job("one", LONG, seed=n)) for n in range(2))
    engine.step()
    other = ask(engine, job("two", LONG // 2))
    assert abs(steps(engine, other) - LONG // ROWS) <= 3
    assert steps(engine, first) and steps(engine, second)


def test_a_class_goes_first_and_the_oldest_ends() -> None:
    """Half of a key's rows go to the highest class, the others to the oldest prompt, even while
    short ones come and come."""
    engine = made()
    long = ask(engine, job("one", LONG, priority=5))
    engine.step()
    urgent = ask(engine, job("one", LONG // 2, priority=-1))
    assert steps(engine, urgent) <= math.ceil(LONG // 2 / (ROWS // 2)) + 2
    count = 0
    while not long:
        ask(engine, job("one", SHORT + count % 5))
        engine.step()
        count += 1
    assert count <= 2 * LONG // ROWS + 4


def test_prompts_that_come_together_end_one_after_the_other() -> None:
    """Of one key and length, so that the first are not as late as the last."""
    engine = made()
    found = [ask(engine, job("one", 10 * ROWS, seed=n)) for n in range(3)]
    assert all(9 <= steps(engine, outputs) <= 11 for outputs in found)


def test_a_key_with_many_long_streams_gives_the_next_slot_away() -> None:
    """64 streams of one key wait for four slots: another key's short request gets the first slot
    that is free, whatever the priority of those before it."""
    engine = made()
    streams = [ask(engine, job("greedy", 4, 40 + 3 * n, priority=-5, seed=n)) for n in range(64)]
    for _ in range(10):
        engine.step()
    short = ask(engine, job("other", 4, 2))
    count = 0
    while not any(out.finish for out in short):
        engine.step()
        count += 1
    ended = sum(any(out.finish for out in outputs) for outputs in streams)
    assert ended == 1 and count <= 40, (ended, count)
