"""Row statistics on every kind of target: against the composite's body, and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from harness import TARGETS, check, group_of, random, run_cpu, run_interp, trace

from weft import ops
from weft.core import dtypes as dt
from weft.core.caps import PRESETS

F32 = dt.float32
FLOATS = [F32, dt.float16, dt.bfloat16]


def _check(fn: Any, arrays: list[np.ndarray], **extra: Any) -> None:
    check(fn, arrays, "norm", "call", tolerance="reduce", **extra)


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("n", [1, 3, 16, 33, 130])
def test_composites(n: int, dtype: dt.DType) -> None:
    x, w, b = random(dtype, (4, n)), random(dtype, (n,), 1), random(dtype, (n,), 2)
    _check(lambda x: ops.call("softmax", x), [x])
    _check(lambda x: ops.call("log_softmax", x), [x])
    _check(lambda x, w, b: ops.call("layer_norm", x, w, b, eps=1e-5), [x, w, b])
    _check(lambda x, w: ops.call("rms_norm", x, w, eps=1e-5, offset=1.0), [x, w])


@pytest.mark.parametrize("n", [768, 1000, 4096, 50257])
def test_long_rows_against_torch(n: int) -> None:
    x, w, b = random(F32, (3, n)), random(F32, (n,), 1), random(F32, (n,), 2)
    t = torch.from_numpy
    for name, values, want in (
        ("softmax", [x], torch.softmax(t(x), -1)),
        ("log_softmax", [x], torch.log_softmax(t(x), -1)),
        ("layer_norm", [x, w, b], torch.nn.functional.layer_norm(t(x), (n,), t(w), t(b))),
    ):
        params = {"eps": 1e-5} if len(values) > 1 else {}
        graph = trace(lambda *v: ops.call(name, *v, **params), values)  # noqa: B023
        got = run_cpu(group_of(graph, "norm", "call"), values)[0]
        assert np.allclose(got, want.numpy(), rtol=1e-5, atol=1e-5), name


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


def test_infinities_and_nan() -> None:
    x = random(F32, (5, 37))
    x[0, 3:], x[1, :], x[2, 5], x[3, 36] = -np.inf, -np.inf, np.inf, np.nan
    _check(lambda x: ops.call("softmax", x), [x])
    _check(lambda x: ops.call("log_softmax", x), [x])


@pytest.mark.parametrize("target", TARGETS)
def test_row_bound_and_batch_invariance(target: str) -> None:
    x = random(F32, (6, 3, 50))
    fn = lambda x: ops.call("softmax", x)  # noqa: E731
    group = group_of(trace(fn, [x]), "norm", "call", rows="n", slots={"n": 0})
    whole = run_interp(group, PRESETS[target], [x], [6])[0]
    assert np.allclose(whole.sum(-1), 1, atol=1e-5)
    for n in (0, 1, 4):
        assert np.array_equal(run_interp(group, PRESETS[target], [x], [n])[0][:n], whole[:n])
    one = group_of(trace(fn, [x[2:3]]), "norm", "call")
    assert np.array_equal(run_interp(one, PRESETS[target], [x[2:3]])[0][0], whole[2])
