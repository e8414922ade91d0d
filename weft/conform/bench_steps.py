"""What an engine adds to a step: a runner's bare steps and an engine's with as many answers, in one
process and in turn. Both feed the same number of rows at the same positions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.conform.bench_model import work
from weft.conform.load import FIRST_ID
from weft.conform.roofline import Roofline
from weft.conform.timing import summary
from weft.core.errors import UsageError
from weft.engine.engine import Engine
from weft.engine.job import Job, Output, PagedRunner
from weft.engine.sampler import Sampling
from weft.models.inputs import columns
from weft.models.model import Decoder


@dataclass(frozen=True)
class Options:
    """`path` is loaded with `load`; `at_once` answers of `answer` tokens after `prompt`, `rounds`
    times; `temperature` of the engine's answers."""

    path: str
    load: dict[str, Any]
    at_once: tuple[int, ...] = (1, 8, 32)
    prompt: int = 32
    answer: int = 64
    rounds: int = 3
    temperature: float = 1.0


def run(o: Options, measure: Callable[[], Roofline], note: Callable[[str], None]) -> dict[str, Any]:
    """Milliseconds of a step, by how many rows it has; `host_share` is what the engine's adds, of
    the engine's; `roofline` of the bare step: bytes of weights once and of each row's keys and
    values over the bandwidth of reading. Raises UsageError for a model that is no decoder."""
    model = weft.load(o.path, **o.load)
    if not isinstance(model, Decoder):
        raise UsageError(f"{o.path} is no decoder; bench serve measures those")
    most = max(o.at_once)
    runner = model.paged_runner(most, most * columns(o.prompt + o.answer))
    times: dict[tuple[int, str], list[float]] = {}
    for number in range(o.rounds + 1):
        for count in o.at_once:
            for name, take in (("runner", bare), ("engine", played)):
                found = take(o, model, runner, count)
                if number:  # the first compiles
                    times.setdefault((count, name), []).append(found)
                    note(f"{name}, {count} rows: {found * 1e3:.3f} ms")
    _, stream, per_position = work(model)
    roof = measure()
    results = {}
    for count in o.at_once:
        own, whole = times[count, "runner"], times[count, "engine"]
        middle = statistics.median(own)
        nbytes = stream + count * (o.prompt + o.answer / 2) * per_position
        results[f"steps_{count}"] = {
            "runner": summary(own), "engine": summary(whole),
            "tok_s": round(count / statistics.median(whole), 2),
            "host_share": round(1 - middle / statistics.median(whole), 4),
            "roofline": round(roof.share(0, nbytes, middle), 3),
        }  # fmt: skip
    return {"read_gbs": round(roof.read_gbs, 1), "results": results}


def _prompts(o: Options, model: Decoder, count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    return rng.integers(FIRST_ID, model.config.vocab, (count, o.prompt))


def bare(o: Options, model: Decoder, runner: Any, count: int) -> float:
    """Seconds of a step of `count` rows: nothing but the runner."""
    wide = columns(o.prompt + o.answer)
    runner.tables[:count, :wide] = np.arange(count * wide).reshape(count, wide)
    slots = range(count)
    for slot, ids in enumerate(_prompts(o, model, count).tolist()):
        runner.prefill(slot, ids)
    token, seconds = [FIRST_ID] * count, []
    for i in range(1, o.answer):
        begun = time.perf_counter()
        runner.rows(token, slots, [o.prompt + i - 1] * count)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def played(o: Options, model: Decoder, runner: PagedRunner, count: int) -> float:
    """Seconds of an engine's step with `count` answers, text included, none of them proposed."""
    texts = model.tokenizer.stream if model.tokenizer is not None else lambda: None
    engine = Engine(runner, model.config.vocab, texts)
    told: list[Output] = []
    sampling = Sampling(temperature=o.temperature)
    for i, ids in enumerate(_prompts(o, model, count).tolist()):
        job = Job(tuple(ids), o.answer, sampling, seed=i, drafts=False)
        engine.submit(job, told.append)
    seconds: list[float] = []
    more = True
    while more:
        begun, before = time.perf_counter(), len(told)
        more = engine.step()
        if len(told) - before == count:  # all of them decode
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:-1])
