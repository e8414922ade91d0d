"""The derivative of attention: its bodies against PyTorch and differences, whole and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradkit import check, grads
from hypothesis import given, settings, strategies as st

from weft import ops
from weft.compile.passes import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DTypeError, ShapeError
from weft.graph.ir import Graph
from weft.ops import functions as f
from weft.ops.tape import Tracked, plain, walk


def torch_grads(  # type: ignore[no-untyped-def]
    q, k, v, g, lengths=None, causal=False, scale=1.0, window=0, softcap=0.0
) -> list[np.ndarray]:
    """Attention with masks written out, differentiated by PyTorch in float64."""
    leaves = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v)]
    (heads, t), (groups, s) = q.shape[1:3], k.shape[1:3]
    wide = [x.repeat_interleave(heads // groups, 1) for x in leaves[1:]]
    scores = leaves[0] @ wide[0].transpose(-1, -2) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    at, key = torch.arange(t)[:, None] + s - t, torch.arange(s)[None]
    seen = torch.ones(t, s, dtype=torch.bool)
    if causal:
        seen &= key <= at
    if window:
        seen &= (key > at - window) & (key < at + window)
    seen = seen.expand(scores.shape)
    if lengths is not None:
        seen = seen & (key < torch.tensor(lengths)[:, None, None, None])
    p = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
    (p @ wide[1]).backward(torch.tensor(g.astype(np.float64)))
    return [x.grad.numpy() for x in leaves]


def operands(b, h, g, t, s, d, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:  # type: ignore[no-untyped-def]
    """q, k, v and the gradient of the output."""
    rng = np.random.default_rng(seed)
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, d), (b, h, t, d))
    return [rng.standard_normal(x).astype(dtype) for x in shapes]


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 2},
    "near": {"window": 3},
    "softcap": {"softcap": 0.8, "causal": True},
}


@pytest.mark.parametrize("lengths", [None, [3, 0]])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(2, 2, 1, 3, 5, 3), (2, 2, 2, 5, 3, 2)])
def test_torch(name, shape, lengths) -> None:  # type: ignore[no-untyped-def]
    q, k, v, g = operands(*shape)
    extra = () if lengths is None else (np.asarray(lengths, np.int32),)
    params = {"scale": 0.6, **CASES[name]}
    got = grads(lambda *xs: f.call("attention", *xs, **params), q, k, v, *extra, seed=g)
    for one, want in zip(got, torch_grads(q, k, v, g, lengths, **params)):
        np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_differences(name) -> None:  # type: ignore[no-untyped-def]
    q, k, v, _ = operands(1, 2, 1, 3, 4, 2, np.float64)
    n = np.asarray([3], np.int32)
    check(lambda *xs: f.call("attention", *xs, scale=0.6, **CASES[name]), q, k, v, n)


def test_second_derivatives() -> None:
    arrays = operands(1, 2, 1, 3, 3, 2, np.float64)[:3]

    def slope(*xs: Any) -> Any:
        leaves = [x if isinstance(x, Tracked) else Tracked(x) for x in xs]
        out = f.call("attention", *leaves, scale=0.7, causal=True)
        found = walk(out, f.cos(plain(out)), create_graph=True)
        parts = [f.sum_(f.mul(found[id(x)][1], x)) for x in leaves]
        total = f.add(f.add(parts[0], parts[1]), parts[2])
        return total if any(isinstance(x, Tracked) for x in xs) else plain(total)

    got = grads(slope, *arrays)
    assert all(np.isfinite(x).all() and x.any() for x in got)


@given(
    st.tuples(*(st.integers(1, n) for n in (2, 2, 2, 6, 6, 5))),
    st.booleans(), st.integers(0, 4), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_shape(shape, causal, window, padded, random) -> None:  # type: ignore[no-untyped-def]
    b, groups, share, t, s, d = shape
    q, k, v, g = operands(b, groups * share, groups, t, s, d, seed=random.randrange(1000))
    lengths = [random.randrange(s + 1) for _ in range(b)] if padded else None
    extra = () if lengths is None else (np.asarray(lengths, np.int32),)
    params = {"scale": 0.5, "causal": causal, "window": window}
    got = grads(lambda *xs: f.call("attention", *xs, **params), q, k, v, *extra, seed=g)
    for one, want in zip(got, torch_grads(q, k, v, g, lengths, **params)):
        np.testing.assert_allclose(one, want, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("shape", [(0, 2, 1, 3, 4, 2), (1, 2, 1, 0, 4, 2), (1, 2, 1, 3, 0, 2)])
def test_nothing(shape) -> None:  # type: ignore[no-untyped-def]
    q, k, v, _ = operands(*shape)
    for x, got in zip((q, k, v), grads(lambda *xs: f.call("attention", *xs, scale=1.0), q, k, v)):
        assert got.shape == x.shape and not got.any()


def test_only_what_is_wanted() -> None:
    q, k, v, g = operands(1, 2, 2, 4, 4, 3)
    leaf = Tracked(v)
    out = f.call("attention", q, k, leaf, scale=1.0)
    np.testing.assert_allclose(
        walk(out, g)[id(leaf)][1], torch_grads(q, k, v, g)[2], rtol=1e-5, atol=1e-5
    )


def test_cached_attention_through_its_body() -> None:
    rng = np.random.default_rng(3)
    q = rng.standard_normal((3, 4, 2))
    caches = rng.standard_normal((2, 2, 2, 5, 2))
    slot, pos = np.asarray([1, 0, 1], np.int32), np.asarray([0, 4, 2], np.int32)
    check(lambda *xs: f.call("cached_attention", *xs, scale=0.5), q, *caches, slot, pos)


def test_bad_operands() -> None:
    q, k, v, g = operands(1, 2, 1, 3, 4, 2)
    with pytest.raises(ShapeError, match=r"attention_grad: got .* expected q and g"):
        f.call("attention_grad", q, k, v, g[:, :1], scale=1.0)
    with pytest.raises(DTypeError, match="attention_dq: float16"):
        row = np.zeros((1, 2, 3), np.float32)
        f.call("attention_dq", q, k, v, g.astype(np.float16), row, row, scale=1.0)


def backward(b, h, g, t, s, d, **params: Any) -> Graph:  # type: ignore[no-untyped-def]
    """The graph of attention's output and three gradients."""
    shapes = ((b, h, t, d), (b, g, s, d), (b, g, s, d), (b, h, t, d))
    ins = [ops.input_node(n, x, dt.float32) for n, x in zip("qkvg", shapes)]
    with ops.building():
        leaves = [Tracked(x) for x in ins[:3]]
        out = f.call("attention", *leaves, scale=d**-0.5, **params)
        found = walk(out, ins[3])
        outs = (plain(out), *(found[id(x)][1] for x in leaves))
    return Graph(tuple(ins), outs)


@pytest.mark.parametrize("heads", [4, 1])  # one: too few for the cores, so by parts
@pytest.mark.parametrize("caps", ["cpu-avx512", "cpu-avx2", "webgpu", "lavapipe", "cuda"])
def test_no_square_matrix_in_memory(caps, heads) -> None:  # type: ignore[no-untyped-def]
    program = compile_graph(backward(1, heads, heads, 1024, 1024, 64, causal=True), PRESETS[caps])
    arena = sum(x.nbytes for x in program.buffers if x.role == "arena")
    operand = heads * 1024 * 64 * 4
    assert arena <= 4 * operand  # a quarter of one T x S matrix
    assert arena * 4 <= heads * 1024 * 1024 * 4
