"""Weights that arrive in pieces are what the recipe makes of the whole tensor."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from page_device import PLAYER
from page_kit import need

SCRIPT = Path(__file__).with_name("pour.mjs")


@pytest.mark.parametrize("cuts", [[], [6], [2, 4, 250, 252], [128, 384], [750]])
@pytest.mark.parametrize(
    ("start", "lanes", "item"),
    [(0, 1, 1), (5, 1, 1), (0, 8, 1), (8, 8, 1), (4, 4, 4), (16, 16, 1), (16, 16, 4)],
)
def test_pieces_make_the_whole(cuts: list[int], start: int, lanes: int, item: int) -> None:
    need()
    dtype = np.dtype(np.int8 if item == 4 else np.float16)
    rows, count, depth = 24, 16, 36
    w = np.arange(rows * depth).astype(np.int8).astype(dtype).reshape(rows, depth)
    part = np.zeros((count, depth), dtype)  # zeros follow the last row
    part[: rows - start] = w[start : start + count]
    want = part
    if lanes > 1:  # docstring of weft.program.recipe
        want = part.reshape(count // lanes, lanes, depth // item, item).transpose(0, 2, 1, 3)
    spec = {"name": "w", "role": "weight", "dtype": dtype.name, "nbytes": part.nbytes}
    recipe = {"whole": "all", "start": start, "rows": rows, "lanes": lanes, "item": item}
    given = {"bytes": [*w.tobytes()], "cuts": cuts, "spec": spec, "recipe": recipe}
    told = subprocess.run(
        ["node", SCRIPT, PLAYER], input=json.dumps(given), capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert bytes(json.loads(told.stdout)) == np.ascontiguousarray(want).tobytes()
