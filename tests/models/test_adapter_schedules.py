"""Random schedules of jobs with several adapters on a model that computes: whatever runs beside it
or was in the cache, each answer is what it is alone."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import pytest
from adapter_kit import adapter
from hypothesis import HealthCheck, given, settings, strategies as st
from present import opened

import weft
from weft.conform.models import CONFIGS
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.engine.sampler import Sampling
from weft.models import random_folder
from weft.models.arch.inputs import PAGE

CONFIG = {**CONFIGS["llama"], "num_hidden_layers": 2, "max_position_embeddings": 160}
CONTEXT, SLOTS = 160, 4
HEAD = tuple(range(3, 3 + PAGE + 9))  # of which prompts share a page, with the same adapter
NAMES = ("", "a", "b", "c")
JOBS = st.builds(
    Job,
    prompt=st.builds(
        lambda cut, tail: (*HEAD[: len(HEAD) - cut], *tail),
        st.sampled_from([0, 0, 5, PAGE]),
        st.lists(st.integers(0, 90), min_size=1, max_size=20).map(tuple),
    ),
    max_new_tokens=st.integers(1, 12),
    sampling=st.sampled_from([Sampling(), Sampling(1.0)]),
    seed=st.integers(0, 2),
    logprobs=st.just(0),
    prompt_logprobs=st.sampled_from([None, None, 0]),
    adapter=st.sampled_from(NAMES),
    drafts=st.booleans(),
)


@pytest.fixture(scope="module", params=["cpu", pytest.param("vulkan", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    opened(request.param)
    folder = tmp_path_factory.mktemp("model")
    base = random_folder(folder / "base", CONFIG, scale=0.3)
    targets = (("q_proj", "v_proj"), ("o_proj", "down_proj"), ("k_proj", "up_proj", "gate_proj"))
    beside = {
        name: adapter(folder / name, base, targets[i], 3 + 9 * i, i)
        for i, name in enumerate(NAMES[1:])
    }
    return weft.load(base, device=request.param, context=CONTEXT, adapters=beside)


def played(engine: Engine, jobs: list[tuple[int, Job]], cancelled: int = -1) -> list[list[Output]]:
    """The outputs of jobs, each handed in after so many steps."""
    found: list[list[Output]] = [[] for _ in jobs]
    steps, left = 0, list(enumerate(jobs))
    while left or engine.has_work:
        while left and left[0][1][0] <= steps:
            number, (_, job) = left.pop(0)
            ticket = engine.submit(job, found[number].append)
            if number == cancelled:
                engine.cancel(ticket)
        engine.step()
        steps += 1
        assert steps < 2000
    return found


def told(outputs: list[Output]) -> Any:
    tokens = [t for o in outputs for t in o.tokens]
    prompt = [t for o in outputs for t in o.prompt]
    return tokens, prompt, outputs[-1].finish, outputs[-1].error


@functools.cache
def alone(model: Any, job: Job) -> Any:
    """The answer in an engine of its own."""
    runner = model.new_runner(1, CONTEXT // PAGE + 1)
    return told(played(Engine(runner, model.config.vocab, lambda: None), [(0, job)])[0])


def check(model: Any, jobs: list[tuple[int, Job]], pages: int, budget: int, cancelled: int) -> None:
    runner = model.new_runner(SLOTS, pages)
    engine = Engine(runner, model.config.vocab, lambda: None, budget=budget, queue=sys.maxsize)
    for (_, job), outputs in zip(jobs, played(engine, jobs, cancelled)):
        if outputs[-1].finish != "cancelled":
            assert told(outputs) == alone(model, job)
    engine.check()


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
SCHEDULES = {
    "jobs": st.lists(st.tuples(st.integers(0, 12), JOBS), min_size=2, max_size=8).map(
        lambda jobs: sorted(jobs, key=lambda pair: pair[0])
    ),
    "pages": st.integers(3, 12),  # few: some are preempted
    "budget": st.sampled_from([7, 30, 200]),
    "cancelled": st.integers(-8, 7),
}


@settings(max_examples=3, **COMMON)
@given(**SCHEDULES)
def test_mixed_adapters_are_answered_one_by_one(model: Any, **drawn: Any) -> None:
    check(model, **drawn)


@pytest.mark.slow
def test_many_schedules_of_adapters(model: Any) -> None:
    """WEFT_SCHEDULES says how many; others each time."""
    count = int(os.environ.get("WEFT_SCHEDULES", "1000"))

    @settings(max_examples=count, derandomize=False, database=None, **COMMON)
    @given(**SCHEDULES)
    def every(**drawn: Any) -> None:
        check(model, **drawn)

    every()
