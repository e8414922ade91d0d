"""Composites against torch.nn.functional, and their body graphs against their eager meaning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from opkit import FLOATS, agree, from_torch, to_torch

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.graph.ir import Graph


def normal(*shape: int, dtype: dt.DType = dt.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def through_body(name: str, *arrays: np.ndarray, **params: object) -> np.ndarray:
    """The composite evaluated through its body graph."""
    nodes = [ops.input_node(f"a{i}", a.shape, ops.aval(a).dtype) for i, a in enumerate(arrays)]
    graph = Graph(tuple(nodes), (ops.call(name, *nodes, **params),))
    ops.check.verify(graph)
    return ops.evaluate(graph, list(arrays), inline=True)[0]


def both(name: str, *arrays: np.ndarray, **params: object) -> np.ndarray:
    got = ops.call(name, *arrays, **params)
    np.testing.assert_array_equal(got, through_body(name, *arrays, **params))
    return got


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype: dt.DType) -> None:
    x = (normal(3, 4, 17) * 30).astype(dtype.numpy)
    agree(both("softmax", x), from_torch(F.softmax(to_torch(x), -1)), "reduce")
    agree(both("log_softmax", x), from_torch(F.log_softmax(to_torch(x), -1)), "reduce")


def test_softmax_of_nothing() -> None:
    assert ops.call("softmax", np.zeros((3, 0), np.float32)).shape == (3, 0)
    assert ops.call("softmax", np.zeros((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms(dtype: dt.DType) -> None:
    x, w, b = normal(5, 48, dtype=dtype), normal(48, dtype=dtype, seed=1), normal(48, dtype=dtype)
    tx, tw, tb = (to_torch(v).float() for v in (x, w, b))
    want = from_torch(F.layer_norm(tx, (48,), tw, tb, 1e-5)).astype(dtype.numpy)
    agree(both("layer_norm", x, w, b, eps=1e-5), want, "reduce")
    want = from_torch(F.rms_norm(tx, (48,), tw, 1e-6)).astype(dtype.numpy)
    agree(both("rms_norm", x, w, eps=1e-6), want, "reduce")
    want = from_torch(F.rms_norm(tx, (48,), tw + 1, 1e-6)).astype(dtype.numpy)
    agree(both("rms_norm", x, w, eps=1e-6, offset=1.0), want, "reduce")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(dtype: dt.DType) -> None:
    x = (normal(400) * 3).astype(dtype.numpy)
    for approximate in ("none", "tanh"):
        want = from_torch(F.gelu(to_torch(x), approximate=approximate))
        agree(both("gelu", x, approximate=approximate), want, "elementwise")
    agree(both("silu", x), from_torch(F.silu(to_torch(x))), "elementwise")
    edges = np.array([-np.inf, -1e30, 1e30, np.inf], np.float32)
    np.testing.assert_array_equal(ops.call("silu", edges)[1:], [-0.0, np.float32(1e30), np.inf])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs(interleaved: bool) -> None:
    n, h, d = 5, 3, 8
    x, angle = normal(n, h, d), normal(n, d // 2, seed=2)
    got = both("rope", x, np.cos(angle), np.sin(angle), interleaved=interleaved)
    pairs = x.reshape(n, h, d // 2, 2) if interleaved else np.stack(np.split(x, 2, -1), -1)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle.astype(np.float64))[:, None]
    parts = np.stack((turned.real, turned.imag), -1)
    want = parts.reshape(n, h, d) if interleaved else np.concatenate((turned.real, turned.imag), -1)
    np.testing.assert_allclose(got, want, atol=1e-5)


def mask_of(t: int, s: int, causal: bool, window: int, lengths: np.ndarray) -> np.ndarray:
    """[B, 1, T, S]: which keys a query sees, straight from the contract's words."""
    query, key = np.arange(t)[:, None] + (s - t), np.arange(s)[None]
    seen = np.ones((t, s), bool)
    if causal:
        seen &= key <= query
        seen &= (key > query - window) if window else True
    elif window:
        seen &= np.abs(key - query) < window
    return seen[None, None] & (key < lengths[:, None, None])[:, None]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, window: int, groups: int, dtype: dt.DType) -> None:
    b, h, t, s, d = 3, 4, 5, 9, 8
    q = normal(b, h, t, d, dtype=dtype)
    k, v = (
        normal(b, groups, s, d, dtype=dtype, seed=1),
        normal(b, groups, s, d, dtype=dtype, seed=2),
    )
    lengths = np.array([9, 6, 0], np.int32)
    params = {"causal": causal, "window": window, "scale": 1 / math.sqrt(d), "softcap": 0.0}
    got = both("attention", q, k, v, lengths, **params)
    mask = torch.from_numpy(mask_of(t, s, causal, window, lengths))
    tq, tk, tv = (to_torch(x).float() for x in (q, k, v))
    want = F.scaled_dot_product_attention(tq, tk, tv, attn_mask=mask, enable_gqa=True)
    hidden = ~mask.any(-1).expand(b, h, t)
    want = torch.where(hidden[..., None], 0.0, want)  # torch gives NaN for a row that sees nothing
    agree(got, from_torch(want).astype(dtype.numpy), "dot")
    assert not got[2].any()


def test_attention_softcap() -> None:
    q, k, v = (normal(1, 2, 4, 8, seed=i) * 3 for i in range(3))
    got = both("attention", q, k, v, scale=0.5, softcap=2.0)
    scores = 2.0 * np.tanh(q.astype(np.float64) @ k.swapaxes(-1, -2) * 0.5 / 2.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("window", [0, 4])
def test_cached_attention_is_attention_over_the_cache(window: int) -> None:
    n, h, g, d, slots, length = 5, 4, 2, 8, 3, 12
    q = normal(n, h, d)
    kc, vc = normal(slots, g, length, d, seed=1), normal(slots, g, length, d, seed=2)
    slot = np.array([0, 2, 2, 1, 0], np.int32)
    pos = np.array([0, 11, 5, 3, -1], np.int32)
    got = both("cached_attention", q, kc, vc, slot, pos, scale=0.3, window=window)
    for i in range(n):
        seen = slice(max(pos[i] + 1 - window, 0) if window else 0, pos[i] + 1)
        k, v = kc[slot[i], :, seen], vc[slot[i], :, seen]
        if pos[i] < 0:
            assert not got[i].any()
            continue
        want = ops.call("attention", q[i][None, :, None], k[None], v[None], scale=0.3)
        np.testing.assert_allclose(got[i], want[0, :, 0], atol=1e-5)


def test_bodies_are_shared() -> None:
    a = ops.Aval((4, 8), dt.float32)
    assert ops.body_graph("softmax", (a,), {}) is ops.body_graph("softmax", (a,), {})


def test_errors() -> None:
    x = normal(2, 3)
    with pytest.raises(ShapeError, match=r"H a multiple of G"):
        ops.call("attention", normal(1, 3, 2, 4), *[normal(1, 2, 2, 4)] * 2, scale=1.0)
    with pytest.raises(DTypeError, match="one dtype"):
        ops.call(
            "attention", normal(1, 2, 2, 4), *[normal(1, 2, 2, 4, dtype=dt.float16)] * 2, scale=1.0
        )
    with pytest.raises(DTypeError, match="approximate"):
        ops.call("gelu", x, approximate="fast")
    with pytest.raises(ShapeError, match="D even"):
        ops.call("rope", normal(2, 1, 3), normal(2, 1), normal(2, 1))
    with pytest.raises(ShapeError, match="0-d"):
        ops.call("softmax", np.float32(1).reshape(()))
