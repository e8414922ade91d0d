"""Tracing: a traced function's Graph, evaluated with the NumPy rules, is the eager function."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft
from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, TraceError, UsageError
from weft.core.trees import unflatten
from weft.tensor import Spec, Tensor, functional as F, trace, trace_call

rng = np.random.default_rng(3)
A, B = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((6, 3)).astype("f4")


def round_trip(fn: Any, *arrays: np.ndarray) -> None:
    """trace + evaluate (with and without bodies inlined) equals running eagerly."""
    specs = [Spec(a.shape, dt.as_dtype(a.dtype)) for a in arrays]
    traced = trace_call(fn, specs)
    ops.check.verify(traced.graph)
    want = fn(*map(weft.tensor, arrays))
    flat: list[Any] = []
    _leaves(want, flat)
    for inline in (False, True):
        got = ops.evaluate(traced.graph, list(arrays), inline=inline)
        assert len(got) == len(flat)
        for g, w in zip(got, flat):
            assert g.dtype == w.numpy().dtype and g.shape == w.shape
            np.testing.assert_allclose(g, w.numpy(), rtol=1e-6, atol=1e-6)


def _leaves(x: Any, out: list[Any]) -> None:
    if isinstance(x, Tensor):
        out.append(x)
    else:
        for v in x.values() if isinstance(x, dict) else x:
            _leaves(v, out)


FUNCTIONS = {
    "mlp": lambda x, w: F.softmax(F.gelu(x @ w), -1),
    "norms": lambda x, w: (F.layer_norm(x), F.rms_norm(x), x.mean(0), x.var(-1), w.std()),
    "scalars": lambda x, w: {"a": 2 - x, "b": x > 0.5, "c": -x % 3, "d": x // 2, "e": x**2},
    "indexing": lambda x, w: [x[1], x[::-1, None, ::2], x[[2, 0]], x[..., 1:3], x.flip(0)],
    "integers": lambda x, w: (x.argmax(-1), x.sort(0), x.argsort(1), x.topk(2)[1]),
    "creation": lambda x, w: x + weft.arange(6) + weft.eye(4, 6) * weft.ones((4, 6)),
    "constants": lambda x, w: x * np.float32(3) + weft.tensor(A) @ np.eye(6, dtype=np.float32),
    "where": lambda x, w: weft.where(x > 0, x, 0.0) + weft.tril(x) + x.clip(-1, 1),
    "joins": lambda x, w: weft.cat([x.T, w], 1).chunk(2) + x.split([2, 4], 1),
    "running": lambda x, w: (x.cumsum(0), x.prod(1), x.any(), x.min(1), x.log_softmax(0)),
    "casts": lambda x, w: (x.cast("bf16") + 1, x.cast("int8") + 3, x.cast("f16") @ w.cast("f16")),
    "random": lambda x, w: weft.rand(5, key=1) + weft.randn(5, key=2),
    "writes": lambda x, w: _written(x),
}  # fmt: skip


def _written(x: Tensor) -> Tensor:
    y = x + 0
    y[1] = 5.0
    y[:, ::2] = x[:, ::2] * 2
    y[np.array([3, 0])] = x[:2]
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_round_trip(name: str) -> None:
    round_trip(FUNCTIONS[name], A, B)


def test_attention_round_trip() -> None:
    q, k = (
        rng.standard_normal((2, 4, 3, 8)).astype("f4"),
        rng.standard_normal((2, 2, 5, 8)).astype("f4"),
    )
    lengths = np.array([5, 2], np.int32)
    round_trip(lambda q, k, n: F.attention(q, k, k, n, causal=True, window=4), q, k, lengths)


def test_outside_tensors_become_weights_and_state() -> None:
    w, count = weft.tensor(B, name="w"), weft.zeros((), "int32")
    count.name = "count"

    def step(x: Tensor) -> Tensor:
        count.assign(count + 1)
        count.assign(count * 2)
        return x @ w + count

    traced = trace_call(step, [Spec((4, 6), name="x")])
    roles = {n.attrs["name"]: n.attrs["role"] for n in traced.graph.inputs}
    assert roles == {"x": "input", "count": "state", "w": "weight"}
    assert traced.captured["w"] is w and count.item() == 0
    values = {"x": A, "w": B, "count": np.int32(3).reshape(())}
    out, new = ops.evaluate(traced.graph, values)
    assert new == 8
    np.testing.assert_allclose(out, A @ B + 8, rtol=1e-5)


def test_passed_state_and_scalars() -> None:
    def fn(x: Tensor, cache: Tensor, n: Tensor) -> Tensor:
        cache[n.reshape(1)] = x
        return cache.sum(0) * n

    specs = [
        Spec((1, 3), name="x", rows="n"),
        Spec((5, 3), name="cache", role="state"),
        Spec((), "int32", role="scalar"),
    ]
    graph = trace(fn, specs)
    ops.check.verify(graph)
    assert [n.attrs["role"] for n in graph.inputs] == ["input", "state", "scalar"]
    assert graph.inputs[0].attrs["rows"] == "n" and graph.inputs[2].attrs["name"] == "n"
    x, cache = np.ones((1, 3), "f4"), np.zeros((5, 3), "f4")
    out, new = ops.evaluate(graph, [x, cache, np.int32(2)])
    assert out.tolist() == [2, 2, 2] and new[2].tolist() == [1, 1, 1] and new.sum() == 3


def test_output_nesting() -> None:
    traced = trace_call(lambda x: {"a": (x, [x + 1]), "b": None}, [Spec((2,))])
    assert unflatten(traced.tree, ["X", "Y"]) == {"a": ("X", ["Y"]), "b": None}


def test_nodes_know_the_users_line() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.softmax() + 1

    graph = trace(fn, [Spec((2, 3))])
    line = fn.__code__.co_firstlineno + 1
    assert graph.outputs[0].where == f"{__file__}:{line}"


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x if x.sum() > 0 else -x, "control flow"),
        (lambda x: x * x.sum().item(), "item"),
        (lambda x: x + x.numpy(), "numpy"),
        (lambda x: [0, 1][x.argmax(-1)[0]] * x, "item"),
        (lambda x: x[x > 0], "boolean mask"),
        (lambda x: x + weft.rand(3), "without a key"),
        (lambda x: x.to("interp"), "one device"),
        (lambda x: np.asarray(x), "NumPy"),
    ],
)  # fmt: skip
def test_values_are_refused_while_tracing(fn: Any, words: str) -> None:
    with pytest.raises(TraceError, match=words) as error:
        trace(fn, [Spec((2, 3))])
    if words == "control flow":
        assert f"{__file__}:" in str(error.value)


def test_misuse() -> None:
    kept: list[Tensor] = []
    trace(lambda x: kept.append(x + 1) or x, [Spec((2,))])
    with pytest.raises(TraceError, match="after its trace ended"):
        kept[0] + 1
    with pytest.raises(TraceError, match="left over from another trace"):
        trace(lambda x: x + kept[0], [Spec((2,))])
    with pytest.raises(DTypeError, match="returned int"):
        trace(lambda x: 3, [Spec((2,))])
    with pytest.raises(TraceError, match='role="state"'):
        trace(lambda x: x.assign(x + 1), [Spec((2,))])
    with pytest.raises(UsageError, match="two inputs"):
        trace(lambda x, y: x + y, [Spec((2,), name="a"), Spec((2,), name="a")])
    with pytest.raises(ShapeError, match=r"expected int32\[\]"):
        trace(lambda n: n, [Spec((2,), "int32", role="scalar")])
    with pytest.raises(TraceError, match="nest"):
        trace(lambda x: trace(lambda y: y, [Spec((1,))]) and x, [Spec((2,))])
    assert (weft.ones((2,)) + 1).tolist() == [2, 2]  # a failed trace leaves nothing behind


def test_a_shape_error_inside_a_traced_function_names_the_users_line() -> None:
    def wrong(x: Tensor) -> Tensor:
        y = x * 2
        return y @ weft.ones((5, 6))

    with pytest.raises(ShapeError, match=rf"{re.escape(__file__)}:\d+: matmul") as caught:
        weft.compile(wrong)(weft.ones((3, 4)))
    line = int(str(caught.value).split(":")[1])
    assert line == wrong.__code__.co_firstlineno + 2
