"""Finds the base model of an adapter, and checks if a given model is it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from weft.core.errors import ModelError
from weft.core.hints import command
from weft.hub.names import name_of, parse
from weft.hub.resolve import cached, offline
from weft.importers.hf_config import read_config
from weft.importers.safetensors import SafetensorsFile, open_checkpoint
from weft.models.weights.adapters import BASE, CONFIG, LAYOUT, WEIGHTS
from weft.models.weights.mlx_adapters import MODEL


def base_of(folder: Path) -> Path:
    """Returns the folder of an adapter's base model: the name in adapter_config.json, relative to
    the current folder, to the adapter's folder or in the hub's cache. Fetches nothing, because no
    user named it. Raises ModelError if it is missing."""
    named = _named(folder)
    for place in (Path(named), folder / named):
        if named and (place / "config.json").exists():
            return place
    name = parse(named)
    found = None if name is None else cached(name) or offline(name)
    if found is not None:
        return found
    then = f"merge it with its model: {command('merge', 'BASE', folder, '-o', 'MERGED')}"
    if name is not None:
        then = f"fetch that: {command('pull', name)}"
    raise ModelError(
        f"{folder} holds a LoRA adapter; its model {named or '(unnamed)'} is not here\n{then}"
    )


def _named(folder: Path) -> str:
    """Returns the base model's name in an adapter's folder; mlx-lm has a field of its own."""
    given = read_config(folder, CONFIG, LAYOUT)
    return str(given.text("base_model_name_or_path", "") or given.text(MODEL, ""))


def fingerprint(folder: Path) -> str:
    """Returns a digest of a model's weights: names, dtypes, shapes and both ends of each tensor.
    That distinguishes trained models and is fast for any size."""
    digest = hashlib.sha256()
    weights = open_checkpoint(folder)
    for name in sorted(weights):
        value = weights[name]
        digest.update(f"{name} {value.dtype} {value.shape} ".encode())
        flat = value.reshape(-1)
        for part in (flat[:1024], flat[-1024:]):
            digest.update(part.tobytes())
    return digest.hexdigest()


def other_base(base: Path, adapter: Path) -> str | None:
    """Returns the reason why `base` is probably not the model that the adapter was trained on, or
    None. An adapter without a fingerprint (PEFT's) is compared by the last part of its base model's
    name."""
    if adapter.is_file():
        return None  # a GGUF file: its reader compares architectures
    named, weights = _named(adapter), adapter / WEIGHTS
    known = SafetensorsFile(weights).metadata.get(BASE) if weights.exists() else None
    if known is not None:
        if known == fingerprint(base):
            return None
        return f"{base} does not hold the weights that {adapter} was trained on ({named})"
    if not named or Path(named).name in (base.resolve().name, Path(name_of(base)).name):
        return None
    return f"{adapter} was trained on {named}, and {base} has another name"
