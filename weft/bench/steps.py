"""Measures an engine's overhead per step: the time of its steps, and that of the runner within
them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from weft.bench.load import FIRST_ID
from weft.bench.model import work
from weft.bench.roofline import Roofline
from weft.bench.timing import summary
from weft.core.errors import UsageError
from weft.engine.engine import Engine
from weft.engine.job import Job
from weft.engine.sampler import Sampling
from weft.models.arch.inputs import columns
from weft.models.run.model import Decoder
from weft.models.run.runner import Runner


@dataclass(frozen=True)
class StepsBenchOptions:
    """`path` is loaded with `load`; `at_once` answers of `answer` tokens after `prompt`, `rounds`
    times; `temperature` of the engine's answers."""

    path: str
    load: dict[str, Any]
    at_once: tuple[int, ...] = (1, 8, 32)
    prompt: int = 32
    answer: int = 64
    rounds: int = 3
    temperature: float = 1.0


@dataclass
class EngineStep:
    """Seconds of one step in which all decode: the whole, and what the runner took of it."""

    whole: float
    runner: float


class Timed:
    """A runner that adds up the seconds of its `rows`."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self.seconds = runner, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def rows(self, *given: Any) -> np.ndarray:
        begun = time.perf_counter()
        out = self._runner.rows(*given)
        self.seconds += time.perf_counter() - begun
        return out


def run(
    o: StepsBenchOptions, measure: Callable[[], Roofline], note: Callable[[str], None]
) -> dict[str, Any]:
    """Returns milliseconds per step by the number of answers decoded in it, text included, without
    drafts.

    `host_share` is the part outside the runner. `roofline` is for the runner's part: the bytes of
    weights once, and of each answer's keys and values, over the bandwidth of reading. Raises
    UsageError for a model that is not a decoder.
    """
    model = weft.load(o.path, **o.load)
    if not isinstance(model, Decoder):
        raise UsageError(f"{o.path} is not a decoder; bench serve measures those")
    most = max(o.at_once)
    runner = model.new_runner(most, most * columns(o.prompt + o.answer))
    found: dict[int, list[EngineStep]] = {count: [] for count in o.at_once}
    for number in range(o.rounds + 1):
        for count, steps in found.items():
            made = played(o, model, Timed(runner), count)
            if not made:
                raise UsageError(
                    f"no step decoded {count} answers at once: the first ended before the last "
                    "prompt was read; give longer answers (--max-new-tokens) or shorter prompts"
                )
            if number:  # the first compiles
                steps += made
                whole = statistics.median(s.whole for s in made)
                note(f"{count} at once: {whole * 1e3:.3f} ms a step")
    _, stream, per_position = work(model)
    roof = measure()
    results = {}
    for count, steps in found.items():
        nbytes = stream + count * (o.prompt + o.answer / 2) * per_position
        whole = statistics.median(s.whole for s in steps)
        host = statistics.median(s.whole - s.runner for s in steps)
        results[f"steps_{count}"] = {
            **summary([s.whole for s in steps]), "tok_s": round(count / whole, 2),
            "host_ms": round(host * 1e3, 4), "host_share": round(host / whole, 4),
            "roofline": round(
                roof.share(0, nbytes, statistics.median(s.runner for s in steps)), 3
            ),
        }  # fmt: skip
    return {"read_gbs": round(roof.read_gbs, 1), "results": results}


def played(o: StepsBenchOptions, model: Decoder, runner: Any, count: int) -> list[EngineStep]:
    """The steps of `count` answers."""
    texts = model.tokenizer.stream if model.tokenizer is not None else lambda: None
    engine = Engine(runner, model.config.vocab, texts)
    sampling = Sampling(temperature=o.temperature)
    prompts = np.random.default_rng(count).integers(FIRST_ID, model.config.vocab, (count, o.prompt))
    for i, ids in enumerate(prompts.tolist()):
        engine.submit(
            Job(tuple(ids), o.answer, sampling, seed=i, drafts=False), lambda output: None
        )
    steps: list[EngineStep] = []
    more = True
    while more:
        made, runners = engine.stats.new_tokens, runner.seconds
        begun = time.perf_counter()
        more = engine.step()
        step = EngineStep(time.perf_counter() - begun, runner.seconds - runners)
        if engine.stats.new_tokens - made == count:  # all of them decode
            steps.append(step)
    return steps[1:-1]
