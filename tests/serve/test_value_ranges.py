"""Values of fields out of their range: refused with status 400 and the field's name, whether the
field is honoured or inert, in every protocol."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from serve_kit import Running

TEXT, CHAT, LLAMA = "/v1/completions", "/v1/chat/completions", "/completion"
STARTS: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "import", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/messages": {
        "model": "box", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1
    },
    LLAMA: {"prompt": "import", "n_predict": 1},
    "/api/generate": {"model": "box", "prompt": "hi", "stream": False},
    "/api/chat": {
        "model": "box", "messages": [{"role": "user", "content": "hi"}], "stream": False
    },
}  # fmt: skip
BEYOND = 1 << 40  # more than any model's slots and tokens


def tools(path: str) -> list[dict[str, Any]]:
    """Two tools of one name, as a protocol writes them."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if path == "/v1/messages":
        return [{"name": "find", "input_schema": schema}] * 2
    if path == "/v1/responses":
        return [{"type": "function", "name": "find", "parameters": schema}] * 2
    return [{"type": "function", "function": {"name": "find", "parameters": schema}}] * 2


@pytest.mark.parametrize("path, fields", [
    *((path, {field: value}) for path in (TEXT, CHAT) for field, value in (
        ("id_slot", BEYOND), ("id_slot", -2), ("top_k", -2), ("truncate_prompt_tokens", 0),
        ("logit_bias", {"999999999": 1}), ("stop_token_ids", [BEYOND]), ("stop", ["x"] * 1000),
        ("seed", 1 << 64), ("seed", -(1 << 63) - 1), ("n", 0), ("stop", [""]),
    )),
    *((path, {"priority": value}) for path in (TEXT, CHAT, "/v1/responses")
      for value in (10**30, -(10**30), 1 << 31, 1.5, "first")),
    (TEXT, {"logprobs": 21}), (TEXT, {"best_of": 2}), (CHAT, {"n_predict": -2}),
    ("/v1/responses", {"max_tool_calls": -1}), ("/v1/responses", {"top_k": -2}),
    *((LLAMA, {field: value}) for field, value in (
        ("id_slot", BEYOND), ("id_slot", -2), ("n_keep", -2), ("repeat_last_n", -2),
        ("dry_penalty_last_n", -2), ("dry_base", "high"), ("dry_sequence_breakers", 5),
        ("mirostat_tau", "x"), ("xtc_threshold", []), ("n_probs", -1), ("min_keep", -1),
        ("logit_bias", [[BEYOND, 1]]), ("seed", 1 << 64),
    )),
    *(("/api/generate", {"options": {field: value}}) for field, value in (
        ("num_thread", "all"), ("num_keep", "x"), ("use_mmap", "maybe"), ("num_gpu", {}),
        ("repeat_last_n", -2), ("mirostat_tau", "x"), ("num_ctx", 0), ("seed", 1 << 64),
    )),
    *((path, {"tools": tools(path)})
      for path in (CHAT, "/v1/responses", "/v1/messages", "/api/chat")),
], ids=str)  # fmt: skip
def test_a_value_out_of_its_range(server: Running, path: str, fields: dict[str, Any]) -> None:
    status, made, _ = server.ask("POST", path, {**STARTS[path], **fields})
    name = next(iter(fields.get("options", fields)))
    assert status == 400 and name in json.dumps(made), made


def test_values_at_the_ends_of_their_ranges(server: Running) -> None:
    most = server.shelf.decoders()[0].runner.slots - 1
    for path, fields in (
        (TEXT, {"id_slot": most, "top_k": -1, "seed": -(1 << 63), "truncate_prompt_tokens": 1}),
        (LLAMA, {"id_slot": -1, "n_keep": -1, "repeat_last_n": -1, "top_k": -5, "dry_base": 1.75,
                 "dry_sequence_breakers": ["\n"], "xtc_threshold": 0.1, "mirostat_tau": 5}),
        ("/api/generate", {"options": {"num_thread": 4, "num_gpu": -1, "use_mmap": True,
                                       "num_keep": 4, "num_predict": 1, "mirostat_eta": 0.1}}),
    ):  # fmt: skip
        status, made, _ = server.ask("POST", path, {**STARTS[path], **fields})
        assert status == 200, made


@pytest.mark.parametrize("path", [TEXT, "/v1/messages", "/api/chat"])
def test_a_compressed_body_is_refused(server: Running, path: str) -> None:
    body = gzip.compress(json.dumps(STARTS[path]).encode())
    status, made, _ = server.ask("POST", path, body, {"Content-Encoding": "gzip"})
    assert status == 415 and "Content-Encoding is 'gzip'" in json.dumps(made)
    plain = json.dumps(STARTS[path]).encode()
    assert server.ask("POST", path, plain, {"Content-Encoding": "identity"})[0] == 200
