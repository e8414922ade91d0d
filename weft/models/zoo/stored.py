"""A traced decoder as its checkpoint stores it: weights are tensors, not the model's parameters."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.importers.safetensors import open_checkpoint
from weft.models.arch.config import DecoderConfig, Kind, WeightSpec
from weft.models.arch.weights import Weight
from weft.models.zoo.placing import keeps_columns, tensors_of
from weft.models.zoo.source import traced_folder

_LAYER = re.compile(r"\.(\d+)\.")
_PRODUCTS: tuple[Kind, ...] = ("matrix", "experts")


def stored_decoder(folder: Path, raw: Fields) -> tuple[DecoderConfig, dict[str, Weight]]:
    """Returns the decoder in a folder of floats with one weight for each tensor that it reads.
    Roles are "embed", "head", and the tensor's name after its layer's number. One is a "matrix" if
    products alone read it, row by row. Raises ModelError, FileFormatError."""
    checkpoint = open_checkpoint(folder)
    model, _ = traced_folder(raw, checkpoint)
    shapes = {name: checkpoint.info(name).shape for name in checkpoint}
    readers: dict[str, list[tuple[WeightSpec, bool]]] = {}
    for role, place in model.places.items():
        whole = keeps_columns(place, shapes)
        for name in tensors_of(place):
            readers.setdefault(name, []).append((model.weights[role], whole))
    specs: dict[str, WeightSpec] = {}
    for name, found in readers.items():
        kind = _kind(name, shapes[name], found)
        specs[_role(name, kind)] = WeightSpec(name, shapes[name], kind)
    body = model.config.traced
    assert body is not None
    count = 1 + max(
        (int(n) for role in specs if (n := role.partition(".")[0]).isdigit()), default=0
    )
    config = replace(model.config, layers=count, traced=replace(body, weights=specs))
    return config, {
        role: Weight(spec, partial(checkpoint.__getitem__, spec.name))
        for role, spec in specs.items()
    }


def check_experts(config: DecoderConfig, where: str) -> None:
    """Raises ModelError for experts that the checkpoint holds in one tensor."""
    assert config.traced is not None
    for spec in config.traced.weights.values():
        if spec.kind == "experts":
            raise ModelError(
                f"{where}: compressed-tensors has a matrix for each expert; {spec.name!r} holds "
                "all of a layer. Load it with quant="
            )


def _kind(name: str, shape: tuple[int, ...], readers: list[tuple[WeightSpec, bool]]) -> Kind:
    kinds: set[Kind] = {spec.kind for spec, _ in readers}
    if "embed" in kinds:
        return "embed"
    first = readers[0][0].kind
    if not kinds <= {*_PRODUCTS}:
        return first if len(kinds) == 1 else "scale"
    if len(shape) != 2:
        return "experts"
    rows = all(whole and not spec.turned for spec, whole in readers)
    return "matrix" if rows and name.endswith(".weight") else "scale"


def _role(name: str, kind: Kind) -> str:
    if kind in ("embed", "head"):
        return kind
    layer = _LAYER.search(name)
    return name if layer is None else f"{layer[1]}.{name}"
