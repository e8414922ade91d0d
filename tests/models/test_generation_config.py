"""The author's advice on sampling, in generation_config.json and in GGUF's metadata: what is read,
what callers override, what is said, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_zoo import write_gguf
from model_zoo import VOCAB, write_model, write_tokenizer

import weft
from weft.cli.main import invoke
from weft.core.errors import ModelError, UsageError, WeftError
from weft.engine.defaults import GenerationDefaults
from weft.engine.sampler import Sampling
from weft.models.run.model import Decoder
from weft.models.text.generation_config import read_defaults

NAME = "generation_config.json"
PROMPT = [5, 6, 7]
HOT = {"do_sample": True, "temperature": 1.7, "top_p": 0.9, "top_k": 50}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model("llama3", tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture
def advised(folder: Path) -> Callable[..., Decoder]:
    """Loads the model with this content of generation_config.json."""

    def make(content: dict[str, Any], **options: Any) -> Decoder:
        (folder / NAME).write_text(json.dumps(content))
        made = weft.load(folder, device="oracle", context=64, **options)
        assert isinstance(made, Decoder)
        return made

    return make


def settings(folder: Path, **content: Any) -> GenerationDefaults:
    (folder / NAME).write_text(json.dumps(content))
    return read_defaults(folder, VOCAB)


@pytest.mark.parametrize(("content", "want"), [
    ({}, Sampling()),
    ({"do_sample": True}, Sampling(1.0)),
    ({"do_sample": True, "temperature": 0.6, "top_p": 0.95}, Sampling(0.6, top_p=0.95)),
    ({"do_sample": True, "top_k": 64, "min_p": 0.05}, Sampling(1.0, 64, min_p=0.05)),
    ({"temperature": 0.6, "top_k": -1}, Sampling(0.6)),
    ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.05},
     Sampling(repetition_penalty=1.05)),
    ({"suppress_tokens": [9, 4], "bad_words_ids": [[7], [8]]},
     Sampling(logit_bias=tuple((i, -1e6) for i in (4, 7, 8, 9)))),
])  # fmt: skip
def test_what_the_file_says(content: dict[str, Any], want: Sampling, tmp_path: Path) -> None:
    assert settings(tmp_path, **content).sampling({}) == want


def test_the_caller_overrides_field_by_field() -> None:
    author = GenerationDefaults("f", 0.6, top_p=0.9, repetition_penalty=1.1, suppressed=(3, 5))
    usual = {"temperature": 0.8, "top_k": 40}
    made = author.sampling({"top_p": 1.0, "logit_bias": {5: 2.0, 6: 1.0}, "min_p": None}, usual)
    bias = ((3, -1e6), (5, 2.0), (6, 1.0))
    assert made == Sampling(0.6, 40, 1.0, 1.1, logit_bias=bias)
    assert author.sampling({"temperature": 0.0}).temperature == 0


@pytest.mark.parametrize(("author", "prompt", "given", "usual", "want"), [
    ({}, 5, None, 64, 64), ({}, 5, None, None, None), ({"max_new_tokens": 9}, 5, None, 64, 9),
    ({"max_new_tokens": 9}, 5, 3, 64, 3), ({"max_length": 20}, 5, None, None, 15),
    ({"max_length": 20}, 5, None, 8, 8), ({"max_length": 20}, 19, None, 8, 1),
    ({"max_length": 20}, 30, 4, 8, 4), ({"max_length": 20, "max_new_tokens": 50}, 5, None, 8, 50),
])  # fmt: skip
def test_limits(
    author: dict[str, int], prompt: int, given: int | None, usual: int | None, want: int | None
) -> None:
    assert GenerationDefaults(**author).limit(prompt, given, usual) == want  # type: ignore


def test_a_prompt_beyond_max_length() -> None:
    with pytest.raises(UsageError, match=r"20 tokens; f has max_length 20 .*give a number"):
        GenerationDefaults("f", max_length=20).limit(20, None, 64)


@pytest.mark.parametrize("content", [
    {"repetition_penalty": 1.3}, {"suppress_tokens": [200, 17]},
    {"bad_words_ids": [[11], [12], [203]], "repetition_penalty": 0.8},
    {"do_sample": False, "temperature": 0.3, "top_k": 3}, {"max_new_tokens": 11},
    {"max_length": 9},
])  # fmt: skip
def test_greedy_is_transformers(content: dict[str, Any], folder: Path) -> None:
    import torch
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = transformers.GenerationConfig(**{"max_new_tokens": 20} | content | {"pad_token_id": 0})
    if "max_length" in content:
        config.max_new_tokens = None
    want = theirs.generate(torch.tensor([PROMPT]), generation_config=config)[0, len(PROMPT) :]
    if "suppress_tokens" in content or "bad_words_ids" in content:
        # the ids that are kept out are ones that would be chosen
        plain = theirs.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)
        banned = [int(i) for i in plain[0, len(PROMPT) :][:3]]
        key = "suppress_tokens" if "suppress_tokens" in content else "bad_words_ids"
        content = content | {key: banned if key == "suppress_tokens" else [[i] for i in banned]}
        config = transformers.GenerationConfig(**{"max_new_tokens": 20} | content)
        want = theirs.generate(torch.tensor([PROMPT]), generation_config=config)[0, len(PROMPT) :]
        assert not set(banned) & set(want.tolist())
    (folder / NAME).write_text(json.dumps({"max_new_tokens": 20} | content))
    if "max_length" in content:
        (folder / NAME).write_text(json.dumps(content))
    got: Any = weft.load(folder, device="oracle", context=64).generate(PROMPT)
    assert list(got.ids) == want.tolist()


def test_sampled_answers_are_a_function_of_the_seed(advised: Callable[..., Decoder]) -> None:
    model = advised(HOT)
    one: Any = model.generate(PROMPT, seed=3)
    explicit: Any = advised({}).generate(PROMPT, temperature=1.7, top_p=0.9, top_k=50, seed=3)
    assert one == explicit == model.generate(PROMPT, seed=3)
    assert one != model.generate(PROMPT, seed=4)
    greedy = advised({}).generate(PROMPT)
    assert model.generate(PROMPT, temperature=0) == greedy != one
    assert advised(HOT, generation_config="off").generate(PROMPT, seed=3) == greedy


def test_stop_strings(advised: Callable[..., Decoder]) -> None:
    whole: Any = advised({}).generate(PROMPT, max_new_tokens=20)
    stop = whole.text[4:7]
    model = advised({"stop_strings": stop})
    cut: Any = model.generate(PROMPT, max_new_tokens=20)
    assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish_reason == "stop"
    assert model.generate(PROMPT, max_new_tokens=20, stop=()) == whole


def test_it_is_said_once_and_only_where_it_counts(
    advised: Callable[..., Decoder], capsys: pytest.CaptureFixture[str]
) -> None:
    model = advised(HOT | {"max_new_tokens": 4})
    for _ in range(2):
        model.generate(PROMPT)
    said = "sampling as generation_config.json says: temperature 1.7, top_k 50, top_p 0.9, max_new"
    assert capsys.readouterr().err.count(said) == 1
    model.generate(PROMPT, temperature=0, max_new_tokens=2)
    assert capsys.readouterr().err == ""
    model.generate(PROMPT, temperature=1.0, top_k=0, max_new_tokens=2)
    assert "says: top_p 0.9\n" in capsys.readouterr().err


def test_what_is_not_followed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = HOT | {"typical_p": 1.0, "num_beams": 1, "transformers_version": "5", "swirl": None}
    settings(tmp_path, **plain, eos_token_id=2, length_penalty=2.0)
    assert capsys.readouterr().err == ""
    settings(tmp_path, **plain | {"typical_p": 0.9, "num_beams": 4, "swirl": 2},
             bad_words_ids=[[4, 5], [3]], no_repeat_ngram_size=3)  # fmt: skip
    err = capsys.readouterr().err
    for said in (
        "typical_p=0.9",
        "num_beams=4",
        "bad_words_ids=[[4, 5]]",
        "no_repeat_ngram_size=3",
    ):
        assert said in err
    assert "which weft does not follow" in err and "does not know swirl" in err


HOSTILE = [
    {"temperature": -1}, {"temperature": "hot"}, {"temperature": float("inf")},
    {"temperature": float("nan")}, {"temperature": 10**400}, {"temperature": True},
    {"top_k": 1.5}, {"top_k": -2}, {"top_p": 0}, {"top_p": 1.01}, {"top_p": []}, {"min_p": 2},
    {"repetition_penalty": 0}, {"repetition_penalty": 1e300}, {"do_sample": "yes"},
    {"max_new_tokens": 0}, {"max_new_tokens": 2.5}, {"max_length": -3},
    {"suppress_tokens": [VOCAB]}, {"suppress_tokens": [-1]}, {"suppress_tokens": [0] * 2000},
    {"suppress_tokens": {"a": 1}}, {"bad_words_ids": [5]}, {"bad_words_ids": [["x"]]},
    {"bad_words_ids": "x"}, {"stop_strings": 5}, {"stop_strings": [""]},
    {"stop_strings": ["x"] * 17}, {"stop_strings": ["x" * 2000]},
    {"suppress_tokens": list(range(VOCAB))},
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE, ids=lambda c: json.dumps(c)[:40])
def test_bad_values_are_named(content: dict[str, Any], advised: Callable[..., Decoder]) -> None:
    (field,) = content
    with pytest.raises(ModelError, match=rf"generation_config.json: {field} ") as raised:
        advised(content).generate(PROMPT)
    assert len(str(raised.value)) < 400
    advised(content, generation_config="off").generate(PROMPT, max_new_tokens=1)


def test_an_unknown_choice(folder: Path) -> None:
    with pytest.raises(UsageError, match="'vllm'; expected auto or off"):
        weft.load(folder, device="oracle", generation_config="vllm")


# -- GGUF -----------------------------------------------------------------------------------------

KEYS = {"general.sampling.temp": 0.6, "general.sampling.top_p": 0.95}  # float32 in the file


def test_a_gguf_files_keys(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {**KEYS, "general.sampling.top_k": -1, "general.sampling.penalty_last_n": 64}
    keys |= {"general.sampling.mirostat": 2, "general.sampling.swirl": 1}
    path = write_gguf(folder, tmp_path / "m.gguf", keys=keys)
    model: Any = weft.load(path, device="oracle", context=64)
    assert model.defaults == GenerationDefaults("general.sampling.*", 0.6, 0, 0.95)
    plain: Any = weft.load(path, device="oracle", context=64, generation_config="off")
    given = {"temperature": 0.6, "top_p": 0.95, "seed": 2, "max_new_tokens": 9}
    assert model.generate(PROMPT, seed=2, max_new_tokens=9) == plain.generate(PROMPT, **given)
    err = capsys.readouterr().err
    assert "asks for general.sampling.mirostat=2, which weft does not follow" in err
    assert "sampling as general.sampling.* says: temperature 0.6, top_k 0, top_p 0.95" in err
    assert "does not know swirl" in err


@pytest.mark.parametrize(("key", "value"), [
    ("temp", -1.0), ("temp", "hot"), ("temp", [1, 2]), ("top_p", 0.0), ("top_k", 1.5),
    ("min_p", float("nan")), ("penalty_repeat", 0.0), ("penalty_repeat", float("inf")),
])  # fmt: skip
def test_bad_keys_are_named(key: str, value: Any, folder: Path, tmp_path: Path) -> None:
    name = f"general.sampling.{key}"
    path = write_gguf(folder, tmp_path / "m.gguf", keys={name: value})
    with pytest.raises(ModelError, match=rf"m\.gguf: {re.escape(name)} "):
        weft.load(path, device="oracle").generate(PROMPT)


# -- files of weft compile, and commands ----------------------------------------------------------


def test_a_compiled_file_keeps_the_advice(folder: Path, tmp_path: Path) -> None:
    (folder / NAME).write_text(json.dumps(HOT | {"suppress_tokens": [4], "eos_token_id": 2}))
    file = tmp_path / "m.weft"
    assert invoke(["compile", str(folder), "-o", str(file), "--context", "64"]) == 0
    options: dict[str, Any] = {"seed": 3, "max_new_tokens": 6}
    made: Any = weft.load(file, device="cpu")
    want: Any = weft.load(folder, device="cpu", context=64)
    assert made.defaults == want.defaults
    assert made.generate(PROMPT, **options) == want.generate(PROMPT, **options)
    off: Any = weft.load(file, device="cpu", generation_config="off")
    assert off.generate(PROMPT, **options) == off.generate(PROMPT, temperature=0, max_new_tokens=6)


def test_weft_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / NAME).write_text(json.dumps(HOT | {"max_new_tokens": 6}))
    run = ["run", str(folder), "the fox", "--device", "cpu", "--json"]

    def told(*more: str) -> tuple[dict[str, Any], str]:
        assert invoke([*run, *more]) == 0
        read = capsys.readouterr()
        return json.loads(read.out), read.err

    first, err = told()
    assert "sampling as generation_config.json says: temperature 1.7" in err
    again, _ = told("--seed", str(first["seed"]))
    assert again["ids"] == first["ids"] and len(first["ids"]) == 6
    given = ["--temperature", "1.7", "--top-p", "0.9", "--top-k", "50", "--max-new-tokens", "6"]
    explicit, err = told("--seed", str(first["seed"]), *given, "--generation-config", "off")
    assert explicit["ids"] == first["ids"] and "sampling as" not in err
    off, _ = told("--generation-config", "off")
    assert "seed" not in off and len(off["ids"]) == 64
    cold, _ = told("--temperature", "0")
    assert cold["ids"] == off["ids"][:6] and "seed" not in cold


def test_errors_of_files_that_are_none(folder: Path) -> None:
    for text in ("[]", "{", '{"temperature": 1, "temperature": 2}', "5"):
        (folder / NAME).write_text(text)
        with pytest.raises(WeftError, match=r"generation_config\.json"):
            weft.load(folder, device="oracle").generate(PROMPT)
