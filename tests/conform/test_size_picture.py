"""Names in the picture of `weft eval` can be read."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from weft.bench import size_picture


@pytest.mark.parametrize("spread", [0.0, 1e-5, 1e-3, 1.0])
def test_no_name_covers_another(spread: float, tmp_path: Path, monkeypatch: Any) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(size_picture, "save_figure", lambda figure, path: kept.append(figure))
    runs = [
        {"name": f"form-{i}", "weight_bytes": 2_000_000 + 40 * i, "loss": 2 + spread * i,
         "kl": 1e-3 + spread * 1e-3 * i}
        for i in range(6)
    ]  # fmt: skip
    size_picture.draw(runs, tmp_path / "p.png")
    for axes in kept[0].axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert [text.get_text() for text in axes.texts].count("form-3") == 1 and len(boxes) == 6
        assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
