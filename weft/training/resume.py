"""The newest checkpoint of a run, checked before training goes on from it."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import UsageError
from weft.program.device import Device
from weft.training import checkpoints as ck
from weft.training.prepare import Data
from weft.training.room import ADAPTER, MODEL
from weft.training.settings import TrainingSettings, differences


def safe_after_fault(settings: TrainingSettings, run: Path) -> str:
    """Returns a sentence about what is intact after a disk failure."""
    model = final_folder(settings, run)
    if model.exists():
        return f"{model} and the checkpoints before are whole"
    saved = ck.found(run)
    if not saved:
        return "no checkpoint was written yet: start again"
    return f"{saved[-1]} is whole: go on from it with --resume"


def final_folder(settings: TrainingSettings, run: Path) -> Path:
    """Returns the folder of the finished model or adapter."""
    return run / (ADAPTER if settings.lora.rank else MODEL)


def resumed(settings: TrainingSettings, run: Path) -> tuple[Path, ck.TrainerState]:
    """Returns the newest checkpoint and its state, checked against the settings."""
    path = ck.latest(run)
    state = ck.read_state(path)
    given = settings.as_dict()
    if settings.train.epochs:  # steps follow from epochs and data; the data is checked
        given["train"]["steps"] = state.settings["train"]["steps"]
    other = differences(state.settings, given)
    if other:
        whole = (path / "config.json").exists()  # a LoRA run saves an adapter instead
        onwards = f' (with [model] from = "{path}", to train on from there)' if whole else ""
        raise UsageError(
            f"{path} was made with other settings, so resuming would not continue it: "
            f"{'; '.join(other)}. Restore them, or name another [output] folder{onwards}"
        )
    return path, state


def check_same(state: tuple[Path, ck.TrainerState], data: Data, device: Device) -> None:
    """Raises UsageError for a checkpoint from another kind of device, or from other tokens."""
    path, was = state
    if was.device != device.kind:
        raise UsageError(
            f"{path} was made on another kind of device, so resuming would not continue it: "
            f'device: {was.device} -> {device.kind}. Set [train] device = "{was.device}", or name '
            "another [output] folder"
        )
    if was.data != data.tokens:
        raise UsageError(
            f"{data.folder} is not what {path} was trained on; name another [output] folder"
        )
