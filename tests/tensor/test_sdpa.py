"""scaled_dot_product_attention, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.errors import ShapeError, UsageError

RNG = np.random.default_rng(0)
sdpa = weft.functional.scaled_dot_product_attention
torch_sdpa = torch.nn.functional.scaled_dot_product_attention
MASK = RNG.random((2, 1, 5, 7)) > 0.4
MASK[..., 0] = True  # every query sees a key
CASES = {
    "plain": (4, 7, 8, {}),
    "causal": (4, 5, 8, {"is_causal": True}),
    "causal, more keys": (4, 7, 8, {"is_causal": True}),
    "scale": (4, 7, 8, {"scale": 0.3}),
    "grouped": (2, 7, 8, {"enable_gqa": True}),
    "bool mask": (4, 7, 8, {"attn_mask": MASK}),
    "grouped mask": (2, 7, 8, {"attn_mask": MASK, "enable_gqa": True}),
    "float mask": (4, 7, 8, {"attn_mask": RNG.normal(size=(5, 7))}),
    "other value width": (4, 7, 3, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    groups, keys, width, options = CASES[name]
    shapes = ((2, 4, 5, 8), (2, groups, keys, 8), (2, groups, keys, width))
    arrays = [RNG.normal(size=s) for s in shapes]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [weft.tensor(a, requires_grad=True) for a in arrays]
    given = {k: v for k, v in options.items() if k != "attn_mask"}
    mask = options.get("attn_mask")
    want = torch_sdpa(*theirs, None if mask is None else torch.tensor(mask), **given)
    got = sdpa(*ours, None if mask is None else weft.tensor(mask), **given)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-12)
    want.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-7, atol=1e-10)


def test_three_axes_narrow_floats_and_compiled() -> None:
    q = weft.randn(3, 6, 16)
    want = sdpa(q, q, q, is_causal=True)
    assert want.shape == (3, 6, 16)
    got = weft.compile(lambda x: sdpa(x, x, x, is_causal=True), device="cpu")(q)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    narrow = q.cast("float16")
    masked = sdpa(narrow, narrow, narrow, attn_mask=weft.tensor(np.zeros((6, 6), bool)))
    assert masked.dtype == weft.float16 and not masked.numpy().any()


def test_refused() -> None:
    q, k = weft.randn(1, 4, 3, 8), weft.randn(1, 2, 3, 8)
    with pytest.raises(ShapeError, match="enable_gqa"):
        sdpa(q, k, k)
    with pytest.raises(UsageError, match="not both"):
        sdpa(q, q, q, attn_mask=weft.ones((3, 3)), is_causal=True)
