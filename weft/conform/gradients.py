"""Gradients on a device against the oracle's: part of the levels "primitives" and "templates".

A case differentiates a function of tensors in a compiled function (forward and backward are one
Program) and eagerly with NumPy. Narrow floats are held against the float32 oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

import weft
from weft import ops
from weft.conform.harness import Case, check_close, each, need
from weft.conform.report import Check
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.ops.primitive import PRIMITIVES
from weft.program.device import Device
from weft.tensor import Tensor

Fn = Callable[..., Any]


def _data(shape: tuple[int, ...], seed: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def _gradients(fn: Fn, *tensors: Tensor) -> list[Tensor]:
    """Those of fn's float operands; the last tensor weighs its result."""
    *operands, weights = tensors
    given = [t.detach().requires_grad_() if t.dtype.is_float else t for t in operands]
    out = Tensor(fn(*[t.value for t in given]))
    return weft.grad(out, [t for t in given if t.dtype.is_float], weights.cast(out.dtype))


def run_case(device: Device, fn: Fn, arrays: Sequence[np.ndarray], kind: str) -> float:
    """Compares the gradients of fn's float operands; returns the largest error."""
    dtypes = [dt.as_dtype(a.dtype) for a in arrays]
    need(device, dtypes)
    wide = [a.astype(np.float32) if d.is_float else a for a, d in zip(arrays, dtypes)]
    shape = np.shape(np.asarray(fn(*wide)))
    # Numbers that every float dtype holds: what is compared is the device's rounding alone.
    weights = (np.random.default_rng(9).integers(32, 97, shape) / 64).astype(np.float32)
    inputs = [weft.tensor(a) for a in (*arrays, weights)]
    got = weft.compile(partial(_gradients, fn), device=device.info.id)(*inputs)
    want = _gradients(fn, *[weft.tensor(a) for a in (*wide, weights)])
    floats = [d for d in dtypes if d.is_float]
    return max(
        check_close(g.numpy(), w.numpy().astype(d.numpy), kind, d)
        for g, w, d in zip(got, want, floats)
    )


# -- primitives -----------------------------------------------------------------------------------

MOVEMENT: dict[str, dict[str, Any]] = {
    "reshape": {"shape": (6, 20)},
    "transpose": {"perm": (2, 0, 1)},
    "slice": {"starts": (3, 0, 4), "stops": (0, 4, 1), "steps": (-1, 2, -2)},
    "pad": {"low": (1, 0, 2), "high": (0, 3, 1), "value": 1.0},
    "broadcast": {"shape": (2, 4, 6, 5)},
}


def primitives(device: Device) -> Iterator[Check]:
    """The gradient of every primitive that has one."""
    cases = chain(_elementwise(), _moving(), _folding(), _indexing())
    return each(run_case, device, cases, "gradient of ")


def _elementwise() -> Iterator[Case]:
    for shape in ((7,), (2, 3, 64)):
        for p in PRIMITIVES.values():
            if p.ranges and p.vjp is not None:
                arrays = [_data(shape, i, *r) for i, r in enumerate(p.ranges, 1)]
                if p.name in ("maximum", "minimum"):
                    arrays[1].ravel()[::2] = arrays[0].ravel()[::2]  # ties
                yield f"{p.name} {list(shape)}", partial(ops.bind, p.name), arrays, "reduce"
    choose = np.array([True, False, True])
    where = lambda x, y: ops.where(ops.const(choose), x, y)  # noqa: E731
    yield "where", where, [_data((3,), 1), _data((3,), 2)], "exact"
    for d in (dt.float16, dt.bfloat16):
        back = partial(lambda x, d: ops.cast(ops.cast(x, d), dt.float32), d=d)
        yield f"cast to {d} and back", back, [_data((5, 7), 1)], "dot"


def _moving() -> Iterator[Case]:
    for name, attrs in MOVEMENT.items():
        kind = "reduce" if name == "broadcast" else "exact"
        yield name, partial(ops.bind, name, **attrs), [_data((4, 6, 5), 1)], kind
    arrays = [_data((3, n, 2), n) for n in (1, 4, 2)]
    yield "concat", partial(ops.bind, "concat", axis=1), arrays, "exact"


def _folding() -> Iterator[Case]:
    for axes in ((1,), (0, 2), (0, 1, 2)):
        x = np.round(_data((6, 37, 5), 1) * 4)  # ties of max
        for name in ("sum", "max"):
            yield f"{name} over {list(axes)}", partial(ops.bind, name, axes=axes), [x], "reduce"
    for d in (dt.float32, dt.float16, dt.bfloat16):
        for m, k, n in ((1, 64, 48), (5, 33, 7), (40, 96, 64)):
            arrays = [(_data(s, 1) / 4).astype(d.numpy) for s in ((m, k), (k, n))]
            fn = partial(ops.bind, "dot", out_dtype=d)
            yield f"dot {d} {m}x{k}x{n}", fn, arrays, "dot"
    batch = [_data((2, 3, 9, 17), 1), _data((2, 3, 17, 6), 2)]
    yield "dot batched", partial(ops.bind, "dot", out_dtype=dt.float32), batch, "dot"


def _indexing() -> Iterator[Case]:
    index = np.array([3, 0, 7, 7, 1], np.int32)
    x, rows = _data((8, 6), 1), _data((5, 6), 2)
    for axis in (0, 1):
        gather = partial(ops.bind, "gather", axis=axis)
        yield f"gather axis {axis}", gather, [x, index % x.shape[axis]], "reduce"
    yield "scatter_add", partial(ops.bind, "scatter_add"), [x, index, rows], "exact"
    own = (np.arange(30, dtype=np.int32).reshape(5, 6) * 7) % 8
    yield "scatter_add by element", partial(ops.bind, "scatter_add"), [x, own, rows], "exact"
    unique = np.array([6, 0, -1, 2, 5], np.int32)
    yield "update", partial(ops.bind, "update"), [x, unique, rows], "exact"
    for descending in (False, True):
        sort = partial(ops.bind, "sort", axis=1, descending=descending, indices=False)
        yield f"sort{' descending' * descending}", sort, [_data((3, 45), 3)], "exact"


# -- composites -----------------------------------------------------------------------------------


def composites(device: Device) -> Iterator[Check]:
    """The gradient of every composite that training uses."""
    sizes = ((1, 2, 2, 5, 5, 16), (2, 4, 2, 9, 20, 24), (1, 3, 1, 33, 33, 64))
    cases = chain(_rows(), _losses(), attention(sizes, _values), _images())
    return each(run_case, device, cases, "gradient of ")


def _values(d: DType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return _data(shape, seed).astype(d.numpy)


def call(name: str, **params: Any) -> Fn:
    return lambda *values: ops.call(name, *values, **params)


def _narrow(d: DType, *arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(d.numpy) for a in arrays]


def _rows() -> Iterator[Case]:
    for d in (dt.float32, dt.float16, dt.bfloat16):
        kind = "reduce" if d is dt.float32 else "dot"
        for shape in ((3, 130), (2, 5, 64)):
            x, w, b = _narrow(d, _data(shape, 1), _data(shape[-1:], 2), _data(shape[-1:], 3))
            label = f"{d} {list(shape)}"
            yield f"softmax {label}", call("softmax"), [x], kind
            yield f"log_softmax {label}", call("log_softmax"), [x], "dot"
            yield f"layer_norm {label}", call("layer_norm", eps=1e-5), [x, w, b], "dot"
            rms = call("rms_norm", eps=1e-6, offset=1.0)
            yield f"rms_norm {label}", rms, [x, w], "dot"
        (x,) = _narrow(d, _data((7, 33), 4))
        for approximate in ("none", "tanh"):
            gelu = call("gelu", approximate=approximate)
            yield f"gelu {approximate} {d}", gelu, [x], kind
        yield f"silu {d}", call("silu"), [x], kind


def _losses() -> Iterator[Case]:
    logits, targets = _data((9, 50), 1), np.arange(9, dtype=np.int32) * 5
    targets[[2, 5]] = -100
    for smoothing in (0.0, 0.1):
        fn = call("cross_entropy", ignore_index=-100, label_smoothing=smoothing)
        yield f"cross_entropy, smoothing {smoothing}", fn, [logits, targets], "reduce"


def attention(
    sizes: Sequence[tuple[int, ...]], values: Callable[[DType, tuple[int, ...], int], np.ndarray]
) -> Iterator[Case]:
    """Attention of (batch, heads, groups, queries, keys, width), in its variants."""
    for d in (dt.float32, dt.bfloat16):
        for b, h, g, t, s, dim in sizes:
            shapes = ((b, h, t, dim), (b, g, s, dim), (b, g, s, dim))
            arrays = [values(d, shape, i) for i, shape in enumerate(shapes)]
            for extra in ({}, {"causal": True}, {"causal": True, "window": 4}, {"softcap": 5.0}):
                params = {"causal": False, "scale": dim**-0.5, "window": 0, "softcap": 0.0} | extra
                label = f"attention {d} {b}x{h}/{g}x{t}x{s}x{dim} {extra or 'full'}"
                yield label, call("attention", **params), arrays, "dot"
    q = [values(dt.float32, (2, 2, 6, 16), i) for i in range(3)]
    fn = call("attention", causal=False, scale=0.25, window=0, softcap=0.0)
    lengths = np.array([0, 4], np.int32)
    yield "attention with lengths, one of them 0", fn, [*q, lengths], "dot"


def _images() -> Iterator[Case]:
    x = _data((2, 4, 9, 7), 1)
    one, none = (1, 1), ((0, 0), (0, 0))
    plain = {"stride": one, "padding": none, "dilation": one}
    for label, shape, params in (
        ("stride, padding", (6, 4, 3, 2), {"stride": (2, 1), "padding": ((1, 1), (2, 0))}),
        ("groups, dilation", (6, 2, 2, 3), {"groups": 2, "dilation": (2, 1)}),
        ("depthwise", (4, 1, 3, 3), {"groups": 4, "padding": ((1, 1), (1, 1))}),
    ):
        yield f"conv, {label}", call("conv", **plain | params), [x, _data(shape, 2)], "dot"
    back = call("conv_transpose", **plain | {"stride": (2, 1), "output_padding": (1, 0)})
    yield "conv_transpose", back, [x, _data((4, 3, 3, 2), 2)], "dot"
    sides = {"padding": ((1, 1), (1, 1)), "dilation": one}
    pool = call("max_pool", kernel=(3, 3), stride=(2, 2), **sides)
    yield "max_pool", pool, [np.round(x)], "dot"  # ties
    for d in (dt.float16, dt.bfloat16):
        yield f"max_pool {d}", pool, _narrow(d, x), "dot"
        pointwise = _narrow(d, x, _data((6, 4, 1, 1), 2))
        yield f"conv {d}, pointwise", call("conv", **plain), pointwise, "dot"
