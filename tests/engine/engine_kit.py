"""Engines on a runner that remembers its inputs, and what one job alone gives."""

from __future__ import annotations

from typing import Any

from paged_kit import VOCAB, Fake, Letters, oracle
from test_engine_schedules import compare

from weft.engine.engine import Engine
from weft.engine.job import Job, Output


def engine_of(fake: Fake, **options: Any) -> Engine:
    engine = Engine(fake, VOCAB, Letters, **options)
    fake.held = lambda page: engine._pages.refs[page]
    return engine


def played(engine: Engine, *jobs: Job) -> list[list[Output]]:
    """All outputs of jobs that are submitted together."""
    outputs: list[list[Output]] = [[] for _ in jobs]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)
    while engine.step():
        engine.check()
    engine.check()
    return outputs


def check(engine: Engine, *jobs: Job) -> list[list[Output]]:
    outputs = played(engine, *jobs)
    for job, mine in zip(jobs, outputs):
        compare(mine, oracle(job, engine.runner.context))
    return outputs


PROMPT = (1, 7, 3, 9, 7, 3, 9, 7)
