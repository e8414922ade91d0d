"""The options that `generate` shares with the server, the logits function, several answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from model_zoo import VOCAB, write_model, write_tokenizer

import weft
from weft.core.errors import ModelError, UsageError
from weft.models import load

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_model("llama3", folder)
    write_tokenizer(folder)
    return load(folder, device="oracle", context=64, max_batch=3)


@pytest.fixture(scope="module")
def box():
    return weft.load("box", device="cpu")


def test_biases_and_penalties_reach_the_choice(model) -> None:
    assert model.generate(PROMPT, 3, logit_bias={9: 1e6}).ids == (9, 9, 9)
    for penalty in ("presence_penalty", "frequency_penalty"):
        ids = model.generate(PROMPT, 40, logit_bias={9: 30.0}, **{penalty: 1e6}).ids
        assert len(set(ids)) == 40
    greedy = model.generate(PROMPT, 12)
    assert model.generate(PROMPT, 12, temperature=3.0, seed=4, min_p=1.0) == greedy
    assert model.generate(PROMPT, 12, temperature=3.0, seed=4) != greedy


def test_n_answers_are_those_of_n_prompts(model) -> None:
    options = {"max_new_tokens": 9, "temperature": 2.0, "seed": 7}
    alone = model.generate([PROMPT] * 6, **options)
    assert model.generate(PROMPT, n=6, **options) == alone
    assert model.generate([PROMPT, PROMPT], n=3, **options) == [alone[:3], alone[3:]]
    assert model.generate([PROMPT], **options) == alone[:1]
    again = model.generate([PROMPT, [9]], n=2, **options | {"seed": [7, 7]})
    assert again[0] == alone[:2]
    assert again[1] == model.generate([[9], [9]], **options)
    stream = model.generate([PROMPT, [9]], n=2, stream=True, **options | {"seed": [7, 7]})
    seen = [(piece.prompt, piece.answer) for piece in stream]
    assert {*seen} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert stream.results == again[0] + again[1]


def test_stop_ids_and_ignored_ends(model) -> None:
    ids = model.generate(PROMPT, 12).ids
    end = ids[5]
    first = ids.index(end)
    ended = model.generate(PROMPT, 12, stop_ids=[end])
    assert (ended.ids, ended.finish_reason) == (ids[:first], "eos")
    kept, model.tokens = model.tokens, replace(model.tokens, eos=(end,))
    try:
        assert model.generate(PROMPT, 12) == ended
        assert model.generate(PROMPT, 12, ignore_eos=True).ids == ids
    finally:
        model.tokens = kept


def test_logprobs_are_the_models(model) -> None:
    found = model.generate(PROMPT, 5, logprobs=2, prompt_logprobs=0, logit_bias={9: 4.0})
    ids = [*PROMPT, *found.ids]
    logits = model.logits(ids).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    for t, one in enumerate(found.logprobs, len(PROMPT)):
        row = expected[t - 1]
        assert one.id == ids[t] and abs(one.logprob - row[ids[t]]) < 1e-5
        assert [i for i, _ in one.top] == np.argsort(-row)[:2].tolist()
    assert found.prompt_logprobs[0].logprob is None
    for t, one in enumerate(found.prompt_logprobs[1:], 1):
        assert one.id == ids[t] and abs(one.logprob - expected[t - 1, ids[t]]) < 1e-5
    plain = model.generate(PROMPT, 5)
    assert plain.logprobs == plain.prompt_logprobs == ()


def test_a_function_of_logits_chooses(model) -> None:
    seen = []

    def odd(ids, row):
        seen.append((ids, row.dtype, row.shape))
        row[::2] = -np.inf  # its own copy
        return row

    found = model.generate(PROMPT, 8, logits=odd)
    assert all(i % 2 for i in found.ids)
    assert seen[2] == ([*PROMPT, *found.ids[:2]], np.float32, (VOCAB,))
    biases = dict.fromkeys(range(0, VOCAB, 2), -1000000.0)
    assert found == model.generate(PROMPT, 8, logit_bias=biases)
    assert found == model.generate(PROMPT, 8, logits=odd, draft=True)
    same = model.generate(PROMPT, 8, temperature=1.5, seed=0, logits=lambda ids, row: row)
    assert same == model.generate(PROMPT, 8, temperature=1.5, seed=0)


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (lambda ids, row: row[:-1], UsageError, f"float32 [{VOCAB}]"),
        (lambda ids, row: None, UsageError, "returned object"),
        (lambda ids, row: row * np.nan, UsageError, "not finite"),
        (lambda ids, row: np.full_like(row, -np.inf), UsageError, "not finite"),
        (lambda ids, row: 1 / 0, ModelError, "logits function failed: ZeroDivisionError"),
        (3, UsageError, "expected a function"),
    ],
)
def test_functions_of_logits_that_do_not_fit(model, function, kind, words) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        model.generate(PROMPT, 3, logits=function)
    assert model.generate(PROMPT, 3).ids


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_p": 1.5}, {"presence_penalty": 1e9}, {"frequency_penalty": "x"},
        {"logit_bias": {VOCAB: 1.0}}, {"logit_bias": 3}, {"n": 0}, {"n": True}, {"n": 2.5},
        {"stop_ids": [VOCAB]}, {"stop_ids": 3}, {"stop_ids": "x"}, {"logprobs": -1},
        {"logprobs": True}, {"prompt_logprobs": VOCAB + 1}, {"num_beams": 0},
        {"num_beams": 2, "n": 3}, {"num_beams": 2, "temperature": 1.0},
        {"num_beams": 2, "stream": True}, {"num_beams": 2, "logprobs": 1},
        {"num_beams": 2, "early_stopping": "soon"}, {"num_beams": 2, "length_penalty": np.nan},
        {"length_penalty": 2.0}, {"early_stopping": True},
        {"json_schema": True, "regex": "a"}, {"json_schema": "x"}, {"regex": 3},
        {"regex": "("}, {"grammar": "start: ("},
    ],
    ids=str,
)  # fmt: skip
def test_bad_values_are_usage_errors(model, wrong) -> None:
    with pytest.raises(UsageError):
        model.generate(PROMPT, 3, **wrong)


def test_forms(box) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    found = json.loads(box.generate("x = ", 64, json_schema=schema, temperature=1.0).text)
    assert set(found) == {"name", "n"} and isinstance(found["n"], int)
    text = box.generate("x = ", 32, regex=r"[0-9]{3}-[a-z]{2}", temperature=2.0, seed=3).text
    assert re.fullmatch(r"[0-9]{3}-[a-z]{2}", text)
    answers = box.generate("x = ", 8, grammar='start: "yes" | "no"', n=4, temperature=1.0)
    assert {answer.text for answer in answers} <= {"yes", "no"}
    assert [answer.finish_reason for answer in answers] == ["eos"] * 4
