"""What a fingerprint stands for: servers that have the same one give the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from weft.host.samples import SAMPLE
from weft.serve import prints


def print_of(folder: Path, **options: Any) -> str:
    return prints.print_of(weft.load(folder, device="cpu", **options))


def test_the_same_model_has_the_same_in_any_folder(chatty: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    for path in chatty.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert print_of(chatty) == print_of(other)


@pytest.mark.parametrize(
    "options",
    [{"quant": "int8"}, {"quant": "int4"}, {"act_dtype": "bfloat16"}, {"cache": "int8"},
     {"dtype": "float32"}, {"context": 128}],
    ids=str,
)  # fmt: skip
def test_what_changes_answers_changes_it(chatty: Path, options: dict[str, Any]) -> None:
    assert print_of(chatty, **options) != print_of(chatty)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.99])
def test_other_weights_have_another(chatty: Path, tmp_path: Path, at: float) -> None:
    """Wherever a file differs, in a run as long as the distance between samples."""
    before = print_of(chatty)
    for path in chatty.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = max(tmp_path.iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(weights.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little") + int(at * (len(data) - SAMPLE - 100_000))
    for i in range(begin, begin + SAMPLE, 2):
        data[i] ^= 1
    weights.write_bytes(data)
    assert print_of(tmp_path) != before
