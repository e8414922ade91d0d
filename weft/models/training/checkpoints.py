"""Checkpoints: a Hugging Face folder that other programs can load, plus the trainer's state.

Each is written into a hidden folder, synced to disk and renamed when complete. So a full disk or a
power cut leaves the previous one intact. The state is written last; it holds digests of the files
that a resumed run reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import as_dtype
from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.core.files import digests, remove_folder, verify, write_bytes, write_json
from weft.importers.hf_config import Fields, read_bounded, read_object
from weft.importers.safetensors import SINGLE, SafetensorsFile, save_file
from weft.models import adapters
from weft.models.chat import TEMPLATE
from weft.models.config import DecoderConfig
from weft.models.families import DECODERS
from weft.models.names import checkpoint_names
from weft.models.tokenizer_fields import FIX, OLDER_TOKENS, mended
from weft.models.tokenizer_settings import SETTINGS, read_settings
from weft.models.training.settings import MAX_STEPS, stored
from weft.tensor.casting import cast_array

STATE = "trainer.json"
FORMAT = 2  # version of STATE
OPTIMIZER = "optimizer.safetensors"
_WHOLE, _ADAPTER = (SINGLE, "config.json"), (adapters.WEIGHTS, adapters.CONFIG)
_NAME = re.compile(r"step-(\d+)")
TOKENIZER_FILES = (
    "tokenizer.json", SETTINGS, "special_tokens_map.json", OLDER_TOKENS, TEMPLATE,
    "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """The state that a run needs to resume; `step` is the number of steps done."""

    step: int
    settings: dict[str, Any]
    device: str  # kind of device
    data: str  # digest of the tokens
    optimizer: dict[str, np.ndarray]


def write_model(
    folder: Path, config: DecoderConfig, raw: Mapping[str, Any], tokenizer: Path,
    weights: Mapping[str, np.ndarray], dtype: str = "float32",
) -> None:  # fmt: skip
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.
    Raises ModelError for a weight that overflows `dtype`."""
    kept = {k: v for k, v in raw.items() if k not in ("torch_dtype", "_name_or_path")}
    kept = said_of_head(kept, config)
    write_json(folder / "config.json", {**kept, "dtype": dtype})
    ends = {k: raw[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in raw}
    write_json(folder / "generation_config.json", ends)
    copy_tokenizer(tokenizer, folder)  # includes the base model's own generation_config.json
    names = checkpoint_names(config)
    out = {}
    for role, value in weights.items():
        cast = cast_array(value, as_dtype(dtype))
        if not all_finite(cast) and all_finite(value):
            wider = "float32" if dtype == "bfloat16" else "bfloat16"
            raise ModelError(f"weight {names[role]!r} overflows {dtype}; use {wider}")
        out[names[role]] = cast
    save_file(folder / SINGLE, out, {"format": "pt"})


def said_of_head(raw: Mapping[str, Any], config: DecoderConfig) -> dict[str, Any]:
    """Returns config.json's fields with the tying of the output layer that the weights have."""
    if DECODERS[raw["model_type"]](Fields(raw, "config.json")).tied == config.tied:
        return dict(raw)
    # LFM2 reads its own spelling first.
    names = [name for name in ("tie_embedding",) if name in raw]
    return {**raw, **dict.fromkeys((*names, "tie_word_embeddings"), config.tied)}


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files and generation_config.json, as far as they exist. `target` may
    lack the config.json that FIX depends on, so its tokenizer.json is written with the fix
    applied."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            data = read_bounded(source / name)
            if name == "tokenizer.json" and read_settings(source).get(FIX):
                data = mended(data)
            write_bytes(target / name, data)


def write_state(folder: Path, state: State) -> None:
    """Writes the trainer's state next to a model."""
    save_file(folder / OPTIMIZER, state.optimizer)
    write_json(folder / STATE, {
        "format": FORMAT, "step": state.step, "device": state.device, "data": state.data,
        "settings": state.settings, "sha256": digests(folder, (OPTIMIZER, *_WHOLE, *_ADAPTER)),
    })  # fmt: skip


def read_state(folder: Path) -> State:
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
    return State(raw["step"], settings, raw["device"], raw["data"], optimizer)


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
