"""A traced decoder in a Hugging Face folder, before it is placed on a device."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from weft.core.dtypes import DType
from weft.core.notices import say
from weft.host.pages import fresh
from weft.importers.hf_config import Fields
from weft.importers.packed.checkpoint import PackedCheckpoint
from weft.importers.safetensors import Checkpoint
from weft.models.arch.config import WeightSpec
from weft.models.arch.weights import Weight
from weft.models.text.generation_config import read_defaults
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.names import check_float, check_unread
from weft.models.weights.placement import Wanted
from weft.models.weights.reading import opened
from weft.models.weights.source import Source
from weft.models.weights.tensor_names import INERT
from weft.models.weights.weight_dtypes import NO_CACHE
from weft.models.zoo.ask import traced_form
from weft.models.zoo.decoders import TracedModel, traced_model
from weft.models.zoo.packed import PackedTensors, misfit
from weft.models.zoo.placing import Place, fill, shape_of, tensors_of


def zoo_source(
    folder: Path, raw: Fields, cache: Wanted = None, dtype: DType | None = None
) -> Source:
    """Returns the decoder in a folder, whose config.json is `raw`, traced from transformers' code;
    with `cache` "none" it reads whole texts. Packed weights stay packed unless a dtype is given.
    Raises ModelError, FileFormatError."""
    checkpoint, whole = opened(folder, raw), cache == NO_CACHE
    model, unread = traced_folder(raw, checkpoint, whole)
    if isinstance(checkpoint, Checkpoint):
        weights = _floats(model, checkpoint, raw.where)
    else:
        weights = _packed(model, PackedTensors(checkpoint, dtype))
    check_unread({*checkpoint} - unread, INERT, checkpoint)
    if whole:
        say(f"{raw.where}: without a cache, each token costs a pass over the whole text before it")
    return Source(
        folder, model.config, read_token_ids(folder, raw), weights,
        advice=partial(read_defaults, folder, model.config.vocab),
    )  # fmt: skip


def traced_folder(
    raw: Fields, checkpoint: Checkpoint | PackedCheckpoint, whole: bool = False
) -> tuple[TracedModel, set[str]]:
    """Returns the decoder of a checkpoint, and the tensors without a place in it. Raises
    ModelError, FileFormatError."""
    names = {n: () if n in checkpoint.packed else checkpoint.info(n).shape for n in checkpoint}
    form = traced_form(raw.where, raw.data, names, whole)
    model = traced_model(form, raw.where)
    for name in (n for place in model.places.values() for n in tensors_of(place)):
        if name not in checkpoint.packed:
            check_float(checkpoint, name)
    return model, set(form["unread"])


def _floats(model: TracedModel, checkpoint: Checkpoint, where: str) -> dict[str, Weight]:
    weights = {}
    shapes = {name: checkpoint.info(name).shape for name in checkpoint}
    for role, spec in model.weights.items():
        place, wanted = model.places[role], _stored(spec)
        given = shape_of(place, shapes, where)
        if given != wanted:
            raise misfit(where, spec, given, wanted)
        weights[role] = Weight(spec, partial(_read, checkpoint, spec, place))
    return weights


def _packed(model: TracedModel, tensors: PackedTensors) -> dict[str, Weight]:
    return {
        role: Weight(spec, partial(tensors.read, spec, model.places[role], _stored(spec)))
        for role, spec in model.weights.items()
    }


def _stored(spec: WeightSpec) -> tuple[int, ...]:
    """Returns the shape of a weight as its place makes it."""
    return (*spec.shape[:-2], *spec.shape[:-3:-1]) if spec.turned else spec.shape


def _read(checkpoint: Checkpoint, spec: WeightSpec, place: Place) -> np.ndarray:
    """Returns the weight, the file's own pages where the checkpoint holds it as it is."""
    if "tensor" in place and not spec.turned:
        return checkpoint[place["tensor"]]
    first = checkpoint.info(next(tensors_of(place))).dtype
    out = fresh(spec.shape, first)
    fill(checkpoint, place, out.swapaxes(-1, -2) if spec.turned else out)
    return out
