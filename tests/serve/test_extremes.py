"""Every field of every route with values that nobody means, and caches with no room to spare."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from rows import few
from serve_kit import Running, serving

from weft.models.run.model import Decoder
from weft.serve.openapi import description

HI = [{"role": "user", "content": "hi"}]
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages": {"model": "box", "messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "box", "messages": HI},
    "/v1/embeddings": {"input": "hi"},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "a"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/api/chat": {"model": "box", "messages": HI, "options": {"num_predict": 2}},
    "/api/generate": {"model": "box", "prompt": "hi", "options": {"num_predict": 2}},
    "/api/embed": {"model": "box", "input": "hi"},
    "/api/embeddings": {"model": "box", "prompt": "hi"},
    "/api/show": {"model": "box"},
    "/api/create": {"model": "made", "from": "box"},
    "/api/copy": {"source": "box", "destination": "made"},
    **{f"{at}/rerank": {"query": "hi", "documents": ["a"]} for at in ("", "/v1", "/v2")},
    **{f"{at}/score": {"text_1": "hi", "text_2": "a"} for at in ("", "/v1")},
    "/classify": {"input": "hi"},
    "/slots/{id}": {"filename": "a"},
    **{f"/completion{s}": {"prompt": "hi", "n_predict": 1} for s in ("", "s")},
    "/infill": {"input_prefix": "hi", "n_predict": 1},
    "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/batches": {
        "input_file_id": "file-a",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}


def form(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


VALUES: list[Any] = [
    None, True, 0, -1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, 5e-324, 1e308, -1e308,
    -0.0, float("nan"), float("inf"), "\ud800", ["\ud800", ""], {"\ud800": "\ud800"},
    ["a"] * 10_000, "", "\x00", "\u202e\ufffe", "x" * 100_000,
    [], [1], [[]], [None], ["a"], [-1], [2**31], [2**64],
    [["a"]], [[1], [2]], {}, {"": None}, {"2048": 1}, {"-1": 1}, {"a": "b"}, form({}),
    form({"type": "nothing"}), form({"$ref": "#"}), form({"$ref": "http://127.0.0.1:1/x"}),
    form({"type": "string", "pattern": "(a+)+$"}), "(a|b){1000}{1000}", "start: start",
]  # fmt: skip
SAID = description()
POSTS = [  # with JSON as their body
    p for p, how in SAID["paths"].items()
    if "application/json" in how.get("post", {}).get("requestBody", {}).get("content", {})
]  # fmt: skip


@pytest.mark.parametrize("each", few([1, 10], 10))
@pytest.mark.parametrize("path", POSTS)
def test_no_value_of_a_field_breaks_the_server(server: Running, path: str, each: int) -> None:
    """Every value of every field, or one of `each` in turn through the fields."""
    body = SAID["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = SAID["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]["properties"]
    connection = HTTPConnection(server.host, server.port, timeout=240)
    for i, field in enumerate(fields):
        for value in VALUES[i % each :: each]:
            asked = json.dumps({**BASE[path], field: value})
            connection.request("POST", path, asked)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status in (200, 400, 404, 429), (field, value, answer.status, text)
            assert answer.status == 200 or len(text) < 10_000
    assert server.ask("GET", "/health")[0] == 200


TEXTS = [
    "\x00", "\ufeff", "\U0010ffff", "e" + "\u0301" * 150, "\u202e\u2066", "\r\n\r\ndata: x\n\n",
    "<|endoftext|>", "{{ 7 * 7 }}{% raise %}", "</tool_call><tool_call>", "\ud7ff\ue000",
    "a\u2028b",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_any_text_is_read_and_told_as_it_is(server: Running, alone: Decoder, text: str) -> None:
    ids = server.ask("POST", "/tokenize", {"prompt": text})[1]["tokens"]
    assert alone.tokenizer is not None and ids == alone.tokenizer.encode(text)
    assert server.ask("POST", "/detokenize", {"tokens": ids})[1]["prompt"] == text
    messages = [{"role": "user", "content": text}]
    asked = {"messages": messages, "max_tokens": 8, "temperature": 0}
    status, made, _ = server.ask("POST", "/v1/chat/completions", asked)
    expected = alone.generate(alone.chat_ids(messages), max_new_tokens=8).text
    assert status == 200 and made["choices"][0]["message"]["content"] == expected
    echoed = server.ask("POST", "/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True})
    assert echoed[1]["choices"][0]["text"] == text


@pytest.mark.parametrize("field", ["chat_template", "template", "documents", "image_url", "lora"])
def test_nothing_to_run_or_fetch_is_taken(server: Running, field: str) -> None:
    asked = {"messages": HI, "max_tokens": 1, field: "http://127.0.0.1:1/{{ 1 }}"}
    status, body, _ = server.ask("POST", "/v1/chat/completions", asked)
    assert status == 400 and body["error"]["param"] == field
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}
    asked = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    assert server.ask("POST", "/v1/chat/completions", asked)[0] == 400


def test_logs_hold_no_words(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "weft")  # as --log-level debug does
    word = "zanzibar"
    for path, body in BASE.items():
        for more in ({}, {word: word}, {"model": word}, {"stop": [word] * 99}, {"stream": 5}):
            for field in ("prompt", "input", "messages"):
                given = [{"role": "user", "content": word}] if field == "messages" else word
                server.ask(
                    "POST", path, {**body, **({field: given} if field in body else {}), **more}
                )
    server.ask("POST", "/v1/completions", (word * 3).encode())
    server.ask(
        "GET", f"/{word}?{word}", headers={"X-Word": word, "Authorization": f"Bearer {word}"}
    )
    assert word not in caplog.text and "/v1/completions 200" in caplog.text
    assert word not in server.ask("GET", "/metrics")[1]


def test_a_cache_with_room_for_one_serves_all(chatty: Path, alone: Decoder) -> None:
    """Contexts of one page and of two, as many pages as one sequence takes, three places."""
    prompts = ["x", "import os\n", "def f(a, b):\n    return", "class Node:", "#", "for i in"]
    for context in (64, 128):  # tokens; a page holds 64
        small = {"load": {"device": "cpu", "context": context}, "memory": 1, "sequences": 3}
        with serving({"box": str(chatty)}, **small) as running, ThreadPoolExecutor(12) as pool:

            def ask(prompt: str, running: Running = running, n: int = context - 12) -> Any:
                asked = {"prompt": prompt, "max_tokens": n, "seed": 3, "n": 2}
                return running.ask("POST", "/v1/completions", asked)

            for prompt, (status, made, _) in zip(prompts * 2, pool.map(ask, prompts * 2)):
                ids = alone.encode(prompt)
                assert status == 200, made
                assert (
                    made["choices"][0]["text"]
                    == alone.generate(
                        ids, max_new_tokens=context - 12, temperature=1.0, seed=3
                    ).text
                )
            assert running.shelf.decoders()[0].engine.stats.held == 0
