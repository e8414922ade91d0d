"""Makes a parameter of the tensors of a checkpoint, as its place says (`places.Placed`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from weft.core.errors import ModelError
from weft.host.mapped import release
from weft.host.pages import fresh

Place = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

_INNER = ("part", "turn", "apart", "mingle")


class Tensors(Protocol):
    """Arrays by the names of a checkpoint's tensors."""

    def __getitem__(self, name: str) -> np.ndarray: ...


def tensors_of(place: Place) -> Iterator[str]:
    """Yields the names of the tensors that a place reads."""
    if "tensor" in place:
        yield place["tensor"]
    for below in [*place.get("stack", ()), *place.get("join", ())]:
        yield from tensors_of(below)
    for key in _INNER:
        if key in place:
            yield from tensors_of(place[key])


def shape_of(place: Place, shapes: Shapes, where: str) -> tuple[int, ...]:
    """Returns the shape of the array that a place makes. Raises ModelError if its parts do not
    fit."""
    if "tensor" in place:
        return shapes[place["tensor"]]
    if "turn" in place:
        shape = list(shape_of(place["turn"], shapes, where))
        a, b = place["axes"]
        shape[a], shape[b] = shape[b], shape[a]
        return tuple(shape)
    for key in ("apart", "mingle"):
        if key in place:
            return shape_of(place[key], shapes, where)
    if "part" in place:
        shape = list(shape_of(place["part"], shapes, where))
        shape[place["axis"]] = place["stop"] - place["start"]
        return tuple(shape)
    parts = [shape_of(x, shapes, where) for x in place.get("stack") or place["join"]]
    if "stack" in place:
        if len(set(parts)) > 1:
            raise ModelError(
                f"{where}: {next(tensors_of(place))!r} and its siblings differ in shape"
            )
        return (len(parts), *parts[0])
    axis = place["axis"]
    rest = {(*p[:axis], *p[axis + 1 :]) for p in parts}
    if len(rest) > 1:
        raise ModelError(f"{where}: {next(tensors_of(place))!r} and its siblings differ in shape")
    return (*parts[0][:axis], sum(p[axis] for p in parts), *parts[0][axis + 1 :])


def fill(tensors: Tensors, place: Place, out: np.ndarray) -> None:
    """Writes the array of a place to `out`, tensor by tensor."""
    if "tensor" in place:
        value = tensors[place["tensor"]]
        if value.dtype != out.dtype:
            raise ModelError(
                f"tensor {place['tensor']!r} is {value.dtype}; others like it are {out.dtype}"
            )
        out[...] = value
        release(value)
    elif "turn" in place:
        fill(tensors, place["turn"], out.swapaxes(*place["axes"]))
    elif "stack" in place:
        for below, part in zip(place["stack"], out):
            fill(tensors, below, part)
    elif "join" in place:
        axis, start = place["axis"], 0
        shapes = {n: tensors[n].shape for n in tensors_of(place)}
        for below in place["join"]:
            count = shape_of(below, shapes, "")[axis]
            at = (slice(None),) * axis + (slice(start, start + count),)
            fill(tensors, below, out[at])
            start += count
    else:
        below = next(place[key] for key in _INNER if key in place)
        shapes = {n: tensors[n].shape for n in tensors_of(place)}
        whole = fresh(shape_of(below, shapes, ""), out.dtype)
        fill(tensors, below, whole)
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


def rows_of(place: Place, shapes: Shapes) -> np.ndarray | None:
    """Returns the number of each row of the array [..., K] that a place makes, where the rows of
    its tensors follow each other in the order of `tensors_of`; None if columns move as well."""
    names = dict.fromkeys(tensors_of(place))
    if not keeps_columns(place, shapes):
        return None
    numbers, start = {}, 0
    for name in names:
        lead = shapes[name][:-1]
        count = int(np.prod(lead))
        numbers[name] = np.arange(start, start + count).reshape(lead)
        start += count
    out = np.empty(shape_of(place, {n: v.shape for n, v in numbers.items()}, ""), np.int64)
    fill(numbers, place, out)
    return out


def keeps_columns(place: Place, shapes: Shapes) -> bool:
    """Returns True if the last axis of a place is that of all its tensors."""
    inner = [*place.get("stack", ()), *place.get("join", ())]
    inner += [place[key] for key in _INNER if key in place]
    axes = place.get("axes", [place.get("axis", 0)])
    last = len(shape_of(place, shapes, "")) - 1
    return last > 0 and not {last, -1} & {*axes} and all(keeps_columns(x, shapes) for x in inner)
