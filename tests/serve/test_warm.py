"""A model that is served compiles nothing after it was loaded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serve_kit import chatty_box, serving

from weft.models.run.compiled_runner import CompiledRunner


def test_no_request_waits_for_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one row, of a few and of many, prompts, scores: each kind has run before."""
    made: list[str] = []
    compile_ = CompiledRunner._compile

    def noted(runner: CompiledRunner, kind: str) -> Any:
        made.append(kind)
        return compile_(runner, kind)

    monkeypatch.setattr(CompiledRunner, "_compile", noted)
    folder = chatty_box(tmp_path / "box", 2048)
    with serving({"box": str(folder)}, sequences=24) as server:
        model = {"model": "box", "ignore_eos": True}
        status, _, _ = server.ask("POST", "/v1/completions", {**model, "prompt": "a"})
        assert status == 200
        before = list(made)
        bodies: list[dict[str, Any]] = [
            {"prompt": ["def"] * 20, "max_tokens": 30, "temperature": 1.0},
            {"prompt": list(range(4, 250)) * 6, "max_tokens": 8},
            {"prompt": "for i in", "max_tokens": 40},
            {"prompt": "x = 1\n" * 40, "max_tokens": 2, "prompt_logprobs": 1},
            {"prompt": "y", "max_tokens": 20, "n": 4, "logprobs": 2},
        ]
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = pool.map(
                lambda body: server.ask("POST", "/v1/completions", {**model, **body}), bodies
            )
            for status, found, _ in answers:
                assert status == 200, json.dumps(found)
        assert before and made == before
