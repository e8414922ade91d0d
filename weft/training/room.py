"""The folder of a run: the files that weft writes in it, and those it must not overwrite."""

from __future__ import annotations

import os
from pathlib import Path

from weft.core.errors import UsageError
from weft.models.weights.writing import TOKENIZER_FILES
from weft.training.prepare import DATA, MARK, WRITTEN
from weft.training.settings import TrainingSettings

MODEL, ADAPTER = "model", "adapter"  # folder of a run with the trained model or adapter
BEST = "best"  # folder with the weights of the lowest held-out loss
LOG = "log.jsonl"


def check_room(settings: TrainingSettings, run: Path) -> None:
    """Raises UsageError if a new run would overwrite its own sources, or files that no run made: it
    replaces these folders as a whole."""
    sources = {"[model] from": settings.model.base, "[tokenizer] from": settings.tokenizer.base}
    for name in (MODEL, ADAPTER, BEST, DATA):
        path = run / name
        if not os.path.lexists(path):
            continue
        for field, source in sources.items():
            if source and _is_same(source, path):
                raise UsageError(f"{field} is {path}, which the run writes over; name another "
                                 "[output] folder")  # fmt: skip
        if _is_anothers(path, run):
            raise UsageError(f"{path} is there and no run has made it, but this one would write "
                             "over it; name another [output] folder")  # fmt: skip


def _is_anothers(path: Path, run: Path) -> bool:
    """Returns True if the path was not made by a run: its log, or the mark of its data, is
    missing."""
    if path.name != DATA:
        return not (run / LOG).exists()
    if not path.is_dir() or (path / MARK).exists():
        return False  # preparing the data reports a file there
    names = {name for name in os.listdir(path) if not name.startswith(".")}
    return bool(names & {*TOKENIZER_FILES}) and not names <= WRITTEN


def _is_same(source: str, path: Path) -> bool:
    try:
        return os.path.samefile(source, path)
    except OSError:
        return False
