"""Weights on a device in another order than the checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import CompileError
from weft.host.mapped import release
from weft.program.array import DeviceArray
from weft.program.device import Buffer, Device
from weft.program.formula import Formula
from weft.program.program import BufferSpec, Program
from weft.program.recipe import Recipe
from weft.program.values import check_fit

_PIECE = 1 << 22  # bytes that are reordered at a time


def ordering(device: Device) -> Executor:
    """The threads that bring weights into order; none starts before there is one."""
    return ThreadPoolExecutor(device.caps.cores if device.is_host else 1, "weft-weights")


def interleaved(
    recipe: Recipe, spec: BufferSpec, value: Any, device: Device, threads: Executor
) -> Buffer:
    """A new buffer with rows of the weight `value` interleaved by `recipe` (spec.shape is
    [bands, K / item, lanes * item]). Pages of a mapped file, and spent ones, are given back
    piece by piece: there is one copy of the model at a time. Raises ShapeError, DTypeError or
    OutOfMemoryError."""
    item = recipe.item
    turned, rest = _turned(recipe, spec, value)
    bands = len(turned)
    value = value.reshape(-1, value.shape[-1])
    size = spec.nbytes // spec.shape[0]
    step = max(_PIECE // size, 1)
    buffer = device.alloc(spec.nbytes)
    memory = None
    if device.is_host:
        memory = _items(DeviceArray(buffer, spec.shape, spec.dtype).view(), item)

    def put(start: int, part: np.ndarray) -> None:
        if memory is not None:
            _copy(memory[start : start + len(part)], part)
        else:
            device.write(buffer, np.ascontiguousarray(part), start * size)

    def piece(start: int) -> None:
        part = turned[start : start + step]
        put(start, part)
        first = recipe.start + start * recipe.lanes
        release(value[first : first + len(part) * recipe.lanes])

    list(threads.map(piece, range(0, bands, step)))
    put(bands, rest)
    release(value)
    return buffer


def _copy(into: np.ndarray, part: np.ndarray) -> None:
    """Copies bands [bands, K, lanes]. NumPy goes along the lanes, whose few narrow elements cost
    it more than their copies; along K it takes half the time."""
    if part.itemsize > 2:
        into[...] = part
        return
    for lane in range(part.shape[-1]):
        into[..., lane] = part[..., lane]


def arranged(recipe: Recipe, spec: BufferSpec, value: Any) -> np.ndarray:
    """Returns the content of buffer `spec` for the weight `value`, as an array. Raises as
    `interleaved` does."""
    if recipe.lanes == 1:
        return recipe.rows_of(value, spec.shape[1:], spec.shape[0])
    parts = _turned(recipe, spec, value)
    turned = np.empty((spec.shape[0], *parts[0].shape[1:]), parts[0].dtype)
    np.concatenate(parts, out=turned)
    return turned.view(spec.dtype.numpy).reshape(spec.shape)


def _turned(recipe: Recipe, spec: BufferSpec, value: Any) -> tuple[np.ndarray, np.ndarray]:
    """A view of the weight's whole bands in the buffer's order, `item` neighbours as one element,
    and the band that zeros fill up, if there is one."""
    (bands, depth, _), lanes, item = spec.shape, recipe.lanes, recipe.item
    rows = recipe.rows_of(value, (depth * item,), bands * lanes)
    check_fit(spec, spec.shape, as_dtype(rows.dtype), None)
    whole = len(rows) // lanes * lanes
    rest = rows[whole:]
    if len(rest):
        rest = np.concatenate([rest, np.zeros((lanes - len(rest), depth * item), rows.dtype)])
    one, other = (
        _items(x, item).reshape(-1, lanes, depth).transpose(0, 2, 1) for x in (rows[:whole], rest)
    )
    return one, other


def _items(array: np.ndarray, item: int) -> np.ndarray:
    """The array with `item` neighbours as one element."""
    if item == 1:
        return array
    return np.ascontiguousarray(array).view(f"u{array.itemsize * item}")


class Ordered(Mapping[str, np.ndarray]):
    """The content of the weight buffers of some Programs, by name; each is made on first access.
    Raises CompileError if two Programs want different content under one name."""

    def __init__(self, programs: Mapping[str, Program], weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self._found: dict[str, tuple[BufferSpec, Recipe | Formula | None]] = {}
        for step, program in programs.items():
            for b in program.buffers:
                if b.role != "weight":
                    continue
                made = program.formulas.get(b.name, program.recipes.get(b.name))
                spec, known = self._found.setdefault(b.name, (b, made))
                if (spec.shape, known) != (b.shape, made):
                    raise CompileError(f"{step} holds weight {b.name!r} unlike the other steps")

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, name: str) -> np.ndarray:
        spec, made = self._found[name]
        if made is None:
            return self._weights[name]
        if isinstance(made, Formula):
            return made.value(self._weights)
        return arranged(made, spec, self._weights[made.whole])
