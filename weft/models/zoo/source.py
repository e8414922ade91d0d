"""A traced decoder in a Hugging Face folder, before it is placed on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.core.notices import say
from weft.host.mapped import release
from weft.host.pages import fresh
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.config import WeightSpec
from weft.models.arch.weights import Weight
from weft.models.text.generation_config import read_defaults
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.names import check_float, check_unread
from weft.models.weights.placement import Wanted
from weft.models.weights.reading import is_packed
from weft.models.weights.source import Source
from weft.models.weights.tensor_names import INERT
from weft.models.weights.weight_dtypes import NO_CACHE
from weft.models.zoo.ask import traced_form
from weft.models.zoo.decoders import traced_model

Place = Mapping[str, Any]


def zoo_source(folder: Path, raw: Fields, cache: Wanted = None) -> Source:
    """Returns the decoder in a folder, whose config.json is `raw`, traced from transformers' code;
    with `cache` "none" it reads whole texts. Raises ModelError, FileFormatError."""
    if is_packed(folder, raw):
        raise ModelError(
            f"{raw.where}: the weights are packed, and weft has no family of its own for this "
            "type; take a checkpoint of floats, and quant= to pack it"
        )
    checkpoint = open_checkpoint(folder)
    names = {name: checkpoint.info(name).shape for name in checkpoint}
    whole = cache == NO_CACHE
    form = traced_form(raw.where, raw.data, names, whole)
    model = traced_model(form, raw.where)
    used = set(names) - set(form["unread"])
    weights = {}
    assert model.config.traced is not None
    for role, spec in model.config.traced.weights.items():
        place = model.places[role]
        wanted = _turn(spec.shape) if spec.turned else spec.shape
        given = _shape(place, names, raw.where)
        if given != wanted:
            raise ModelError(
                f"{raw.where}: {spec.name!r} has shape {list(given)} in the weights; config.json "
                f"asks for {list(wanted)}"
            )
        for name in _tensors(place):
            check_float(checkpoint, name)
        read = partial(_read, checkpoint, spec, place)
        weights[role] = Weight(spec, read, kept=False)
    check_unread(used, INERT, checkpoint)
    if whole:
        say(f"{raw.where}: without a cache, each token costs a pass over the whole text before it")
    return Source(
        folder, model.config, read_token_ids(folder, raw), weights,
        advice=partial(read_defaults, folder, model.config.vocab),
    )  # fmt: skip


def _turn(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


_INNER = ("part", "turn", "apart", "mingle")


def _tensors(place: Place) -> Iterator[str]:
    """Yields the names of the tensors that a place reads."""
    if "tensor" in place:
        yield place["tensor"]
    for below in [*place.get("stack", ()), *place.get("join", ())]:
        yield from _tensors(below)
    for key in _INNER:
        if key in place:
            yield from _tensors(place[key])


def _shape(place: Place, names: Mapping[str, tuple[int, ...]], where: str) -> tuple[int, ...]:
    """Returns the shape of the array that a place makes. Raises ModelError if its parts do not
    fit."""
    if "tensor" in place:
        return names[place["tensor"]]
    if "turn" in place:
        shape = list(_shape(place["turn"], names, where))
        a, b = place["axes"]
        shape[a], shape[b] = shape[b], shape[a]
        return tuple(shape)
    for key in ("apart", "mingle"):
        if key in place:
            return _shape(place[key], names, where)
    if "part" in place:
        shape = list(_shape(place["part"], names, where))
        shape[place["axis"]] = place["stop"] - place["start"]
        return tuple(shape)
    parts = [_shape(x, names, where) for x in place.get("stack") or place["join"]]
    if "stack" in place:
        if len(set(parts)) > 1:
            raise ModelError(f"{where}: {next(_tensors(place))!r} and its siblings differ in shape")
        return (len(parts), *parts[0])
    axis = place["axis"]
    rest = {(*p[:axis], *p[axis + 1 :]) for p in parts}
    if len(rest) > 1:
        raise ModelError(f"{where}: {next(_tensors(place))!r} and its siblings differ in shape")
    return (*parts[0][:axis], sum(p[axis] for p in parts), *parts[0][axis + 1 :])


def _read(checkpoint: Checkpoint, spec: WeightSpec, place: Place) -> np.ndarray:
    """Returns the weight, the file's own pages where the checkpoint holds it as it is."""
    if "tensor" in place and not spec.turned:
        return checkpoint[place["tensor"]]
    first = checkpoint.info(next(_tensors(place))).dtype
    out = fresh(spec.shape, first)
    _fill(checkpoint, place, out.swapaxes(-1, -2) if spec.turned else out)
    return out


def _fill(checkpoint: Checkpoint, place: Place, out: np.ndarray) -> None:
    """Writes the array of a place to `out`, tensor by tensor."""
    if "tensor" in place:
        value = checkpoint[place["tensor"]]
        if value.dtype != out.dtype:
            raise ModelError(
                f"tensor {place['tensor']!r} is {value.dtype}; others like it are {out.dtype}"
            )
        out[...] = value
        release(value)
    elif "turn" in place:
        _fill(checkpoint, place["turn"], out.swapaxes(*place["axes"]))
    elif "stack" in place:
        for below, part in zip(place["stack"], out):
            _fill(checkpoint, below, part)
    elif "join" in place:
        axis, start = place["axis"], 0
        names = {n: checkpoint.info(n).shape for n in _tensors(place)}
        for below in place["join"]:
            count = _shape(below, names, "")[axis]
            at = (slice(None),) * axis + (slice(start, start + count),)
            _fill(checkpoint, below, out[at])
            start += count
    else:
        below = next(place[key] for key in _INNER if key in place)
        names = {n: checkpoint.info(n).shape for n in _tensors(place)}
        whole = fresh(_shape(below, names, ""), out.dtype)
        _fill(checkpoint, below, whole)
        for made, read in _parts(place, out.shape[place["axis"]]):
            at = (slice(None),) * place["axis"]
            out[*at, made] = whole[*at, read]


def _parts(place: Place, count: int) -> list[tuple[slice, slice]]:
    """Returns the elements along the axis of a place: where they go, and where they come from."""
    if "part" in place:
        return [(slice(None), slice(place["start"], place["stop"]))]
    turns, half = [slice(k, None, 2) for k in (0, 1)], count // 2
    halves = [slice(0, half), slice(half, None)]
    return list(zip(halves, turns) if "apart" in place else zip(turns, halves))
