"""Checkpoints: a model's folder (models/weights/writing.py), plus the trainer's state.

Each is written into a hidden folder, synced to disk and renamed when complete. So a full disk or a
power cut leaves the previous one intact. The state is written last; it holds digests of the files
that a resumed run reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FileFormatError, UsageError
from weft.host.files import digests, remove_folder, verify, write_json
from weft.importers.hf_config import read_object
from weft.importers.safetensors import SINGLE, SafetensorsFile, save_file
from weft.models.weights import adapters
from weft.training.settings import MAX_STEPS, stored

STATE = "trainer.json"
FORMAT = 2  # version of STATE
OPTIMIZER = "optimizer.safetensors"
_WHOLE, _ADAPTER = (SINGLE, "config.json"), (adapters.WEIGHTS, adapters.CONFIG)
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class TrainerState:
    """The state that a run needs to resume; `step` is the number of steps done."""

    step: int
    settings: dict[str, Any]
    device: str  # kind of device
    data: str  # digest of the tokens
    optimizer: dict[str, np.ndarray]


def write_state(folder: Path, state: TrainerState) -> None:
    """Writes the trainer's state next to a model."""
    save_file(folder / OPTIMIZER, state.optimizer)
    write_json(folder / STATE, {
        "format": FORMAT, "step": state.step, "device": state.device, "data": state.data,
        "settings": state.settings, "sha256": digests(folder, (OPTIMIZER, *_WHOLE, *_ADAPTER)),
    })  # fmt: skip


def read_state(folder: Path) -> TrainerState:
    """Reads the state that `write_state` wrote, after checking its fields and files. Raises
    FileFormatError with the remedy."""
    path = folder / STATE
    remedy = f"remove {folder} to go on from the checkpoint before it, if there is one"
    raw = read_object(path)
    for name, right in _FIELDS.items():
        if name not in raw or not right(raw[name]):
            what = f"{raw[name]!r:.60}" if name in raw else "missing"
            raise FileFormatError(f"{path}: {name} is {what}; {remedy}")
    if extra := sorted(raw.keys() - _FIELDS.keys()):
        raise FileFormatError(f"{path}: unknown {extra[0]:.60}; {remedy}")
    try:
        settings = stored(raw["settings"], str(path))
    except UsageError as error:
        raise FileFormatError(f"{error}; {remedy}") from None
    if folder.name != name_of(raw["step"]) or raw["step"] > settings["train"]["steps"]:
        raise FileFormatError(f"{path}: step is {raw['step']}, which is not this one's; {remedy}")
    verify(folder, raw["sha256"], remedy)
    tensors = SafetensorsFile(folder / OPTIMIZER)
    optimizer = {k: v.copy() for k, v in tensors.items()}
    return TrainerState(raw["step"], settings, raw["device"], raw["data"], optimizer)


def _digests(value: Any) -> bool:
    """Returns True if `value` holds the digests of a model or an adapter, and of its optimiser."""
    if not isinstance(value, dict) or not all(isinstance(was, str) for was in value.values()):
        return False
    return any(set(value) == {OPTIMIZER, *model} for model in (_WHOLE, _ADAPTER))


_FIELDS: dict[str, Callable[[Any], bool]] = {  # field of STATE -> check of its value
    "format": lambda v: type(v) is int and v == FORMAT,
    "step": lambda v: type(v) is int and 0 <= v <= MAX_STEPS,
    "device": lambda v: isinstance(v, str) and bool(v),
    "data": lambda v: isinstance(v, str) and bool(v),
    "settings": lambda v: isinstance(v, dict),
    "sha256": _digests,
}


def name_of(step: int) -> str:
    """Returns the name of the checkpoint folder after `step` steps."""
    return f"step-{step:06d}"


def found(folder: Path) -> list[Path]:
    """Returns the complete checkpoints of a run, oldest first."""
    named = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _NAME.fullmatch(p.name))]
    return [p for _, p in sorted(named) if (p / STATE).exists()]


def latest(folder: Path) -> Path:
    """Returns the newest complete checkpoint. Raises UsageError if there is none."""
    all_ = found(folder)
    if not all_:
        raise UsageError(f"{folder} holds no checkpoint to resume from; train without --resume")
    return all_[-1]


def drop_old(folder: Path, keep: int) -> None:
    """Removes all but the last `keep` checkpoints."""
    for path in found(folder)[:-keep]:
        remove_folder(path, folder)
