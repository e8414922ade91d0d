"""Level "primitives": every primitive and its gradient on the device, against NumPy.

Each case is a one-op function of tensors, compiled for the device and evaluated by the oracle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

import weft
from weft import ops
from weft.conform import gradients
from weft.conform.harness import Case, check_close, each, need
from weft.conform.kernels import sample
from weft.conform.report import Check
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError
from weft.ops.primitive import PRIMITIVES, Aval, Primitive
from weft.program.device import Device
from weft.tensor import Tensor

_FLOATS = (dt.float32, dt.float16, dt.bfloat16)
_INTS = (dt.int32, dt.uint32, dt.int8, dt.uint8)
_SHAPES = ((), (7,), (3, 5), (2, 3, 64))


def data(dtype: DType, shape: tuple[int, ...], seed: int, positive: bool = False) -> np.ndarray:
    """Moderate values of a dtype: floats of order one, integers over their whole range."""
    rng = np.random.default_rng(seed)
    n = int(np.prod(shape))
    if dtype.is_float:
        values = rng.standard_normal(n) * 2
        return (np.abs(values) + 0.01 if positive else values).astype(dtype.numpy).reshape(shape)
    return sample(dtype, seed, max(n, 8))[:n].reshape(shape)


def run_case(device: Device, fn: Callable[..., Any], arrays: list[np.ndarray], kind: str) -> float:
    """Compiles fn for the device, runs it, and compares with the same function on NumPy."""
    need(device, (dt.as_dtype(a.dtype) for a in arrays))

    def results(*values: Any) -> list[Any]:
        out = fn(*values)
        return list(out) if isinstance(out, tuple) else [out]

    wrapped = lambda *ts: [Tensor(y) for y in results(*[t.value for t in ts])]  # noqa: E731
    found = weft.compile(wrapped, device=device.info.id)(*[weft.tensor(a) for a in arrays])
    return max(
        check_close(got.numpy(), np.asarray(want), kind, dt.as_dtype(want.dtype))
        for got, want in zip(found, results(*arrays), strict=True)
    )


def accepted(p: Primitive) -> list[DType]:
    """The dtypes that an elementwise primitive takes."""
    found = []
    for d in (*_FLOATS, *_INTS, dt.bool_):
        with contextlib.suppress(DTypeError):
            p.abstract(*(Aval((), d) for _ in p.ranges))
            found.append(d)
    return found


def _elementwise() -> Iterator[Case]:
    tried = [p for p in PRIMITIVES.values() if p.ranges]
    for p, d in [(one, d) for one in tried for d in accepted(one)]:
        for k, shape in enumerate(_SHAPES if len(p.ranges) == 1 else _SHAPES[1:3]):
            arrays = [data(d, shape, k, p.ranges[0][0] > 0)]
            arrays += [data(d, shape, k + 9) for _ in p.ranges[1:]]
            if p.name.startswith("shift"):
                arrays[1] = (np.abs(arrays[1].astype(np.int64)) % 32).astype(d.numpy)
            yield f"{p.name} {d} {list(shape)}", partial(ops.bind, p.name), arrays, "elementwise"
    for name, kind in {"remainder": "exact", "floor_divide": "elementwise"}.items():
        # quotients of every size; the largest are as accurate as the device's division
        arrays = [data(dt.float32, (500,), 1), data(dt.float32, (500,), 2)]
        arrays[0] *= np.exp2(np.linspace(-60, 60, 500, dtype=np.float32))
        yield f"{name} far", partial(ops.bind, name), arrays, kind
    for d in (*_FLOATS, dt.int32, dt.bool_):
        arrays = [data(dt.bool_, (4, 9), 1), data(d, (4, 9), 2), data(d, (4, 9), 3)]
        yield f"where {d}", partial(ops.bind, "where"), arrays, "exact"
    for src in (*_FLOATS, *_INTS, dt.bool_):
        for dst in (*_FLOATS, *_INTS, dt.bool_):
            if src.is_float and dst.is_int:
                continue  # level kernels covers values out of range
            fn = partial(ops.bind, "cast", dtype=dst)
            yield f"cast {src} to {dst}", fn, [data(src, (5, 7), 4)], "elementwise"


def _movement() -> Iterator[Case]:
    for d in (*_FLOATS, dt.int32, dt.uint8, dt.bool_):
        for name, attrs in gradients.MOVEMENT.items():
            fn = partial(ops.bind, name, **attrs)
            yield f"{name} {d}", fn, [data(d, (4, 6, 5), 1)], "exact"
        arrays = [data(d, (3, n, 2), n) for n in (1, 4, 2)]
        yield f"concat {d}", partial(ops.bind, "concat", axis=1), arrays, "exact"


def _reductions() -> Iterator[Case]:
    for d in (*_FLOATS, dt.int32):
        x = data(d, (6, 37, 5), 1)
        x = x % 1000 if d.is_int else x
        for axes in ((1,), (0, 2), (2,), (0, 1, 2)):
            for name in ("sum", "max"):
                fn = partial(ops.bind, name, axes=axes)
                yield f"{name} {d} over {list(axes)}", fn, [x], "reduce"
        for axis in (0, 1, 2):
            fn = partial(ops.bind, "argmax", axis=axis)
            yield f"argmax {d} axis {axis}", fn, [x], "exact"


def _dots() -> Iterator[Case]:
    for d in _FLOATS:
        for m, k, n in ((1, 1, 1), (1, 64, 48), (5, 33, 7), (40, 96, 64), (70, 130, 50)):
            arrays = [data(d, (m, k), 1), data(d, (k, n), 2)]
            scaled = [(a.astype(np.float32) / 4).astype(d.numpy) for a in arrays]
            fn = partial(ops.bind, "dot", out_dtype=d)
            yield f"dot {d} {m}x{k}x{n}", fn, scaled, "dot"
    batch = [data(dt.float32, (2, 3, 9, 17), 1), data(dt.float32, (2, 3, 17, 6), 2)]
    fn = partial(ops.bind, "dot", out_dtype=dt.float32)
    yield "dot float32 batched", fn, batch, "dot"
    ints = [data(dt.int8, (9, 40), 1), data(dt.int8, (40, 12), 2)]
    fn = partial(ops.bind, "dot", out_dtype=dt.int32)
    yield "dot int8", fn, ints, "exact"


def _indexing() -> Iterator[Case]:
    index = np.array([3, 0, 7, 7, 1], np.int32)
    picks = np.array([3, 0, 8, -1, 1], np.int32)  # 8 and -1 are outside of either axis
    for d in (*_FLOATS, dt.int32):
        x = data(d, (8, 6), 1)
        for axis in (0, 1):
            fn = partial(ops.bind, "gather", axis=axis)
            yield f"gather {d} axis {axis}", fn, [x, picks], "exact"
        rows = data(d, (5, 6), 2)
        unique = np.array([6, 0, -1, 2, 5], np.int32)
        yield f"update {d}", partial(ops.bind, "update"), [x, unique, rows], "exact"
        keys = data(d, (3, 45), 3)
        for descending in (False, True):
            for indices in (False, True):
                fn = partial(ops.bind, "sort", axis=1, descending=descending, indices=indices)
                name = f"sort {d}{' descending' * descending}{' indices' * indices}"
                yield name, fn, [keys], "exact"
    x, rows = data(dt.float32, (8, 6), 1), data(dt.float32, (5, 6), 2)
    fn = partial(ops.bind, "scatter_add")
    yield "scatter_add float32", fn, [x, index, rows], "reduce"
    own = (np.arange(30, dtype=np.int32).reshape(5, 6) * 7) % 10 - 1
    yield "scatter_add float32 by element", fn, [x, own, rows], "reduce"


def checks(device: Device) -> Iterator[Check]:
    """Every primitive in every dtype family, several shapes each; every gradient."""
    cases = chain(_elementwise(), _movement(), _reductions(), _dots(), _indexing())
    yield from each(run_case, device, cases)
    yield from gradients.primitives(device)
