"""Scans and products on a device: part of the level "templates"."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from weft import ops
from weft.conform.harness import Case
from weft.conform.primitives import data
from weft.core import dtypes as dt
from weft.core.dtypes import DType

_FLOATS = (dt.float32, dt.float16, dt.bfloat16)
_SHAPES = (((7,), 0), ((3, 70), 1), ((9, 5), 0), ((2, 33, 6), 1))
_LONG = (((70_000,), 0), ((2, 40_000), 1), ((9000, 8), 0))  # rows in blocks

_PRODUCTS = (((3, 70), (1,)), ((9, 5), (0,)), ((4, 3, 8), (0, 2)), ((70_000,), (0,)))


def _values(d: DType, shape: tuple[int, ...], op: str) -> np.ndarray:
    """Values whose products neither vanish nor overflow, a zero among them, and whose long sums
    (held against the sum itself) do not return to zero."""
    x = data(d, shape, 5)
    if op == "sum" and x.size > 1000:
        sizes: np.ndarray = np.abs(x)
        return sizes
    if op == "prod" and d.is_float:
        x = (1 + x.astype(np.float32) / 16).astype(d.numpy)
        x.reshape(-1)[x.size * 3 // 4] = 0
    return x


def _scan(op: str, axis: int, exclusive: bool, reverse: bool) -> Any:
    return lambda x: ops.scan(x, op, axis, exclusive, reverse)


def _linear(axis: int, reverse: bool) -> Any:
    return lambda x, a: ops.scan(x, "linear", axis, reverse=reverse, factor=a)


def cases() -> Iterator[Case]:
    """Every operation, direction and dtype; long rows."""
    for op in ("sum", "prod", "max", "min"):
        for d in (*_FLOATS, dt.int32, dt.uint8):
            for k, (shape, axis) in enumerate(_SHAPES if d == dt.float32 else _SHAPES[1::2]):
                ways = ((False, False), (k % 2 > 0, True), (True, False))
                for exclusive, reverse in ways if d == dt.float32 else ways[:2]:
                    label = f"scan {op} {d} {list(shape)} axis {axis}"
                    label += " exclusive" * exclusive + " reverse" * reverse
                    fn = _scan(op, axis, exclusive, reverse)
                    yield label, fn, [_values(d, shape, op)], "reduce"
        for shape, axis in _LONG:
            fn, x = _scan(op, axis, False, axis == 1), _values(dt.float32, shape, op)
            yield f"scan {op} {list(shape)} axis {axis}", fn, [x], "reduce"
    for shape, axis in (*_SHAPES, *_LONG):
        arrays = [data(dt.float32, shape, 1), data(dt.float32, shape, 2) / 8]
        for reverse in (False, True):
            label = f"scan linear {list(shape)} axis {axis}{' reverse' * reverse}"
            yield label, _linear(axis, reverse), arrays, "reduce"
    for d in (*_FLOATS, dt.int32):
        for shape, axes in _PRODUCTS:
            fn, x = partial(ops.prod, axes=axes), _values(d, shape, "prod")
            yield f"prod {d} {list(shape)} over {list(axes)}", fn, [x], "reduce"
    yield "logcumsumexp", *_LOGCUMSUMEXP


def differentiated() -> Iterator[Case]:
    """Yields the cases whose gradient is checked."""
    for d in (dt.float32, dt.bfloat16):
        for shape, axis in _SHAPES:
            for op in ("sum", "prod", "max"):
                fn = _scan(op, axis, False, False)
                label = f"scan {op} {d} {list(shape)} axis {axis}"
                yield label, fn, [_values(d, shape, op)], "reduce"
        yield f"prod {d}", partial(ops.prod, axes=(1,)), [_values(d, (3, 70), "prod")], "reduce"
    yield "logcumsumexp", *_LOGCUMSUMEXP


_LOGCUMSUMEXP: Any = (
    partial(ops.call, "logcumsumexp", axis=1), [data(dt.float32, (3, 70), 7)], "reduce",
)  # fmt: skip
