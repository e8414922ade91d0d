"""The OpenAPI file: current, valid, and what the server does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from adapter_kit import adapter
from serve_kit import Running, serving

from weft.cli.serve import serve
from weft.serve.app import routes
from weft.serve.llama.types import LlamaAnswer
from weft.serve.openai.answers import HealthAnswer
from weft.serve.openapi import description

sys.path.append(str(Path(__file__).parents[1] / "robust"))
from robust_kit import BERT, tiny

sys.path.append(str(Path(__file__).parents[1] / "models"))
from test_judges import written

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "openapi.json"


def test_the_file_is_current(server: Running) -> None:
    made = json.loads(json.dumps(description()))
    assert json.loads(FILE.read_text()) == made, "python -m weft.serve.openapi > docs/openapi.json"
    assert server.ask("GET", "/openapi.json")[1] == made


def test_every_route_has_a_line() -> None:
    for path, methods in description()["paths"].items():
        for operation in methods.values():
            assert operation["summary"] != path


def test_references_lead_somewhere() -> None:
    text = FILE.read_text()
    known = json.loads(text)["components"]["schemas"]
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.split('"', 1)[0] in known


def test_the_docs_name_every_field() -> None:
    """docs/serving.md says of each whether it is honoured, inert or refused."""
    rows = [row for row in (DOCS / "serving.md").read_text().splitlines() if row[:1] == "|"]
    for route in routes():
        path = route.path.replace(":path", "")
        named = re.compile(f"[ `]{re.escape(path)}`")
        row = next((r for r in rows if named.search(r.split("|")[1])), "")
        assert row, f"docs/serving.md has no row of {path}"
        fields = [] if route.body is None else msgspec.structs.fields(route.body)
        missing = [field.name for field in fields if f"`{field.encode_name}`" not in row]
        assert not missing, f"docs/serving.md does not say of {path} what becomes of {missing}"


def test_the_docs_name_every_option() -> None:
    text = (DOCS / "serving.md").read_text()
    for option in serve.params:
        for name in option.opts:
            assert f"`{name}" in text or len(name) == 2 or name == "models", name


ASKED: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3,
                             "n": 2, "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"prompt": ["x", "y"], "max_tokens": 2, "echo": True, "logprobs": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 3, "top_logprobs": 1},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/api/chat": {"model": "box", "messages": [{"role": "user", "content": "x"}],
                  "options": {"num_predict": 3}, "stream": False, "logprobs": True},
    "/api/generate": {"model": "box", "prompt": "x", "options": {"num_predict": 3},
                      "stream": False},
    "/api/show": {"model": "box"},
    "/api/tags": None,
    "/api/ps": None,
    "/api/version": None,
    "/v1/models": None,
    "/v1/models/box": None,
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5, 6]},
    "/tokenizer_info": None,
    "/health": None,
    "/completion": {"prompt": "x", "n_predict": 3, "n_probs": 1, "return_tokens": True},
    "/completions": {"prompt": [1, "x"], "n_predict": 3},
    "/apply-template": {"messages": [{"role": "user", "content": "x"}]},
    "/props": None,
}  # fmt: skip


EMBEDDED: dict[str, Any] = {
    "/v1/embeddings": {"input": ["x", "y"]},
    "/api/embed": {"model": "bert", "input": ["x"]},
    "/api/embeddings": {"model": "bert", "prompt": "x"},
    "/api/show": {"model": "bert"},
    "/api/tags": None,
    "/api/ps": None,
    "/v1/models": None,
    "/v1/models/bert": None,
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5, 6]},
    "/tokenizer_info": None,
    "/health": None,
}
JUDGED: dict[str, Any] = {
    **{f"{at}/rerank": {"query": "x", "documents": ["y", "z"]} for at in ("", "/v1", "/v2")},
    **{f"{at}/score": {"text_1": "x", "text_2": ["y", "z"]} for at in ("", "/v1")},
    "/classify": {"input": ["x", "y"], "model": "labels"},
    "/v1/models/judge": None,
    "/tokenize": {"prompt": "x"},
    "/health": None,
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALLED: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS,
                             "tool_choice": "required", "max_tokens": 60},
    "/api/chat": {"model": "box", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS,
                  "options": {"num_predict": 3}, "stream": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60,
                     "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                     "tool_choice": {"type": "any"}},
    "/v1/responses": {"input": "x", "max_output_tokens": 60, "tool_choice": "required",
                      "tools": [{"type": "function", "name": "f", "strict": False,
                                 "parameters": {"type": "object", "properties": {}}}]},
}  # fmt: skip
ADAPTED = ("/v1/models", "/v1/models/box", "/v1/models/shy", "/api/tags", "/api/ps", "/health")


def compare(server: Running, asked: dict[str, Any]) -> None:
    """Answers have the fields that their types say, and satisfy the file's schemas."""
    file = description()
    for path, body in asked.items():
        status, found, _ = server.ask("GET" if body is None else "POST", path, body)
        route = next(r for r in routes() if re.fullmatch(r.path_regex, path))
        assert status == 200 and route.answer is not None, (path, found)
        msgspec.convert(found, route.answer)
        told = file["paths"][route.path.replace(":path", "")]
        operation = told["get" if body is None else "post"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": file["components"]}
        jsonschema.Draft202012Validator(whole).validate(found)


def test_every_route_that_answers_in_json_is_compared() -> None:
    compared = {*ASKED, *EMBEDDED, *JUDGED}
    for route in routes():
        if route.path == "/infill":  # as /completion's: test_llama.py has a model for it
            assert route.answer is LlamaAnswer
        elif route.path.startswith(("/v1/files", "/v1/batches", "/v1/audio", "/api/create")):
            continue  # test_batches.py, test_audio.py and test_create.py have servers for them
        elif route.answer is not None:
            assert any(re.fullmatch(route.path_regex, path) for path in compared), route.path
        elif not route.path.startswith("/api/"):  # what manages models is always refused
            plain = ("/metrics", "/openapi.json", "/", "/page/{name}", "/slots", "/slots/{id}")
            assert route.path in plain or route.path.endswith("load_lora_adapter")


def test_answers_of_models_that_judge(tmp_path: Path) -> None:
    written("bert", tmp_path / "judge", labels=1)
    written("bert", tmp_path / "labels")
    with serving({name: str(tmp_path / name) for name in ("judge", "labels")}) as running:
        compare(running, JUDGED)


def test_answers_of_a_model_that_writes(server: Running) -> None:
    compare(server, ASKED)
    compare(server, CALLED)


def test_answers_of_a_model_that_embeds(tmp_path: Path) -> None:
    with serving({"bert": str(tiny(tmp_path, BERT))}) as embedder:
        unloaded = ("/v1/models", "/v1/models/bert", "/api/tags", "/api/ps", "/health")
        compare(embedder, dict.fromkeys(unloaded))
        compare(embedder, EMBEDDED)


def test_answers_about_adapters_and_a_lost_engine(chatty: Path, tmp_path: Path) -> None:
    shy = adapter(tmp_path / "one", chatty, ("q_proj", "v_proj"), 4, 1)
    with serving({"box": str(chatty)}, adapters={"shy": str(shy)}) as server:
        compare(server, dict.fromkeys(ADAPTED))
        compare(server, {**ASKED, "/api/show": {"model": "shy"}})
        compare(server, dict.fromkeys(ADAPTED))
        assert server.ask("GET", "/v1/models/shy")[1]["parent"] == "box"
        server.shelf.decoders()[0].player.failed = "it ended"
        status, found, _ = server.ask("GET", "/health")
        assert status == 503 and found["failed"] == {"box": "it ended"}
        msgspec.convert(found, HealthAnswer)


def test_refusals_have_the_form_they_are_said_to(server: Running) -> None:
    """Of every route, by its own protocol."""
    file = description()
    for route in routes():
        if route.body is None:
            continue
        (method,) = route.methods or set()
        status, found, _ = server.ask(method, route.path, {"no such field": 1})
        operation = file["paths"][route.path][method.lower()]
        said = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        whole = {**said, "components": file["components"]}
        assert status == 400
        jsonschema.Draft202012Validator(whole).validate(found)


def test_another_method_is_told_which(server: Running) -> None:
    cases: tuple[tuple[str, str, set[str]], ...] = (
        ("GET", "/tokenize", {"POST"}), ("PUT", "/v1/models", {"GET", "HEAD"}),
        ("PUT", "/v1/files", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/batches", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/files/a", {"GET", "HEAD", "DELETE"}),
    )  # fmt: skip
    for method, path, allowed in cases:
        status, body, headers = server.ask(method, path)
        assert status == 405 and set(headers["allow"].split(", ")) == allowed
        assert body["error"]["message"] == f"there is no {method} '{path}' here"


@pytest.mark.slow
def test_schemathesis_finds_nothing(server: Running, tmp_path: Path) -> None:
    """Bodies made from the schemas, right and wrong: no status 500, answers as they are said."""
    program = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")
    if program is None:
        pytest.skip("no schemathesis; SCHEMATHESIS names it: docs/testing.md")
    # What the schema allows may still be refused: a prompt too long, a model that is not there.
    more = ("--checks", "all", "--exclude-checks", "positive_data_acceptance", "-n", "100")
    more += ("--request-timeout", "300")  # a whole context, on a busy machine
    subprocess.run([program, "run", FILE, "--url", server.url, *more], check=True, cwd=tmp_path)
