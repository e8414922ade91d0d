"""Reads a vision tower's weights from a checkpoint, and refuses what nothing reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial

import numpy as np

from weft.core.errors import ModelError
from weft.core.records import dataclass
from weft.importers.safetensors import Checkpoint
from weft.models.arch.config import WeightSpec
from weft.models.arch.tower_config import TowerConfig
from weft.models.arch.weights import Weight
from weft.models.weights.names import check_float
from weft.models.weights.tower_names import NAMES, NEWLINE, OURS, PROJECTOR, TOWER, tower_layout


@dataclass(frozen=True)
class Found:
    """The weights of a tower by role, and the names of the tensors behind them."""

    weights: dict[str, Weight]
    used: set[str] = field(default_factory=set)


def tower_weights(c: TowerConfig, checkpoint: Checkpoint, also: Iterable[str] = ()) -> Found:
    """Returns the weights of a tower and its projector in a checkpoint. `also` names tensors that
    another reads. Raises ModelError for one that is missing or of another shape, and for one of the
    tower's that nothing reads."""
    found, used = {}, set(also)
    tower = ("text_model.",) if c.text else TOWER
    for specs, prefixes in zip(tower_layout(c), (tower, PROJECTOR)):
        at = _prefix(specs, prefixes, checkpoint)
        for role, spec in specs.items():
            name = at + spec.name
            if role == "newline":
                name = next((n for n in NEWLINE if n in checkpoint), NEWLINE[0])
            if role == "leads" and (registers := NAMES[c.family].outer.get("registers")):
                names = [name, *([at + registers] if c.leads > 1 else ())]
                used.update(names)
                found[role] = Weight(spec, partial(_read_leads, checkpoint, names, spec))
                continue
            if role.endswith(".clip"):
                used.update(ends := [f"{name}.{end}" for end in _LIMITS])
                found[role] = Weight(spec, partial(_read_limits, checkpoint, ends))
                continue
            third = "qkv".index(role[5]) if ".in_proj_" in name else None
            _check(checkpoint, name, spec, 1 if third is None else 3)
            used.add(name)
            read = partial(_read, checkpoint, name, spec.shape, third)
            found[role] = Weight(spec, partial(_ordered, c, role, read) if c.axes else read)
    if not c.text:
        _check_unread(c, used, checkpoint)
    return Found(found, used)


def _prefix(
    specs: Mapping[str, WeightSpec], prefixes: tuple[str, ...], checkpoint: Checkpoint
) -> str:
    probe = next(iter(specs.values())).name if specs else ""
    return next((at for at in prefixes if at + probe in checkpoint), prefixes[0])


def _check(checkpoint: Checkpoint, name: str, spec: WeightSpec, parts: int = 1) -> None:
    if name not in checkpoint:
        raise ModelError(
            f"{checkpoint.where}: tensor {name!r} of the vision tower is missing; copy the folder "
            "again from where it comes from"
        )
    shape = checkpoint.info(name).shape
    size = int(np.prod(shape, dtype=np.int64))
    whole = (parts * spec.shape[0], *spec.shape[1:])
    wanted = int(np.prod(whole, dtype=np.int64))
    ends = [n for n in shape if n != 1][:1], [n for n in whole if n != 1][:1]
    if size != wanted or ends[0] != ends[1]:
        raise ModelError(
            f"{checkpoint.where}: tensor {name!r} has shape {list(shape)}; config.json asks for "
            f"{list(spec.shape)}"
        )
    check_float(checkpoint, name)


def _read(
    checkpoint: Checkpoint, name: str, shape: tuple[int, ...], third: int | None
) -> np.ndarray:
    """Returns a weight, or a third of one; convolutions over patches as matrices."""
    value = checkpoint[name]
    if third is not None:
        value = value[third * shape[0] : (third + 1) * shape[0]]
    return value.reshape(shape)


def _read_leads(checkpoint: Checkpoint, names: list[str], spec: WeightSpec) -> np.ndarray:
    """Returns the class and the registers after it, [leads, hidden]."""
    rows, hidden = spec.shape
    for name, count in zip(names, (1, rows - 1)):
        _check(checkpoint, name, WeightSpec(name, (count, hidden), spec.kind))
    return np.concatenate([checkpoint[name].reshape(-1, hidden) for name in names])


_LIMITS = ("input_min", "input_max", "output_min", "output_max")


def _read_limits(checkpoint: Checkpoint, names: list[str]) -> np.ndarray:
    """Returns the limits of a linear layer's inputs and outputs, float32 [4]."""
    for name in names:
        _check(checkpoint, name, WeightSpec(name, (1,), "scale"))
    return np.array([np.asarray(checkpoint[name], np.float32).reshape(()) for name in names])


def _ordered(c: TowerConfig, role: str, read: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns a weight of Gemma 4's tower in the order of other towers. Pixels are channel by
    channel. In a head, pairs that turn by row come before pairs that turn by column."""
    value = read()
    if role == "patch.w":
        pixels = value.reshape(len(value), -1, c.channels)
        return np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(value.shape)
    if role.startswith("patch_before"):
        return np.ascontiguousarray(value.reshape(-1, c.channels).T).reshape(-1)
    if role == "places" and c.patch_norms:
        return np.ascontiguousarray(value.transpose(1, 0, 2))
    if re.fullmatch(r"\d+\.[qk](_norm)?\.w", role):
        parts = value.reshape(-1, 4, c.head_dim // 4, *value.shape[1:])
        return np.ascontiguousarray(parts[:, [2, 0, 3, 1]]).reshape(value.shape)
    return value


def _check_unread(c: TowerConfig, used: set[str], checkpoint: Checkpoint) -> None:
    """Raises ModelError for a tensor of the tower that is neither used nor known to be inert."""
    names = NAMES[c.family]
    later = re.compile(re.escape(names.layer).replace(r"\{\}", r"(\d+)"))
    for name in checkpoint:
        if name in used or not OURS.search(name):
            continue
        own = next((name.removeprefix(at) for at in TOWER if at and name.startswith(at)), name)
        layer = later.match(own)
        if layer is not None and c.depth <= int(layer[1]) < c.layers:
            continue  # a layer after those that vectors are taken from
        if re.search(names.unread, own) or (own.startswith("post_layernorm") and not c.last_norm):
            continue
        raise ModelError(
            f"{checkpoint.where}: tensor {name[:200]!r} is not part of the vision tower; leaving "
            "it out would change the results. Does config.json belong to these weights?"
        )
