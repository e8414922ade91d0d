"""Sizes of requests: bodies beyond the limit on every route, more tokens than a key ever has."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Running, serving

from weft.serve.app import routes
from weft.serve.forms import BESIDE, MAX_FILE
from weft.serve.keys import ApiKey, ApiKeys, KeyLimits
from weft.serve.routing import JSON, Described
from weft.serve.wire import MAX_BODY

sys.path.append(str(Path(__file__).parents[1] / "models"))
from test_judges import write_yes_no, written

sys.path.append(str(Path(__file__).parents[1] / "robust"))
from robust_kit import BERT, tiny

KEY = "root" * 4
SENT = [one for one in routes() if one.body is not None]


@pytest.fixture(scope="module")
def many(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("sizes")
    written("bert", home / "judge", labels=1)
    written("roberta", home / "labels", id2label={0: "warp", 1: "weft", 2: "loom"})
    write_yes_no(home / "yes", template=None)
    tiny(home / "vectors", BERT)
    models = {name: str(home / name) for name in ("judge", "labels", "yes", "vectors")}
    keys = ApiKeys([ApiKey("ann", b"ann-" * 4, KeyLimits(tokens_per_minute=40)),
                    ApiKey("", KEY.encode())])  # fmt: skip
    folders = {name: str(tmp_path_factory.mktemp(name)) for name in ("made", "slots")}
    with serving(
        {"box": str(chatty), **models}, key=keys, batches=home / "batches",
        model_folder=folders["made"], sessions=folders["slots"],
    ) as running:  # fmt: skip
        yield running


@pytest.mark.parametrize("described", SENT, ids=lambda one: one.path)
def test_a_body_beyond_the_limit(many: Running, described: Described) -> None:
    """It is refused by its head."""
    json_ = described.media == JSON
    most = MAX_BODY if json_ else MAX_FILE
    connection = HTTPConnection(many.host, many.port, timeout=60)
    (method,) = described.methods or ()
    connection.putrequest(method, described.path.replace("{id}", "0"))
    connection.putheader("X-Api-Key", KEY)
    connection.putheader("Content-Type", JSON if json_ else f"{described.media}; boundary=x")
    connection.putheader("Content-Length", str(most + (1 if json_ else BESIDE + 1)))
    connection.endheaders()
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    assert answer.status == 413 and f"at most {most} bytes" in json.dumps(said)


LONG = "x = 1\n" * 40
TALK = [{"role": "user", "content": LONG}]
SIZED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 16, "n": 4}),
    ("/v1/chat/completions", {"messages": TALK}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/messages", {"messages": TALK, "max_tokens": 1}),
    ("/api/generate", {"model": "box", "prompt": LONG}),
    ("/api/chat", {"model": "box", "messages": TALK}),
    ("/completion", {"prompt": LONG}),
    ("/completion", {"prompt": "x", "n_predict": 60}),
    ("/v1/embeddings", {"model": "vectors", "input": [LONG[:20]] * 9}),
    ("/api/embed", {"model": "vectors", "input": [LONG[:20]] * 9}),
    ("/rerank", {"model": "judge", "query": "x", "documents": [LONG[:20]] * 9}),
    ("/rerank", {"model": "yes", "query": "x", "documents": ["x", "y", "z"] * 9}),
    ("/score", {"model": "judge", "text_1": "x", "text_2": [LONG[:20]] * 9}),
    ("/classify", {"model": "labels", "input": [LONG[:20]] * 9}),
]


@pytest.mark.parametrize("path, body", SIZED, ids=range(len(SIZED)))
def test_more_tokens_than_a_key_ever_has(many: Running, path: str, body: dict[str, Any]) -> None:
    """No wait makes it fit: 400 at once, and nothing of the key's tokens is used."""
    status, made, headers = many.ask("POST", path, body, {"x-api-key": "ann-" * 4})
    assert status == 400 and "40 tokens per minute" in json.dumps(made), made
    assert {k.lower(): v for k, v in headers.items()}["x-ratelimit-remaining-tokens"] == "40"
    status, made, _ = many.ask("POST", path, body, {"x-api-key": KEY})
    assert status == 200, made


def test_tokens_are_counted_and_bodies_read_for_nothing(many: Running) -> None:
    ann = {"x-api-key": "ann-" * 4}
    for path, body in (
        ("/tokenize", {"prompt": LONG}), ("/detokenize", {"tokens": [5] * 200}),
        ("/v1/messages/count_tokens", {"model": "box", "messages": TALK}),
        ("/v1/responses/input_tokens", {"input": LONG}), ("/apply-template", {"messages": TALK}),
    ):  # fmt: skip
        status, made, headers = many.ask("POST", path, body, ann)
        assert status == 200, made
        assert {k.lower(): v for k, v in headers.items()}["x-ratelimit-remaining-tokens"] == "40"
