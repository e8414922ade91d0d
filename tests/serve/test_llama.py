"""llama-server's own routes, and prompts with a suffix in every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from serve_kit import Running, marked_box, serving, stream

from weft.models.run.model import Decoder
from weft.serve.llama.types import LlamaAnswer, PropertiesAnswer

PROMPT = "def fibonacci(n):"
GREEDY = {"temperature": 0, "ignore_eos": True}


def ask(server: Running, path: str, **body: Any) -> Any:
    status, made, _ = server.ask("POST", path, body)
    assert status == 200, made
    return made


def refused(server: Running, path: str, **body: Any) -> tuple[str, str]:
    status, made, _ = server.ask("POST", path, body)
    assert status == 400, made
    return made["error"]["param"], made["error"]["message"]


def test_a_completion_is_the_models_own(server: Running, alone: Decoder) -> None:
    made = ask(server, "/completion", prompt=PROMPT, n_predict=12, **GREEDY, return_tokens=True)
    expected = alone.generate(PROMPT, 12, temperature=0, ignore_eos=True)
    assert made["content"] == expected.text and made["tokens"] == [*expected.ids]
    assert made["stop"] and made["stop_type"] == "limit" and made["tokens_predicted"] == 12
    assert made["tokens_evaluated"] == len(alone.encode(PROMPT))
    assert made["generation_settings"]["temperature"] == 0
    msgspec.convert(made, LlamaAnswer)


def test_prompts_of_ids_and_text(server: Running, alone: Decoder) -> None:
    ids = alone.encode(PROMPT)
    plain = ask(server, "/completion", prompt=ids, n_predict=8, **GREEDY)["content"]
    assert plain == ask(server, "/completions", prompt=PROMPT, n_predict=8, **GREEDY)["content"]
    mixed = [*alone.encode("def"), " fibonacci(n):"]
    found = ask(server, "/completion", prompt=mixed, n_predict=8, **GREEDY)
    assert found["tokens_evaluated"] >= len(mixed)
    assert refused(server, "/completion", prompt=[])[0]
    assert refused(server, "/completion", prompt=[10**9])[1]


def test_its_stream_joins_to_the_whole(server: Running) -> None:
    asked = {"prompt": PROMPT, "n_predict": 12, "seed": 3, "n_probs": 2}
    whole = ask(server, "/completion", **asked)
    with stream(server, "/completion", asked) as answer:
        lines = [line[6:] for line in answer.read().decode().split("\n\n") if line[:6] == "data: "]
    parts = [json.loads(line) for line in lines]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    told = [p for part in parts for p in part.get("completion_probabilities", ())]
    assert told == whole["completion_probabilities"] and len(told) == 12
    assert all(len(p["top_logprobs"]) == 2 for p in told)
    assert parts[-1]["tokens_predicted"] == 12


def test_how_it_ended(server: Running) -> None:
    whole = ask(server, "/completion", prompt=PROMPT, n_predict=12, **GREEDY)["content"]
    stop = whole[4:7]
    made = ask(server, "/completion", prompt=PROMPT, n_predict=12, stop=[stop], **GREEDY)
    assert made["stop_type"] == "word" and made["stopping_word"] == stop
    assert made["content"] == whole[: whole.index(stop)]
    made = ask(server, "/completion", prompt=PROMPT, grammar='root ::= "yes"')
    assert made["content"] == "yes" and made["stop_type"] == "eos"
    schema = {"type": "integer", "minimum": 10, "maximum": 99}
    assert 10 <= int(ask(server, "/completion", prompt=PROMPT, json_schema=schema)["content"]) <= 99


def test_biases(server: Running, alone: Decoder) -> None:
    first = alone.generate(PROMPT, 1, temperature=0).ids[0]
    asked: dict[str, Any] = {"prompt": PROMPT, "n_predict": 1, "return_tokens": True, **GREEDY}
    assert ask(server, "/completion", **asked)["tokens"] == [first]
    assert ask(server, "/completion", **asked, logit_bias=[[first, False]])["tokens"] != [first]
    other = ask(server, "/completion", **asked, logit_bias={"7": 1000})["tokens"]
    assert other == [7]
    assert refused(server, "/completion", prompt="x", logit_bias={"a": 1})[0] == "logit_bias"


@pytest.mark.parametrize("field, value", [
    ("mirostat", 2), ("typical_p", 0.5), ("xtc_probability", 0.1), ("dry_multiplier", 1.0),
    ("n_indent", 4), ("samplers", ["top_k"]), ("dynatemp_range", 0.5), ("min_keep", 3),
])  # fmt: skip
def test_samplers_that_it_lacks(server: Running, field: str, value: Any) -> None:
    param, message = refused(server, "/completion", prompt="x", **{field: value})
    assert param == field and "leave it out" in message


def test_what_is_off_changes_nothing(server: Running) -> None:
    off = {"mirostat": 0, "typical_p": 1.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
           "id_slot": 2, "cache_prompt": False, "n_keep": 4}  # fmt: skip
    asked = {"prompt": PROMPT, "n_predict": 8, "seed": 1}
    assert (
        ask(server, "/completion", **asked)["content"]
        == ask(server, "/completion", **asked, **off)["content"]
    )


def test_templates_and_properties(server: Running) -> None:
    talk = [{"role": "user", "content": "hi"}]
    made = ask(server, "/apply-template", messages=talk)
    assert made == {"prompt": "<|user|>hi<|assistant|>"}
    bare = ask(server, "/apply-template", messages=talk, add_generation_prompt=False)
    assert bare == {"prompt": "<|user|>hi"}
    told = server.ask("GET", "/props")[1]
    msgspec.convert(told, PropertiesAnswer)
    assert told["total_slots"] == 8 and "add_generation_prompt" in told["chat_template"]
    assert told["default_generation_settings"]["n_ctx"] == 512
    for method, path in (("GET", "/slots"), ("POST", "/slots/0?action=save")):
        status, said, _ = server.ask(method, path, {} if method == "POST" else None)
        assert status == 404 and "--slot-save-path" in said["error"]["message"]


def test_tokens_by_its_names(server: Running, alone: Decoder) -> None:
    made = ask(server, "/tokenize", content="def f", with_pieces=True)
    assert "".join(t["piece"] for t in made["tokens"]) == "def f"
    ids = ask(server, "/tokenize", content="def f")["tokens"]
    assert ids == [t["id"] for t in made["tokens"]] == alone.tokenizer.encode("def f", False)  # type: ignore[union-attr]
    assert ask(server, "/detokenize", tokens=ids)["content"] == "def f"
    assert refused(server, "/tokenize", content="x", prompt="x")[0] == "prompt"


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, int]]]:
    """A model with tokens to fill in the middle and for files."""
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>")
    folder = tmp_path_factory.mktemp("fim") / "fim"
    ids = marked_box(folder, dict.fromkeys(marks, False))
    with serving({"fim": str(folder)}) as running:
        yield running, ids


def parts(server: Running, *texts: str) -> list[list[int]]:
    return [ask(server, "/tokenize", content=text)["tokens"] for text in texts]


def test_the_middle(marked: tuple[Running, dict[str, int]]) -> None:
    server, ids = marked
    before, after = parts(server, "def f(", "return x")
    prompt = [ids["<|fim_prefix|>"], *before, ids["<|fim_suffix|>"], *after, ids["<|fim_middle|>"]]
    told = {"max_tokens": 8, "seed": 2, **GREEDY}
    expected = ask(server, "/v1/completions", prompt=prompt, **told)["choices"][0]["text"]
    made = ask(server, "/v1/completions", prompt="def f(", suffix="return x", **told)
    assert made["choices"][0]["text"] == expected
    assert made["usage"]["prompt_tokens"] == len(prompt)
    made = ask(server, "/infill", input_prefix="def ", prompt="f(", input_suffix="return x",
               n_predict=8, **GREEDY)  # fmt: skip
    assert made["content"] == expected
    made = ask(server, "/api/generate", model="fim", prompt="def f(", suffix="return x",
               stream=False, options={"temperature": 0, "num_predict": 8})  # fmt: skip
    assert made["prompt_eval_count"] == len(prompt)
    assert expected.startswith(made["response"])


def test_other_files(marked: tuple[Running, dict[str, int]]) -> None:
    server, ids = marked
    made = ask(server, "/infill", input_prefix="a", input_suffix="b", n_predict=4,
               input_extra=[{"filename": "x.py", "text": "y = 1"}], **GREEDY)  # fmt: skip
    name, file, current, a, b = parts(
        server, "repository\n", "x.py\ny = 1\n", "current\n", "a", "b"
    )
    sep = ids["<|file_sep|>"]
    prompt = [
        ids["<|repo_name|>"], *name, sep, *file, sep, *current, ids["<|fim_prefix|>"], *a,
        ids["<|fim_suffix|>"], *b, ids["<|fim_middle|>"],
    ]  # fmt: skip
    told = ask(server, "/v1/completions", prompt=prompt, max_tokens=4, **GREEDY)
    assert told["choices"][0]["text"] == made["content"]
    assert made["tokens_evaluated"] == len(prompt)


def test_a_file_token_ends_the_middle(marked: tuple[Running, dict[str, int]]) -> None:
    server, ids = marked
    asked: dict[str, Any] = {"input_prefix": "a", "input_suffix": "b", "n_predict": 4}
    bias = [[ids["<|file_sep|>"], 1000]]
    made = ask(server, "/infill", **asked, logit_bias=bias)
    assert made["content"] == "" and made["stop_type"] == "eos"


def test_models_without_such_tokens(server: Running) -> None:
    told = {"input_prefix": "a", "input_suffix": "b"}
    assert "lacks tokens to fill in" in refused(server, "/infill", **told)[1]
    assert refused(server, "/v1/completions", prompt="a", suffix="b")[0] == "suffix"
    status, made, _ = server.ask(
        "POST", "/api/generate", {"model": "box", "prompt": "a", "suffix": "b"}
    )
    assert status == 400 and "lacks tokens to fill in" in made["error"]
