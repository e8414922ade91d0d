"""Functions of torch.nn.functional that few scripts use, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft.torch
from weft.core.errors import AxisError, ShapeError, UsageError, WeftError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 9, 7)).astype(np.float32)
Q, KEY, VALUE = (
    RNG.standard_normal(s).astype(np.float32) for s in ((5, 2, 8), (4, 2, 6), (4, 2, 4))
)
PLACES = RNG.random((2, 3, 2), np.float32)


def _attention(m: Any, kind: str) -> Any:
    torch.manual_seed(0)
    sizes = {"kdim": 6, "vdim": 4} if kind == "separate" else {}
    own = torch.nn.MultiheadAttention(8, 2, add_bias_kv=kind == "added", **sizes)
    state = {n: m.tensor(p.detach().numpy()) for n, p in own.named_parameters()}
    q, k, v = (m.tensor(x) for x in ((Q, KEY, VALUE) if sizes else (Q, Q, Q)))
    mask = m.tensor(np.arange(5)[:, None] * 2 < np.arange(len(k)))
    more = {n: state[n] for n in ("q_proj_weight", "k_proj_weight", "v_proj_weight") if sizes}
    q.requires_grad_()
    out, weights = m.nn.functional.multi_head_attention_forward(
        q, k, v, 8, 2, state.get("in_proj_weight"), state["in_proj_bias"], state.get("bias_k"),
        state.get("bias_v"), kind == "added", 0.0, state["out_proj.weight"],
        state["out_proj.bias"], attn_mask=mask, use_separate_proj_weight=bool(sizes), **more,
    )  # fmt: skip
    (out * out).sum().backward()
    return out.detach(), weights.detach(), q.grad


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "max1": lambda m, x: m.nn.functional.max_pool1d_with_indices(x[0], 2),
    "max2": lambda m, x: m.nn.functional.max_pool2d_with_indices(x, 3, stride=2, padding=1),
    "max3": lambda m, x: m.nn.functional.max_pool3d_with_indices(x, 2, return_indices=False),
    "adaptive1": lambda m, x: m.nn.functional.adaptive_max_pool1d_with_indices(x[0], 2),
    "adaptive2": lambda m, x: m.nn.functional.adaptive_max_pool2d_with_indices(x, (2, 3)),
    "adaptive3": lambda m, x: m.nn.functional.adaptive_max_pool3d_with_indices(x, 2),
    "fractional": lambda m, x: m.nn.functional.fractional_max_pool2d_with_indices(
        x[:1], 2, output_size=3, _random_samples=m.tensor(PLACES[:1])),
    "fractional-one": lambda m, x: m.nn.functional.fractional_max_pool2d(
        x[0], 2, output_ratio=(0.5, 0.4), return_indices=True,
        _random_samples=m.tensor(PLACES[:1])),
    "attention": lambda m, x: _attention(m, "plain"),
    "attention-separate": lambda m, x: _attention(m, "separate"),
    "attention-added": lambda m, x: _attention(m, "added"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_results_are_pytorchs(name: str) -> None:
    ours, theirs = (CALLS[name](m, m.tensor(X)) for m in (weft.torch, torch))
    assert isinstance(ours, tuple)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype.name == str(b.dtype).removeprefix("torch.") and a.shape == b.shape
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5)


def test_what_they_refuse() -> None:
    W = weft.torch
    F, x = W.nn.functional, W.tensor(Q)
    weights = (W.ones(24, 8), W.zeros(24), None, None, False, 0.0, W.ones(8, 8), None)
    with pytest.raises(UsageError, match="static_k"):
        F.multi_head_attention_forward(x, x, x, 8, 2, *weights, static_k=x)
    with pytest.raises(ShapeError, match="embed_dim_to_check 6"):
        F.multi_head_attention_forward(x, x, x, 6, 2, *weights)
    with pytest.raises(ShapeError, match="3 heads"):
        F.multi_head_attention_forward(x, x, x, 8, 3, *weights)
    net = W.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4], device="cpu", dtype=W.float64)
    assert net.predict(W.ones(3, 8, dtype=W.float64)).dtype == W.int64
    with pytest.raises(AxisError, match="20 is out of range"):
        net(W.ones(1, 8, dtype=W.float64), W.tensor([20]))
    with pytest.raises(WeftError, match="SDPBackend"), W.nn.attention.sdpa_kernel("flash"):
        pass
    with W.nn.attention.sdpa_kernel([W.nn.attention.SDPBackend.MATH]):
        assert F.scaled_dot_product_attention(x, x, x).shape == x.shape


@pytest.mark.parametrize("m", [weft.torch, torch])
def test_shown_as_pytorchs(m: Any) -> None:
    net = m.nn.Sequential(m.nn.BatchNorm2d(3), m.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4]))
    shown = repr(m.nn.SyncBatchNorm.convert_sync_batchnorm(net))
    want = "SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=True, bias=True, "
    assert want in shown and "(head): Linear(in_features=8, out_features=5, bias=False)" in shown
    module = m.nn.Module()
    module.held = m.nn.Buffer(m.ones(2))
    assert isinstance(module.held, m.nn.Buffer) and list(module.state_dict()) == ["held"]
