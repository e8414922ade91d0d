"""Runs of `weft train` that take a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.training.settings import TrainingSettings, settings_from

LINE = "a warp and a weft and a loom to hold them\n"


def tiny(text: Path, run: Path, **sections: dict[str, Any]) -> TrainingSettings:
    """Settings of a tiny model: four steps, a checkpoint after each second."""
    data: dict[str, dict[str, Any]] = {
        "model": {"hidden": 16, "layers": 1, "heads": 2},
        "data": {"paths": [str(text)], "holdout": 0.2},
        "tokenizer": {"vocab": 300},
        "train": {"steps": 4, "batch": 2, "context": 16, "device": "cpu"},
        "optimizer": {"lr": 1e-2, "warmup": 0},
        "output": {
            "folder": str(run), "eval_every": 0, "sample_every": 0, "checkpoint_every": 2,
        },
    }  # fmt: skip
    for name, more in sections.items():
        data[name] = {**data.get(name, {}), **more}
    return settings_from(data, "config")


def text_file(folder: Path, text: str = LINE * 200) -> Path:
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8", newline="")
    return path
