"""`weft bench drafts`: both sides play the same answers; what is told is what comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.bench.drafts import CASES
from weft.cli.main import invoke
from weft.conform.models import CONFIGS
from weft.models import random_folder


def test_figures_of_each_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(random_folder(tmp_path / "model", CONFIGS["llama"]))
    small = str(random_folder(tmp_path / "small", {**CONFIGS["llama"], "num_hidden_layers": 1}))
    args = [
        "--prompt-tokens",
        "16",
        "--max-new-tokens",
        "24",
        "--repeats",
        "1",
        "--at-once",
        "1,2",
        "--json",
    ]
    assert invoke(["bench", "drafts", model, "--draft-model", small, *args]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert list(results) == [f"{case} x{count}" for count in (1, 2) for case in CASES]
    assert all(0 <= r["right"] <= r["proposed"] and r["on_tok_s"] > 0 for r in results.values())
    assert invoke(["bench", "drafts", model, "--at-once", "0"]) == 2
    assert "'0'; expected numbers from 1 to 64" in capsys.readouterr().err
