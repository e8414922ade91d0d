"""Level "templates": each composite a template claims, against its body on the oracle, and the
promises of design section 7: the same bits at every run, and nothing that depends on the batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

import weft
from weft import ops
from weft.conform import gradients, packed, scans
from weft.conform.gradients import call
from weft.conform.harness import Case, check_close, check_equal, each, need
from weft.conform.primitives import data, run_case
from weft.conform.report import Check
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.ops.attention import PAGE
from weft.program.device import Device
from weft.tensor import Tensor

_FLOATS = (dt.float32, dt.float16, dt.bfloat16)


def _rows() -> Iterator[Case]:
    for d in _FLOATS:
        for shape in ((1, 8), (3, 130), (2, 5, 64)):
            x, w, b = data(d, shape, 1), data(d, shape[-1:], 2), data(d, shape[-1:], 3)
            for name, arrays, params in (
                ("softmax", [x], {}),
                ("log_softmax", [x], {}),
                ("layer_norm", [x, w, b], {"eps": 1e-5}),
                ("rms_norm", [x, w], {"eps": 1e-6, "offset": 0.0}),
            ):
                fn = call(name, **params)
                label = f"{name} {d} {list(shape)}"
                yield label, fn, arrays, "reduce"
        for approximate in ("none", "tanh"):
            fn = call("gelu", approximate=approximate)
            x = data(d, (7, 33), 4)
            yield f"gelu {approximate} {d}", fn, [x], "elementwise"


def _row_gradients() -> Iterator[Case]:
    for d in _FLOATS:
        for rows, n in ((1, 8), (3, 130)):
            x, w, g = data(d, (rows, n), 1), data(d, (n,), 2), data(d, (rows, n), 3)
            target = np.arange(rows, dtype=np.int32) * 5 - 2
            each = data(dt.float32, (rows,), 4)
            loss: dict[str, Any] = {"ignore_index": -2, "label_smoothing": 0.1}
            for name, arrays, params in (
                ("softmax_grad", [np.asarray(ops.call("softmax", x)), g], {}),
                ("log_softmax_grad", [np.asarray(ops.call("log_softmax", x)), g], {}),
                ("layer_norm_grad", [x, w, g], {"eps": 1e-5}),
                ("rms_norm_grad", [x, w, g], {"eps": 1e-6, "offset": 0.0}),
                ("norm_weight_grads", [x, g], {"chunks": rows}),
                ("moments", [x], {"eps": 1e-5}),
                ("rms_scale", [x], {"eps": 1e-6}),
                ("cross_entropy", [x, target], loss),
                ("cross_entropy_grad", [x, target, each], loss),
            ):
                fn = call(name, **params)
                label = f"{name} {d} {[rows, n]}"
                yield label, fn, arrays, "reduce"


def _cached_inputs(d: DType, n: int, slots: int = 4, length: int = 40) -> list[np.ndarray]:
    h, g, dim = 4, 2, 32
    q = data(d, (n, h, dim), 1)
    caches = [data(d, (slots, g, length, dim), i) for i in (2, 3)]
    slot = (np.arange(n) % slots).astype(np.int32)
    pos = ((np.arange(n) * 11 + 5) % length).astype(np.int32)
    return [q, *caches, slot, pos]


def _int8_cache(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The same with codes and scales for caches."""
    q, kc, vc, slot, pos = arrays
    rng = np.random.default_rng(4)
    codes = [rng.integers(-127, 128, x.shape).astype(np.int8) for x in (kc, vc)]
    scales = rng.uniform(0.5, 1.5, (*kc.shape[:3], 2)).astype(np.float32) / 127
    return [q, *codes, slot, pos, scales]


def _paged(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The same with caches of whole pages cut into pages that lie in reverse, and their table."""
    q, kc, vc, slot, pos, *scales = arrays
    slots, columns = kc.shape[0], kc.shape[2] // PAGE

    def cut(x: np.ndarray) -> np.ndarray:
        parts = x.swapaxes(0, 1).reshape(x.shape[1], slots * columns, PAGE, x.shape[3])
        return np.ascontiguousarray(parts[:, ::-1])

    table = np.arange(slots * columns, dtype=np.int32)[::-1].reshape(slots, columns)
    return [q, cut(kc), cut(vc), slot, pos, *map(cut, scales), np.ascontiguousarray(table)]


def _cached() -> Iterator[Case]:
    for extra in ({}, {"window": 7}, {"softcap": 5.0}):
        params = {"scale": 32**-0.5, "window": 0, "softcap": 0.0} | extra
        fn = call("cached_attention", **params)
        for d in _FLOATS:
            yield f"cached_attention {d} {extra or ''}", fn, _cached_inputs(d, 4), "dot"
        coded = _int8_cache(_cached_inputs(dt.float32, 4))
        yield f"cached_attention int8 {extra or ''}", fn, coded, "dot"
    fn = call("cached_attention", scale=32**-0.5, window=0, softcap=0.0)
    for d in _FLOATS:
        for rows in (4, 20):
            arrays = _paged(_cached_inputs(d, rows, 2, 2 * PAGE))
            yield f"cached_attention {d} in pages, {rows} rows", fn, arrays, "dot"


def _recurrences() -> Iterator[Case]:
    """Recurrences, by the delta rule and without, with a decay of heads, keys or all elements: what
    rows read, and what is remembered then."""
    for rows, groups, heads, k, v in ((1, 2, 2, 32, 32), (5, 2, 6, 10, 14)):
        full = (rows, heads, k, v)
        shapes = ((rows, groups, k), (rows, heads, v), (rows, heads), (3, heads, k, v))
        key, value, rate, memory = (data(dt.float32, s, i) / 8 for i, s in enumerate(shapes))
        slot = np.array([-1, *[0] * (rows - 3), 2, 2][:rows], np.int32)

        def run(which: int, key: Any, *more: Any) -> Any:
            return ops.call("recurrence", key, key, *more, tiled=True, scale=0.5)[which]

        for axes, rates in ((2, [rate]), (2, []), (3, [rate]), (4, [])):
            decay = data(dt.float32, full[:axes], 2) / 8
            arrays: list[np.ndarray] = [key, value, decay, *rates, slot, memory]
            name = f"recurrence{' by the delta rule' if rates else ''} {list(full)}"
            for which, what in enumerate(("read", "kept")):
                label = f"{name} decay {list(full[1:axes])} {what}"
                yield label, partial(run, which), arrays, "dot"


def _large() -> Iterator[Case]:
    """Sizes at which GPUs take other kernels: rows of many threads, blocks of attention in matrix
    units, caches in parts."""
    for d in (dt.float32, dt.bfloat16):
        for shape in ((3, 1030), (2, 4096), (1, 20000)):
            x, w, b = data(d, shape, 1), data(d, shape[-1:], 2), data(d, shape[-1:], 3)
            fn = call("layer_norm", eps=1e-5)
            yield f"layer_norm {d} {shape}", fn, [x, w, b], "reduce"
            yield f"softmax {d} {shape}", call("softmax"), [x], "reduce"
        x = data(d, (300, 66), 4)
        for axis in (0, 1):
            fn = partial(ops.sum_, axes=axis)
            yield f"sum {d} {x.shape} over {axis}", fn, [x], "reduce"
    params: dict[str, Any] = {"window": 0, "softcap": 0.0}
    for d in (dt.float16, dt.bfloat16):
        for t, s, dim in ((150, 150, 64), (70, 130, 128)):
            shapes = ((1, 4, t, dim), (1, 2, s, dim), (1, 2, s, dim))
            arrays = [data(d, x, i) for i, x in enumerate(shapes)]
            fn = call("attention", causal=True, scale=dim**-0.5, **params)
            yield f"attention {d} {t}x{s}x{dim}", fn, arrays, "dot"
        fn = call("cached_attention", scale=32**-0.5, **params)
        for rows, length in ((40, 40), (3, 1300)):
            arrays = _cached_inputs(d, rows, 2, length)
            label = f"cached_attention {d}, {rows} rows over {length}"
            yield label, fn, arrays, "dot"
    arrays = _paged(_cached_inputs(dt.bfloat16, 3, 2, 20 * PAGE))
    yield "cached_attention bfloat16 in pages, 3 rows over 1280", fn, arrays, "dot"
    for rows, length in ((40, 40), (3, 1300)):
        coded = _int8_cache(_cached_inputs(dt.float32, rows, 2, length))
        yield f"cached_attention int8, {rows} rows over {length}", fn, coded, "dot"


def _cached_alone(device: Device) -> float:
    fn = call("cached_attention", scale=32**-0.5, window=0, softcap=0.0)
    arrays = _cached_inputs(dt.float32, 4)
    whole = _run(device, fn, arrays)
    for n in range(4):
        q, kc, vc, slot, pos = arrays
        one = _run(device, fn, [q[n : n + 1], kc, vc, slot[n : n + 1], pos[n : n + 1]])
        check_equal(one[0], whole[n])
    return 0.0


def _run(device: Device, fn: Any, arrays: list[np.ndarray]) -> np.ndarray:
    need(device, (dt.as_dtype(a.dtype) for a in arrays))
    wrapped = lambda *ts: Tensor(fn(*[t.value for t in ts]))  # noqa: E731
    compiled = weft.compile(wrapped, device=device.info.id)
    result: np.ndarray = compiled(*[weft.tensor(a) for a in arrays]).numpy()
    return result


def _linear_alone(device: Device, d: DType) -> float:
    """A row of x @ w.T has the same bits for any number of rows."""
    w = data(d, (96, 130), 1)
    x = data(d, (8, 130), 2)
    fn = lambda a, b: ops.dot(a, ops.transpose(b, perm=(1, 0)), out_dtype=dt.float32)  # noqa: E731
    whole = _run(device, fn, [x, w])
    for rows in (1, 3):
        check_equal(_run(device, fn, [x[:rows], w]), whole[:rows])
    return 0.0


def _fused_block(device: Device) -> float:
    """A transformer block's MLP: norm, two projections, gate, residual, all in one function."""
    d = 64
    arrays = [data(dt.float32, s, i) / 4 for i, s in enumerate(((6, d), (d,), (96, d), (d, 96)))]

    def block(x: Any, w: Any, up: Any, down: Any) -> Any:
        y = ops.call("rms_norm", x, w, eps=1e-6, offset=0.0)
        z = ops.dot(y, ops.transpose(up, perm=(1, 0)), out_dtype=dt.float32)
        z = ops.call("silu", z)
        return ops.add(x, ops.dot(z, ops.transpose(down, perm=(1, 0)), out_dtype=dt.float32))

    want = np.asarray(block(*arrays))
    return check_close(_run(device, block, arrays), want, "dot", dt.float32)


def checks(device: Device) -> Iterator[Check]:
    """Every template of composites, their gradients, packed weights, and the invariants."""
    sizes = ((1, 2, 2, 5, 5, 16), (2, 4, 2, 9, 20, 24), (1, 3, 1, 1, 33, 64))
    cases = chain(
        _rows(), _row_gradients(), gradients.attention(sizes, data), _cached(), _recurrences()
    )
    yield from each(run_case, device, cases)
    yield "cached_attention: a row does not see its neighbours", partial(_cached_alone, device)
    yield from each(run_case, device, chain(_large(), scans.cases()))
    yield from each(gradients.run_case, device, scans.differentiated(), "gradient of ")
    yield from gradients.composites(device)
    yield from packed.checks(device)
    yield "a fused block", partial(_fused_block, device)
    for d in _FLOATS:
        yield f"linear rows do not depend on the batch, {d}", partial(_linear_alone, device, d)
