"""Structured answers over HTTP: what ends by itself is what the schema, pattern or grammar says."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemas import schemas
from serve_kit import Running

PATH = "/v1/chat/completions"
N = 8  # answers of a request
FEW = 5  # requests of each kind by default; times N and three kinds
MANY = 640  # with the slow tests: 15,360 answers, two thirds of which end by themselves

_CLASSES = st.sampled_from(
    ["[a-z]", "[^x\\n]", "[0-9a-f]", "é", "(ab|cd)", "\\.", "(?:un|re)?do", "[🙂🙃]", "\\\\"]
)
_COUNTS = st.sampled_from(["", "?", "{2}", "{1,3}", "*", "+"])
PATTERNS = st.lists(st.tuples(_CLASSES, _COUNTS).map(lambda t: f"(?:{t[0]}){t[1]}"), min_size=1,
                    max_size=5).map("".join)  # fmt: skip


def balanced(text: str) -> None:
    while "()" in text or "[]" in text:
        text = text.replace("()", "").replace("[]", "")
    assert text == ""


def calls(text: str) -> None:
    """A call of names and numbers, as Python reads it."""
    assert isinstance(ast.parse(text, mode="eval").body, ast.Call)


GRAMMARS: list[tuple[str, Callable[[str], Any]]] = [
    ('start: "(" start ")" start | "[" start "]" start |', balanced),
    ('root ::= "(" root ")" root | "[" root "]" root | ""', balanced),
    ('start: NAME "(" [arg ("," arg)*] ")"\narg: NAME | /[1-9][0-9]{0,3}/ | start\n'
     "NAME: /[a-c][xyz_]{0,4}/", calls),
    ('start: sum\nsum: term (("+" | "-") term)*\nterm: /[1-9][0-9]{0,2}/ | "(" sum ")"', eval),
    ('root ::= row ("\\n" row){1,3}\nrow ::= [a-z]+ "," [0-9]{1,3}',
     lambda text: [int(line.split(",")[1]) for line in text.split("\n")]),
]  # fmt: skip


class Judged:
    """Counts the answers that were judged, and those that their number of tokens cut off."""

    def __init__(self, server: Running) -> None:
        self.server, self.whole, self.cut = server, 0, 0

    def ask(self, body: dict[str, Any], seed: int, judge: Callable[[str], Any]) -> None:
        asked = {
            "messages": [{"role": "user", "content": "x"}], "max_tokens": 160, "seed": seed,
            "n": N, "temperature": 1.3, **body,
        }  # fmt: skip
        status, made, _ = self.server.ask("POST", PATH, asked)
        assert status == 200, made
        for choice in made["choices"]:
            if choice["finish_reason"] == "length":
                self.cut += 1
                continue
            self.whole += 1
            judge(choice["message"]["content"])


def satisfies(schema: Any) -> Callable[[str], None]:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    return lambda text: validator.validate(json.loads(text, parse_constant=pytest.fail))


def judged(server: Running, count: int) -> Judged:
    """Asks for `count` requests of each kind."""
    found = Judged(server)
    drawn = settings(
        max_examples=count, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    seeds = st.integers(0, 1 << 60)

    @drawn
    @given(schema=schemas, seed=seeds)
    def of_schemas(schema: Any, seed: int) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        found.ask({"response_format": form}, seed, satisfies(schema))

    @drawn
    @given(pattern=PATTERNS, seed=seeds)
    def of_patterns(pattern: str, seed: int) -> None:
        def judge(text: str) -> None:
            assert re.fullmatch(pattern, text), (pattern, text)

        found.ask({"guided_regex": pattern}, seed, judge)

    @drawn
    @given(which=st.sampled_from(GRAMMARS), seed=seeds)
    def of_grammars(which: tuple[str, Callable[[str], Any]], seed: int) -> None:
        found.ask({"guided_grammar": which[0]}, seed, which[1])

    of_schemas()
    of_patterns()
    of_grammars()
    return found


def test_a_hundred_answers(server: Running) -> None:
    found = judged(server, FEW)
    assert found.whole + found.cut == 3 * N * FEW and found.whole > found.cut


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_answers(server: Running) -> None:
    found = judged(server, MANY)
    print(f"{found.whole} answers judged, {found.cut} cut off by their number of tokens")
    assert found.whole >= 10_000
