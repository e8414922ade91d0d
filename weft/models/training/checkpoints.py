"""Checkpoints: a Hugging Face folder that anything can load, with the trainer's state beside it.

Each is written into a temporary folder and renamed when it is whole, so that a full disk or a
power cut leaves the one before it as it was.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.core.files import write_json
from weft.importers.hf_config import read_object
from weft.importers.safetensors import SINGLE, SafetensorsFile, save_file
from weft.models.config import DecoderConfig
from weft.models.names import checkpoint_names

STATE = "trainer.json"
OPTIMIZER = "optimizer.safetensors"
_NAME = re.compile(r"step-(\d+)")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """What a run needs to go on: `step` is how many steps were done."""

    step: int
    settings: dict[str, Any]
    device: str  # its kind
    data: str  # digest of the text
    optimizer: dict[str, np.ndarray]


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """The folder `path` as `fill` leaves it, whole or not at all; one that was there is replaced.
    Raises UsageError when the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        fill(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(
            f"{path}: the disk is full; what was saved before is intact. Free some space, then "
            "go on with --resume"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_model(
    folder: Path, config: DecoderConfig, raw: Mapping[str, Any], tokenizer: Path,
    weights: Mapping[str, np.ndarray], dtype: str = "float32",
) -> None:  # fmt: skip
    """config.json, generation_config.json, model.safetensors and the tokenizer's files. Raises
    ModelError for a weight that overflows `dtype`."""
    kept = {k: v for k, v in raw.items() if k not in ("torch_dtype", "_name_or_path")}
    write_json(folder / "config.json", {**kept, "dtype": dtype})
    ends = {k: raw[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in raw}
    write_json(folder / "generation_config.json", ends)
    copy_tokenizer(tokenizer, folder)  # and the base model's own generation_config.json
    names = checkpoint_names(config)
    out = {}
    for role, value in weights.items():
        with np.errstate(over="ignore"):
            cast = value.astype(as_dtype(dtype).numpy)
        if not np.isfinite(cast.astype(np.float32)).all() and np.isfinite(value).all():
            raise ModelError(f"{folder}: weight {names[role]!r} overflows {dtype}; use bfloat16")
        out[names[role]] = cast
    save_file(folder / SINGLE, out, {"format": "pt"})


def copy_tokenizer(source: Path, target: Path) -> None:
    """The tokenizer's files and generation_config.json, those of them that are there."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def write_state(folder: Path, state: State) -> None:
    """The trainer's state beside a model."""
    save_file(folder / OPTIMIZER, state.optimizer)
    write_json(folder / STATE, {
        "step": state.step, "device": state.device, "data": state.data,
        "settings": state.settings,
    })  # fmt: skip


def read_state(folder: Path) -> State:
    """What `write_state` wrote. Raises FileFormatError."""
    path = folder / STATE
    raw = read_object(path)
    step, settings = raw.get("step"), raw.get("settings")
    named = isinstance(raw.get("device"), str) and isinstance(raw.get("data"), str)
    if not isinstance(step, int) or not isinstance(settings, dict) or not named:
        raise FileFormatError(
            f"{path}: not a trainer's state; expected step, device, data, settings"
        )
    tensors = SafetensorsFile(folder / OPTIMIZER)
    return State(
        step, settings, raw["device"], raw["data"], {k: v.copy() for k, v in tensors.items()}
    )


def found(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    named = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _NAME.fullmatch(p.name))]
    return [p for _, p in sorted(named) if (p / STATE).exists()]


def latest(folder: Path) -> Path:
    """The newest whole checkpoint; UsageError when there is none."""
    all_ = found(folder)
    if not all_:
        raise UsageError(f"{folder} holds no checkpoint to resume from; train without --resume")
    return all_[-1]


def drop_old(folder: Path, keep: int) -> None:
    """Removes all but the last `keep` checkpoints."""
    for path in found(folder)[:-keep]:
        shutil.rmtree(path)
