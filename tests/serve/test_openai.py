"""OpenAI's own client, unmodified, against the server; answers are those of the model alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest
from serve_kit import Running

from weft.models.run.model import Decoder

PROMPT = "def fibonacci(n):"
HELLO = [{"role": "user", "content": "Write a loop."}]


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["box"]
    assert client.models.retrieve("box").owned_by == "weft"
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        client.models.retrieve("other")


@pytest.mark.parametrize("sampled", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}])
def test_a_completion_is_the_models_own(
    client: openai.OpenAI, alone: Decoder, sampled: dict[str, Any]
) -> None:
    made = client.completions.create(model="box", prompt=PROMPT, max_tokens=24, seed=7, **sampled)
    expected = alone.generate(PROMPT, max_new_tokens=24, seed=7, **sampled)
    assert made.choices[0].text == expected.text
    assert made.usage is not None and made.usage.completion_tokens == len(expected.ids)
    assert made.choices[0].finish_reason == "length"
    assert made.system_fingerprint


def test_a_stream_joins_to_the_whole(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "box", "prompt": PROMPT, "max_tokens": 24, "seed": 3, "n": 3}
    whole = client.completions.create(**asked)
    texts = ["", "", ""]
    usage = None
    for chunk in client.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert len(set(texts)) == 3  # each choice draws for itself
    assert usage is not None and whole.usage is not None
    assert usage.total_tokens == whole.usage.total_tokens


def test_echo_gives_the_prompts_logprobs(client: openai.OpenAI, alone: Decoder) -> None:
    ids = alone.encode(PROMPT)
    made = client.completions.create(
        model="box", prompt=ids, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1
    )
    logprobs = made.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    logits = alone.logits(ids).astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    table = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    expected = [table[i, t] for i, t in enumerate(ids[1:])]
    assert logprobs.token_logprobs[0] is None
    np.testing.assert_allclose(logprobs.token_logprobs[1:-1], expected, atol=1e-9)
    assert logprobs.token_logprobs[-1] == pytest.approx(table[-1].max(), abs=1e-9)
    assert made.choices[0].text.startswith(PROMPT)


def test_no_new_tokens(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="box", prompt=PROMPT, max_tokens=0, echo=True, logprobs=0
    )
    assert made.choices[0].text == PROMPT
    assert made.usage is not None and made.usage.completion_tokens == 0


def test_several_prompts(client: openai.OpenAI, alone: Decoder) -> None:
    prompts = [PROMPT, "import", "class Node:"]
    made = client.completions.create(model="box", prompt=prompts, max_tokens=8, temperature=0)
    assert [c.text for c in made.choices] == [
        alone.generate(p, max_new_tokens=8).text for p in prompts
    ]


def test_chat(client: openai.OpenAI, alone: Decoder) -> None:
    made = client.chat.completions.create(
        model="box", messages=HELLO, max_completion_tokens=16, seed=5,
        logprobs=True, top_logprobs=2,
    )  # fmt: skip
    ids = alone.chat_ids(HELLO)
    expected = alone.generate(ids, max_new_tokens=16, temperature=1.0, seed=5)
    choice = made.choices[0]
    assert choice.message.content == expected.text
    assert choice.logprobs is not None and choice.logprobs.content is not None
    told = choice.logprobs.content
    assert b"".join(bytes(t.bytes or ()) for t in told).decode() == expected.text
    assert all(len(t.top_logprobs) == 2 for t in told)


def test_chat_streams(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "box", "messages": HELLO, "max_tokens": 16, "seed": 5}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "length"


def test_a_stop_ends_the_text(client: openai.OpenAI, alone: Decoder) -> None:
    whole = alone.generate(PROMPT, max_new_tokens=40).text
    stop = whole[10:13]
    made = client.completions.create(
        model="box", prompt=PROMPT, max_tokens=40, temperature=0, stop=[stop]
    )
    assert made.choices[0].text == whole[: whole.index(stop)]
    assert made.choices[0].finish_reason == "stop"


def test_biases_and_penalties_are_the_samplers(client: openai.OpenAI, alone: Decoder) -> None:
    first = alone.generate(PROMPT, max_new_tokens=1).ids[0]
    made = client.completions.create(
        model="box", prompt=PROMPT, max_tokens=1, temperature=0, logit_bias={str(first): -100}
    )
    logits = alone.logits(alone.encode(PROMPT))[-1].copy()
    logits[first] = -np.inf
    assert made.choices[0].text == alone.tokenizer.decode([int(logits.argmax())])


def test_a_schema_is_followed(client: openai.OpenAI) -> None:
    schema = {
        "type": "object", "additionalProperties": False, "required": ["name", "size"],
        "properties": {
            "name": {"enum": ["red", "green"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 9},
        },
    }  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    for seed in range(5):
        made = client.chat.completions.create(
            model="box", messages=HELLO, seed=seed, response_format=form, max_tokens=60
        )
        found = json.loads(made.choices[0].message.content or "")
        assert found["name"] in ("red", "green") and 0 <= found["size"] <= 9
        assert made.choices[0].finish_reason == "stop"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 10**9}, "n"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"logprobs": 21}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 5}, "best_of"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**30}, None),
    ({"prompt": []}, "prompt"),
    ({"prompt": [["a"]]}, "prompt"),
    ({"no_such_field": 1}, "no_such_field"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), WRONG)
def test_what_is_wrong_is_named(server: Running, fields: dict[str, Any], named: str | None) -> None:
    status, body, _ = server.ask("POST", "/v1/completions", {"prompt": PROMPT, **fields})
    assert status == 400
    error = body["error"]
    assert error["param"] == named or named is None
    assert "Traceback" not in error["message"] and len(error["message"]) < 300


def test_a_context_too_long_is_an_error(server: Running) -> None:
    status, body, _ = server.ask("POST", "/v1/completions", {"prompt": [1] * 600})
    assert status == 400 and "600" in body["error"]["message"] and "512" in body["error"]["message"]
    assert body["error"]["code"] == "context_length_exceeded"  # clients that can, shorten by it
    asked = {"prompt": [1] * 500, "max_tokens": 100}
    status, body, _ = server.ask("POST", "/v1/completions", asked)
    assert status == 400 and "100 new ones" in body["error"]["message"]


def test_tokens_there_and_back(server: Running) -> None:
    _, made, _ = server.ask("POST", "/tokenize", {"prompt": PROMPT})
    assert made["count"] == len(made["tokens"])
    _, back, _ = server.ask("POST", "/detokenize", {"tokens": made["tokens"]})
    assert back["prompt"] == PROMPT


def test_metrics_name_no_prompt(server: Running) -> None:
    server.ask("POST", "/v1/completions", {"prompt": "a secret", "max_tokens": 2})
    status, text, _ = server.ask("GET", "/metrics")
    assert status == 200 and "weft_new_tokens_total" in text and "secret" not in text


def test_embeddings_are_refused_by_a_decoder(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not embed"):
        client.embeddings.create(model="box", input="text")
