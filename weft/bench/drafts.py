"""`weft bench drafts`: tokens per second with drafts and without, by one engine in turn.

In `edit`, each answer is its prompt again with a twentieth of the tokens changed, like an edited
file. In `new`, answers are random tokens, in which drafts find nothing. A constraint gives the
model these answers token by token, so that the text and not the weights decides the value of
drafts. In `own`, answers are the model's own, greedily.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import weft
from weft.core.errors import UsageError
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.models.arch.inputs import columns
from weft.models.run.drafting import drafts_by
from weft.models.run.model import Decoder

CASES = ("edit", "new", "own")
CHANGED = 20  # tokens of which `edit` changes one


@dataclass(frozen=True)
class DraftsBenchOptions:
    """The options of the measurement. `prompt` and `gen` are token counts, `sequences` the numbers
    of concurrent sequences. `load` are options of weft.load, `draft` the path of a model that
    drafts."""

    path: str
    load: dict[str, Any]
    draft: str | None = None
    prompt: int = 256
    gen: int = 128
    sequences: tuple[int, ...] = (1, 8)
    rounds: int = 5


class Told:
    """A constraint that leaves no choice, and does not say so beforehand."""

    def __init__(self, text: list[int], vocab: int) -> None:
        self._text, self._vocab, self._said = text, vocab, 0

    def allowed(self) -> np.ndarray:
        mask = np.zeros(self._vocab, np.bool_)
        mask[self._text[self._said]] = True
        return mask

    def accept(self, token: int) -> None:
        self._said += 1

    @property
    def ended(self) -> bool:
        return self._said == len(self._text)

    def forced(self) -> list[int]:
        return []

    def fits(self, tokens: Any) -> int:
        return len(tokens)


def run(o: DraftsBenchOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """Returns medians over rounds; in each round both sides run the same jobs. Raises UsageError if
    the models do not match."""
    context = o.prompt + o.gen
    model = _decoder(o.path, {**o.load, "context": context})
    draft = None
    if o.draft is not None:
        where = {"device": o.load["device"], "context": context}
        draft = _decoder(o.draft, where)
    results: dict[str, Any] = {}
    for count in o.sequences:
        engine = _engine(model, draft, count, context)
        for case in CASES:
            name = f"{case} x{count}"
            results[name] = _case(o, engine, case, count)
            note(f"{name}: {results[name]}")
    device = model.device.info.id if model.device else "oracle"
    return {"device": device, "precision": model.precision, "results": results}


def _decoder(path: str, load: dict[str, Any]) -> Decoder:
    model = weft.load(path, **load)
    if not isinstance(model, Decoder):
        raise UsageError(f"{path} writes no text; drafts are of text")
    return model


def _engine(model: Decoder, draft: Decoder | None, count: int, context: int) -> Engine:
    pages = count * columns(context)
    runner = model.new_runner(count, pages)
    return Engine(runner, model.config.vocab, drafts=drafts_by(model, draft, count, pages))


def _case(o: DraftsBenchOptions, engine: Engine, case: str, count: int) -> dict[str, Any]:
    rates: dict[bool, list[float]] = {False: [], True: []}
    before = engine.stats
    for number in range(o.rounds + 1):
        for drafts in (False, True):
            jobs = [_job(o, engine.vocab, case, (number, i), drafts) for i in range(count)]
            rate = _rate(engine, jobs)
            if number:  # the first round compiles
                rates[drafts].append(rate)
    after = engine.stats
    off, on = median(rates[False]), median(rates[True])
    return {
        "off_tok_s": round(off, 1), "on_tok_s": round(on, 1),
        "ratio": round(median(b / a for a, b in zip(rates[False], rates[True])), 2),
        "proposed": after.drafted - before.drafted, "right": after.accepted - before.accepted,
    }  # fmt: skip


def _job(o: DraftsBenchOptions, vocab: int, case: str, seed: tuple[int, int], drafts: bool) -> Job:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, vocab, o.prompt).tolist()
    text = rng.integers(0, vocab, o.gen).tolist()
    if case == "edit":
        text = [new if rng.random() < 1 / CHANGED else old
                for old, new in zip(prompt * (o.gen // o.prompt + 1), text)]  # fmt: skip
    told = None if case == "own" else (lambda: Told(text, vocab))
    salt = f"{case}{seed}{drafts}".encode()  # finds nothing of an earlier round
    return Job(tuple(prompt), o.gen, salt=salt, drafts=drafts, decoded=False, constraint=told)


def _rate(engine: Engine, jobs: list[Job]) -> float:
    """Tokens per second of all jobs together, from where each has its first to where one ends."""
    outputs: list[list[Output]] = [[] for _ in jobs]
    for job, mine in zip(jobs, outputs):
        engine.submit(job, mine.append)
    while not all(outputs):
        engine.step()
    begun, had = time.perf_counter(), _tokens(outputs)
    while engine.step() and not any(mine[-1].usage for mine in outputs):
        pass
    rate = (_tokens(outputs) - had) / (time.perf_counter() - begun)
    while engine.step():
        pass
    for mine in outputs:
        if mine[-1].error is not None:
            raise mine[-1].error
    return rate


def _tokens(outputs: list[list[Output]]) -> int:
    return sum(len(output.tokens) for mine in outputs for output in mine)
