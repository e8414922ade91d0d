"""Sequences, which are lists here, and optional values, which are None where they are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft.importers.onnx.movement import cut
from weft.importers.onnx.table import NodeCall, Value, ints, op, scalar


@op("SequenceEmpty")
def sequence_empty(call: NodeCall) -> list[Value]:
    return []


@op("SequenceConstruct", raw=True)
def sequence_construct(call: NodeCall, *items: Value) -> list[Value]:
    return list(items)


@op("SequenceInsert", host=(2,), raw=True)
def sequence_insert(call: NodeCall, items: list[Value], item: Value, at: Any = None) -> list[Value]:
    place = len(items) if at is None else scalar(at)
    place += len(items) if place < 0 else 0
    return [*items[:place], item, *items[place:]]


@op("SequenceErase", host=(1,), raw=True)
def sequence_erase(call: NodeCall, items: list[Value], at: Any = None) -> list[Value]:
    place = len(items) - 1 if at is None else scalar(at)
    place += len(items) if place < 0 else 0
    return [x for i, x in enumerate(items) if i != place]


@op("SequenceAt", host=(1,), raw=True)
def sequence_at(call: NodeCall, items: list[Value], at: np.ndarray) -> Value:
    return items[scalar(at)]


@op("SequenceLength")
def sequence_length(call: NodeCall, items: list[Value]) -> np.ndarray:
    return np.array(len(items), np.int64)


@op("ConcatFromSequence")
def concat_from_sequence(call: NodeCall, items: list[Value]) -> Value:
    tensors = [call.tensor(x) for x in items]
    axis = call.need("axis")
    return weft.stack(tensors, axis) if call.get("new_axis", 0) else weft.concat(tensors, axis=axis)


@op("SplitToSequence", host=(1,), either=True)
def split_to_sequence(call: NodeCall, x: Value, sizes: Any = None) -> list[Value]:
    axis = call.get("axis", 0)
    n = x.shape[axis]
    if sizes is None:
        parts = [cut(x, axis, i, 1) for i in range(n)]
        keep = call.get("keepdims", 1)
        return parts if keep else [p.squeeze(axis) for p in parts]
    each = int(scalar(sizes)) if sizes.ndim == 0 else 0
    lengths = [min(each, n - i) for i in range(0, n, each)] if each else list(ints(sizes))
    return [cut(x, axis, sum(lengths[:i]), size) for i, size in enumerate(lengths)]


@op("Optional", raw=True)
def optional(call: NodeCall, x: Value = None) -> Value:
    return x


@op("OptionalHasElement", raw=True)
def optional_has_element(call: NodeCall, x: Value = None) -> np.ndarray:
    return np.array(x is not None)


@op("OptionalGetElement", raw=True)
def optional_get_element(call: NodeCall, x: Value) -> Value:
    return x
