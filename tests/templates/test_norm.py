"""Composites of rows and their derivatives on every kind of target: against the bodies of the
composites, and torch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import QUICK, TARGETS, TIERS, check, group_of, play, random, trace
from rows import few

from weft import ops
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.templates.registry import claimed_by

F32 = dt.float32
FLOATS = [F32, dt.float16, dt.bfloat16]


def call(name: str, **params: Any) -> Callable[..., Any]:
    return functools.partial(ops.call, name, **params)


def _check(fn: Any, arrays: list[np.ndarray], **extra: Any) -> None:
    check(fn, arrays, "norm", "call", tolerance="reduce", **extra)


def _targets(rows: int, classes: int) -> np.ndarray:
    t = (np.arange(rows, dtype=np.int32) * 7 + 1) % classes
    t[rows // 2] = -100
    return t


def _cases(dtype: dt.DType, rows: int, n: int) -> Iterator[tuple[Any, list[np.ndarray]]]:
    x, w, g = random(dtype, (rows, n)), random(dtype, (n,), 1), random(dtype, (rows, n), 2)
    y = np.asarray(ops.call("softmax", x))
    yield call("softmax"), [x]
    yield call("log_softmax"), [x]
    yield call("layer_norm", eps=1e-5), [x, w, g[0]]
    yield call("rms_norm", eps=1e-5, offset=1.0), [x, w]
    yield call("softmax_grad"), [y, g]
    yield call("log_softmax_grad"), [np.asarray(ops.call("log_softmax", x)), g]
    yield call("layer_norm_grad", eps=1e-2), [x, w, g]
    yield call("rms_norm_grad", eps=1e-2, offset=1.0), [x, w, g]
    yield call("moments", eps=1e-2), [x]
    yield call("rms_scale", eps=1e-2), [x]
    t, h = _targets(rows, n), random(F32, (rows,), 3)
    for smoothing in (0.0, 0.1):
        yield call("cross_entropy", label_smoothing=smoothing), [x, t]
        yield call("cross_entropy_grad", label_smoothing=smoothing), [x, t, h]


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
SIZES = [(n, F32) for n in (1, 3, 16, 33, 130)] + [(33, dt.float16), (33, dt.bfloat16)]
VARIED = tuple(t for t in TIERS if t not in QUICK)


@pytest.mark.parametrize(
    ("n", "dtype", "tiers"),
    [
        *((*size, tuple(t for t in TIERS if t in QUICK)) for size in SIZES),
        *(slow(*size, VARIED) for size in SIZES),
    ],
    ids=repr,
)
def test_composites(n: int, dtype: dt.DType, tiers: tuple[str, ...]) -> None:
    for fn, arrays in _cases(dtype, 5, n):
        _check(fn, arrays, tiers=tiers)


@pytest.mark.parametrize("n", few([1, 16, 33, 130], 1, 33))
def test_weight_gradients(n: int) -> None:
    """One kernel on a CPU, with what is fused before it; on a GPU the body is inlined."""
    cpus = tuple(t for t in TIERS if t.startswith("cpu"))
    for dtype in FLOATS:
        x, g = random(dtype, (3, 4, n)), random(dtype, (3, 4, n), 2)
        for chunks, centred in ((1, True), (3, True), (12, False)):
            fn = call("norm_weight_grads", eps=1e-2, centred=centred, chunks=chunks)
            _check(fn, [x, g], tiers=cpus)
            fused = lambda x, g: fn(ops.mul(x, x), ops.mul(x, g))  # noqa: B023, E731
            if dtype is F32:
                _check(fused, [x, g], tiers=cpus)
    graph = trace(call("norm_weight_grads", chunks=2), [x, g])
    claimed = {t: claimed_by(graph.outputs[0], PRESETS[t]) for t in TARGETS}
    assert claimed == {t: "norm" if t in cpus else None for t in TARGETS}


@pytest.mark.parametrize(
    "n,dtype",
    [(33, dt.float16), (768, F32), *(slow(*c) for c in ((1, F32), (33, F32), (768, dt.float16)))],
    ids=repr,
)
def test_on_vulkan(n: int, dtype: dt.DType) -> None:
    for fn, arrays in itertools.islice(_cases(dtype, 3, n), 0, None, 1 if dtype is F32 else 2):
        _check(fn, arrays, tiers=("vulkan",))


def test_every_target_claims_them() -> None:
    for fn, arrays in _cases(F32, 4, 50):
        graph = trace(fn, arrays)
        for name in TARGETS:
            assert claimed_by(graph.outputs[0], PRESETS[name]) == "norm"


@pytest.mark.parametrize("n", [768, 1000, 4096, 50257])
def test_long_rows_forward_against_torch(n: int) -> None:
    x, w, b = random(F32, (3, n)), random(F32, (n,), 1), random(F32, (n,), 2)
    t = torch.from_numpy
    for name, values, want in (
        ("softmax", [x], torch.softmax(t(x), -1)),
        ("log_softmax", [x], torch.log_softmax(t(x), -1)),
        ("layer_norm", [x, w, b], torch.nn.functional.layer_norm(t(x), (n,), t(w), t(b))),
    ):
        params = {"eps": 1e-5} if len(values) > 1 else {}
        graph = trace(lambda *v: ops.call(name, *v, **params), values)  # noqa: B023
        got = play("cpu", group_of(graph, "norm", "call"), values)[0]
        assert np.allclose(got, want.numpy(), rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize("n", [384, 4096, 50257])
def test_long_rows_against_torch(n: int) -> None:
    x, w, g = random(F32, (3, n)), random(F32, (n,), 1), random(F32, (3, n), 2)
    t = _targets(3, n)

    def run(fn: Any, *arrays: np.ndarray) -> np.ndarray:
        group = group_of(trace(fn, arrays), "norm", "call")
        return play("cpu", group, arrays)[0].astype(np.float64)

    def want(fn: Any) -> np.ndarray:
        leaf = torch.from_numpy(x).double().requires_grad_()
        out = fn(leaf)
        out.backward(torch.from_numpy(g if out.dim() == 2 else g[:, 0]).double())
        return leaf.grad.numpy()

    weight = torch.from_numpy(w).double()
    got = run(call("layer_norm_grad", eps=1e-5), x, w, g)
    np.testing.assert_allclose(got, want(lambda v: F.layer_norm(v, (n,), weight)), atol=2e-5)
    got = run(call("rms_norm_grad", eps=1e-5), x, w, g)
    np.testing.assert_allclose(got, want(lambda v: F.rms_norm(v, (n,), weight, 1e-5)), atol=2e-5)
    y = play("cpu", group_of(trace(call("softmax"), [x]), "norm", "call"), [x])[0]
    got = run(call("softmax_grad"), y, g)
    np.testing.assert_allclose(got, want(lambda v: v.softmax(-1)), atol=1e-6)
    loss = lambda v: F.cross_entropy(  # noqa: E731
        v, torch.from_numpy(t).long(), reduction="none", label_smoothing=0.1
    )
    got = run(call("cross_entropy_grad", label_smoothing=0.1), x, t, np.ascontiguousarray(g[:, 0]))
    np.testing.assert_allclose(got, want(loss), atol=1e-6)
    got = run(call("cross_entropy", label_smoothing=0.1), x, t)
    np.testing.assert_allclose(got, loss(torch.from_numpy(x).double()), rtol=2e-6)


def test_prologue_and_epilogue() -> None:
    """Operands that are computed, results that go on, and a prologue value that is an output."""
    x, y, w = random(F32, (5, 40)), random(F32, (5, 40), 1), random(F32, (40,), 2)
    t, h = _targets(5, 40), random(F32, (5,), 3)

    def norm(x: Any, y: Any, w: Any) -> Any:
        s = ops.add(x, y)
        g = ops.call("layer_norm_grad", s, w, ops.mul(x, y), eps=1e-2)
        return s, ops.reshape(ops.cast(ops.add(g, y), dt.bfloat16), (10, 20))

    def losses(x: Any, y: Any, t: Any, h: Any) -> Any:
        loss = ops.call("cross_entropy", ops.add(x, y), t, label_smoothing=0.1)
        return ops.mul(loss, h)

    def rows(x: Any, y: Any, t: Any, h: Any) -> Any:
        g = ops.call("cross_entropy_grad", ops.add(x, y), t, ops.mul(h, h))
        return ops.mul(g, y)

    def pairs(x: Any, y: Any) -> Any:
        return ops.call("moments", ops.transpose(ops.mul(x, y), (1, 0)), eps=1e-2)

    _check(norm, [x, y, w])
    _check(losses, [x, y, t, h])
    _check(rows, [x, y, t, h])
    _check(pairs, [x, y])


def test_residual_and_epilogue() -> None:
    """The sum before the norm is an output too, and work follows the norm."""
    x, y, w = random(F32, (5, 40)), random(F32, (5, 40), 1), random(F32, (40,), 2)

    def fn(x: Any, y: Any, w: Any) -> Any:
        h = ops.add(x, y)
        n = ops.call("rms_norm", h, w, eps=1e-6, offset=0.0)
        return h, ops.reshape(ops.cast(ops.mul(n, x), dt.bfloat16), (10, 20))

    _check(fn, [x, y, w])


def test_strided_rows() -> None:
    x = random(F32, (3, 20, 4))
    _check(lambda x: ops.call("softmax", ops.transpose(x, (0, 2, 1))), [x])
    _check(lambda x: ops.call("softmax", ops.slice_(x, (2, 19, 0), (-1, -1, 4), (-1, -1, 1))), [x])


def test_edges() -> None:
    """Infinities and NaN stay in their rows; a row whose target is no class is NaN, an
    ignored one is zero whatever it holds."""
    x = random(F32, (7, 37))
    x[0, 3:], x[1, 5], x[2, 36] = -np.inf, np.nan, np.nan
    t = np.array([1, 5, -100, 99, -7, 36, 0], np.int32)
    h = np.array([1, 1, np.nan, 1, 2, -1, 0], np.float32)
    _check(call("cross_entropy"), [x, t])
    _check(call("cross_entropy_grad", label_smoothing=0.2), [x, t, h])
    _check(call("layer_norm_grad", eps=1e-2), [x[1:], x[1], x[1:] + 1])
    _check(call("softmax_grad"), [x, x[::-1].copy()])
    x[3], x[4, 5] = -np.inf, np.inf
    _check(call("softmax"), [x])
    _check(call("log_softmax"), [x])


@pytest.mark.parametrize("tier", TIERS)
def test_row_bound(tier: str) -> None:
    x, w, g = random(F32, (7, 3, 50)), random(F32, (50,), 1), random(F32, (7, 3, 50), 2)
    for fn, arrays in ((call("softmax"), [x]), (call("layer_norm_grad", eps=1e-2), [x, w, g])):
        group = group_of(trace(fn, arrays), "norm", "call", rows="n", slots={"n": 0})
        whole = play(tier, group, arrays, 7)[0]
        for n in (0, 1, 5):
            got = play(tier, group, arrays, n)[0]
            assert np.array_equal(got[:n], whole[:n])
