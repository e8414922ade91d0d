"""Drafts under the server: with grammars, and a model that drafts."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.cli.main import invoke
from weft.conform.models import CONFIGS
from weft.engine.drafts import Drafts, NoDrafts
from weft.engine.engine import Engine
from weft.engine.job import Job, Output
from weft.engine.sampler import Sampling
from weft.hub.box import box_folder
from weft.models import random_folder
from weft.models.grammar import grammars as grammar
from weft.models.grammar.grammars import Grammars
from weft.models.run.drafting import drafts_by

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["identifier", "description"],
    "properties": {
        "identifier": {"enum": ["first choice of many", "second choice of many"]},
        "description": {"type": "string", "maxLength": 40},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def box() -> Any:
    return weft.load(box_folder(), device="cpu", context=192)


def played(box: Any, drafts: Drafts, constraint: Any) -> tuple[list[tuple[int, ...]], Engine]:
    """Answers of greedy and of sampled jobs; steps of any size take a second."""
    runner = box.new_runner(3, 9)
    engine = Engine(
        runner, box.config.vocab, box.tokenizer.stream, drafts=drafts, clock=count().__next__
    )
    outputs: list[list[Output]] = [[], [], []]
    prompt = tuple(box.encode("def f(a, b):"))
    eos = frozenset(box.tokens.eos)
    for n, mine in enumerate(outputs):
        wants = not isinstance(drafts, NoDrafts)
        job = Job(prompt, 100, Sampling(0.6 * n), n, eos=eos, constraint=constraint, drafts=wants)
        engine.submit(job, mine.append)
    while engine.step():
        engine.check()
    assert all(mine[-1].finish == "eos" for mine in outputs)
    return [tuple(t.id for o in mine for t in o.tokens) for mine in outputs], engine


def test_a_grammar_and_drafts_together(box: Any) -> None:
    """What is forced and what a model proposes changes no token, and saves steps."""
    grammars = Grammars(box.tokenizer, box.config.vocab, box.tokens.eos)
    made = grammars.compile(grammar.json_schema(SCHEMA))
    plain, slow = played(box, NoDrafts(), made)
    other = weft.load(box_folder(), device="cpu", context=192)
    for draft in (None, other):
        answers, engine = played(box, drafts_by(box, draft, 3, 9), made)
        assert answers == plain
        assert engine.stats.accepted > 0 and engine.stats.steps < slow.stats.steps


def test_what_a_grammar_forces_and_allows(box: Any) -> None:
    grammars = Grammars(box.tokenizer, box.config.vocab, box.tokens.eos)
    state = grammars.compile(grammar.choice(["abcdefgh", "abcdxyz"]))()
    forced = state.forced()
    assert box.tokenizer.decode(forced) == "abcd"[: len(box.tokenizer.decode(forced))] != ""
    good = box.tokenizer.encode("abcdxyz", special=False)
    bad = box.tokenizer.encode(" not this", special=False)
    assert state.fits(good) == len(good) and state.fits([*good[:1], *bad]) == 1
    assert state.fits(bad) == 0 and state.allowed()[good[0]]  # asking changed nothing


@pytest.mark.parametrize("models,said", [
    (("a={box}", "b={box}"), "drafts for one model"),
    (("{box}",), "other tokens"),
])  # fmt: skip
def test_refused_at_the_start(
    models: tuple[str, ...], said: str, tmp_path: Path, capsys: Any
) -> None:
    small = random_folder(tmp_path / "small", CONFIGS["llama"])
    paths = [m.format(box=box_folder()) for m in models]
    assert invoke(["serve", *paths, "--draft-model", str(small), "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
