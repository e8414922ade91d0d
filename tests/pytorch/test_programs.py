"""Programs that only import torch run, with that import changed, under weft, and give the same."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "a_users_program"}
    exec(compile(text, "program", "exec"), names)
    found: dict[str, Any] = names["results"]
    return found


def with_weft(text: str) -> str:
    text = re.sub(r"^import torch$", "import weft.torch as torch", text, flags=re.M)
    return re.sub(r"^(import|from) torch\b", r"\1 weft.torch", text, flags=re.M)


def agree(mine: Any, theirs: Any, at: str) -> None:
    if isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs), at
        for i, (a, b) in enumerate(zip(mine, theirs)):
            agree(a, b, f"{at}[{i}]")
    elif isinstance(theirs, float):
        near = math.isclose(mine, theirs, rel_tol=2e-4, abs_tol=2e-5)
        assert near or (math.isnan(mine) and math.isnan(theirs)), f"{at}: {mine}, PyTorch {theirs}"
    else:
        assert mine == theirs and type(mine) is type(theirs), f"{at}: {mine}, PyTorch {theirs}"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_the_same_text_gives_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    theirs, mine = run(text), run(with_weft(text))
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        agree(mine[name], value, name)
