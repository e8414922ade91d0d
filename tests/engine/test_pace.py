"""Prompts are fed in parts that take a tenth of a second while other sequences decode."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise

import numpy as np
import pytest
from engine_kit import engine_of, played
from hypothesis import given, strategies as st
from paged_kit import Fake

from weft.engine.job import Job, Output
from weft.engine.pace import ALONE, DEEPER, LEAST, LEAST_ALONE, SHALLOW, PromptPace


class Timed(Fake):
    """A step takes 2 ms, and each row a time that grows with its depth."""

    def __init__(self, each: float, deep: float) -> None:
        super().__init__(3, 700, 8, 2048)
        self.now, self.each, self.deep = 0.0, each, deep

    def rows(
        self, ids: Sequence[int], slots: Sequence[int], pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:  # fmt: skip
        self.now += 2e-3 + sum(self.each + self.deep * p for p in pos)
        return super().rows(ids, slots, pos, adapters)


def steps(fake: Timed, prompt: int) -> list[tuple[float, int]]:
    """The seconds and the most rows of each step that feeds a prompt beside a decoding sequence."""
    engine = engine_of(fake, clock=lambda: fake.now)
    engine.submit(Job((1, 2), 2000, drafts=False), lambda output: None)
    engine.step()
    engine.submit(Job((5,) * prompt, 1), lambda output: None)
    found = []
    while engine.stats.running > 1 or engine.stats.waiting or not found:
        begun, fake.most = fake.now, 0
        engine.step()
        found.append((fake.now - begun, fake.most))
    engine.close()
    return found


def test_parts_of_a_deep_prompt_become_smaller() -> None:
    found = steps(Timed(2e-4, 2e-6), 1900)
    assert found[0][1] == 128  # nothing is known yet
    assert max(seconds for seconds, _ in found) < 0.12
    late = [rows for _, rows in found[-4:-1]]
    assert min(late) >= LEAST and max(late) < 32
    assert len(found) < 60  # and no smaller than need be


def test_parts_of_a_fast_prompt_are_as_large_as_they_may_be() -> None:
    assert [rows for _, rows in steps(Timed(1e-5, 0), 1000)[:-1]] == [128] * 7


@pytest.mark.parametrize("holds", [True, False])
def test_the_least_part_is_fed_however_long_it_takes(
    holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few rows join the call that decodes, unless they hold it up and could pause alone."""
    if not holds:
        monkeypatch.setattr("weft.engine.play.PAUSE", 10.0)
    found = steps(Timed(0.1, 0), 400)
    assert all(rows == LEAST + (not holds) for _, rows in found[2:-1])


def test_a_prompt_much_deeper_than_the_last_begins_with_few_rows() -> None:
    pace = PromptPace(128, 512)
    pace.note(1000, 128, 0.01, 0.1)
    assert pace.rows(4000, True) == 128 and pace.rows(DEEPER * SHALLOW + 1, True) == LEAST
    pace.note(40_000, LEAST, 0.03, 0.03)
    assert pace.rows(40_000, True) == 32 and pace.rows(0, True) == 32
    pace.note(0, 32, 0.001, 0.01)
    assert pace.rows(0, True) == 64
    pace.note(0, 64, 0.05, 1.0)  # with pauses: others wait shortly, and whoever comes for long
    assert pace.rows(0, True) == 32


def test_a_prompt_alone_leaves_room_for_who_comes() -> None:
    """Its steps take as many rows as a second allows, whatever its depth, and no fewer than pay."""
    fake = Timed(1e-4, 3e-6)
    engine = engine_of(fake, clock=lambda: fake.now, budget=512)
    engine.submit(Job((5,) * 1900, 1), lambda output: None)
    took, rows = [], []
    while engine.stats.running or engine.stats.waiting:
        begun, fake.most = fake.now, 0
        engine.step()
        took.append(fake.now - begun)
        rows.append(fake.most)
    assert rows[0] == 512  # nothing is known yet
    assert max(took) < 1.6 * ALONE and min(rows[:-1]) > LEAST_ALONE
    slow = PromptPace(128, 512)
    slow.note(9000, 512, 30.0, 30.0)
    assert slow.rows(9000, False) == LEAST_ALONE
    assert slow.rows(9000 * DEEPER + 1, False) == LEAST_ALONE


class Layered(Timed):
    """Its prefill consists of 12 kernels and may pause after each."""

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        pos = range(start, start + len(ids))
        for _ in range(12):
            self.now += sum(self.each + self.deep * p for p in pos) / 12
            if self.pause is not None:
                self.pause()
        return Fake.rows(self, ids, [slot] * len(ids), pos, [adapter] * len(ids))[-1]


def test_others_get_tokens_in_the_middle_of_a_part_that_takes_long() -> None:
    fake = Layered(1e-3, 1e-5)  # 16 rows at the prompt's end take a third of a second
    engine = engine_of(fake, clock=lambda: fake.now)
    times: list[float] = []
    outputs: list[Output] = []

    def told(output: Output) -> None:
        times.append(fake.now)
        outputs.append(output)

    engine.submit(Job((1, 2), 2000, drafts=False), told)
    engine.step()
    long: list[Output] = []
    engine.submit(Job((5,) * 1900, 1), long.append)
    steps = 0
    while not long:
        engine.step()
        engine.check()
        steps += 1
    assert max(b - a for a, b in pairwise(times)) < 0.1
    assert steps < 110 < len(times)  # parts stay as large as half a second allows
    alone = played(engine_of(Fake(3, 700, 8, 2048)), Job((1, 2), len(times), drafts=False))
    got = [t.id for o in outputs for t in o.tokens]
    assert got == [t.id for o in alone[0] for t in o.tokens][: len(got)]


def test_a_sequence_whose_pages_are_yet_to_be_written_waits_for_its_step() -> None:
    """It continues a copy of another one's page, which it gets when its turn in the step comes."""
    fake = Fake(4, 64, 8, 256)
    engine = engine_of(fake, clock=map(float, count()).__next__, few=1)
    jobs = [Job((3, 4) * 8, 40), Job((5,) * 200, 2), Job((3, 4) * 8, 20)]
    outputs: list[list[Output]] = [[] for _ in jobs]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)
        engine.step()
    while engine.step():
        engine.check()
    for job, mine in zip(jobs, outputs):
        alone = played(engine_of(Fake(4, 64, 8, 256)), job)[0]
        assert [t.id for o in mine for t in o.tokens] == [t.id for o in alone for t in o.tokens]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 512), st.floats(-1, 1e4))))
def test_the_rows_stay_between_the_least_and_the_most(steps: list[tuple[int, int, float]]) -> None:
    for most in (8, 128):
        pace = PromptPace(most, 4 * most)
        for depth, rows, seconds in steps:
            pace.note(depth, rows, seconds, seconds)
            assert min(LEAST, most) <= pace.rows(depth, True) <= most
            assert min(LEAST_ALONE, 4 * most) <= pace.rows(depth, False) <= 4 * most
