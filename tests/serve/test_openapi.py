"""The OpenAPI file: current, valid, and what the server does."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from serve_kit import Running

from weft.serve.openapi import description

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


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


@pytest.mark.slow
def test_schemathesis_finds_nothing(server: Running) -> None:
    """Bodies made from the schemas, right and wrong: no status 500, errors as they are said."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_dict(description())
    checked = 0
    for operation in schema.get_all_operations():
        call = operation.ok()

        @given(call.as_strategy())
        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        def ask(case: object) -> None:
            nonlocal checked
            answer = case.call(base_url=server.url)  # type: ignore[attr-defined]
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400 and answer.content:
                error = msgspec.json.decode(answer.content)["error"]
                assert error["message"] and "Traceback" not in error["message"]
            checked += 1

        ask()
    assert checked > 300
