"""A batch of examples, and a batch as bytes between a worker and its parent: arrays with a header
of JSON. Nothing is pickled."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor.core import Tensor, tensor

_PLAIN = (bool, int, float, str, type(None))


def default_collate(batch: Sequence[Any]) -> Any:
    """Returns examples as a batch: tensors, arrays and numbers are stacked along a new axis 0;
    tuples, lists and dicts are batched part by part; text stays a list. Raises ShapeError for
    arrays of different shapes, UsageError for other things.

    >>> data.default_collate([(1, np.zeros(2)), (2, np.ones(2))])[0].tolist()
    [1, 2]
    """
    first = batch[0]
    if isinstance(first, Tensor | np.ndarray | np.generic):
        shapes = {tuple(x.shape) for x in batch}
        if len(shapes) > 1:
            shown = " and ".join(str(list(s)) for s in sorted(shapes)[:2])
            raise ShapeError(f"a batch of shapes {shown}; give a collate_fn that pads the examples")
        return Tensor(np.stack([np.asarray(x) for x in batch]))
    if isinstance(first, bool | int | float):
        return tensor(list(batch))
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([x[key] for x in batch]) for key in first}
    if isinstance(first, tuple | list):
        if any(len(x) != len(first) for x in batch):
            raise ShapeError("a batch of tuples of different lengths; give a collate_fn")
        parts = [default_collate(part) for part in zip(*batch)]
        return getattr(type(first), "_make", type(first))(parts)
    raise UsageError(f"a batch of {type(first).__name__}; give a collate_fn that makes tensors")


def encoded(value: Any) -> list[Any]:
    """A batch as bytes: the length of a header, the header, the arrays."""
    arrays: list[np.ndarray] = []
    head = json.dumps(_described(value, arrays)).encode()
    return [struct.pack("<Q", len(head)), head, *(a.data.cast("B") for a in arrays if a.size)]


def _described(x: Any, arrays: list[np.ndarray]) -> Any:
    kind = type(x)
    if isinstance(x, Tensor | np.ndarray | np.generic):
        array = np.ascontiguousarray(np.asarray(x))
        known = dt.as_dtype(array.dtype).name
        arrays.append(array.view(np.uint8) if array.size else array)
        return {"array": known, "shape": list(np.shape(x)), "tensor": isinstance(x, Tensor)}
    if kind in _PLAIN:
        return {"plain": x}
    if kind in (list, tuple):
        return {kind.__name__: [_described(part, arrays) for part in x]}
    if kind is dict and all(type(k) in _PLAIN for k in x):
        return {"dict": [[k, _described(v, arrays)] for k, v in x.items()]}
    raise UsageError(
        f"a worker sends tensors, arrays, numbers, text, lists, tuples and dicts, not "
        f"{kind.__name__}; make these in collate_fn, or set num_workers=0"
    )


def decoded(head: bytes, read: Any) -> Any:
    """The batch of a header; `read(n)` gives the next n bytes of its arrays."""

    def built(x: Any) -> Any:
        if "array" in x:
            dtype, shape = dt.as_dtype(x["array"]).numpy, tuple(x["shape"])
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            array = np.frombuffer(read(size), dtype).reshape(shape)
            return Tensor(array) if x["tensor"] else array
        if "plain" in x:
            return x["plain"]
        if "dict" in x:
            return {k: built(v) for k, v in x["dict"]}
        return tuple(map(built, x["tuple"])) if "tuple" in x else list(map(built, x["list"]))

    return built(json.loads(head))
