"""What is computed from float16 and bfloat16 is rounded once, at the end: losses and their weights,
attention with masks, averages, lengths. The truth is float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import nn

F = weft.functional
RNG = np.random.default_rng(3)
TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16}
BITS = {"float16": 11, "bfloat16": 8}


def pair(dtype: str, *shape: int, scale: float = 1.0, low: float | None = None) -> Any:
    """The same numbers, exactly held by `dtype`: for weft in it, for PyTorch in float64."""
    x = RNG.normal(size=shape) * scale if low is None else RNG.uniform(low, scale, shape)
    wide = torch.tensor(x).to(TORCH[dtype]).double()
    return weft.tensor(wide.numpy(), dtype=dtype), wide


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weights", ["pos_weight", "weight", "both"])
@pytest.mark.parametrize("dtype", TORCH)
def test_weights_of_bce_are_not_rounded(
    dtype: str, weights: str, reduction: str, compiled: bool
) -> None:
    x, tx = pair(dtype, 9, 6, scale=5)
    y, ty = pair(dtype, 9, 6, scale=1, low=0)
    w, tw = pair(dtype, 6, scale=3, low=0.01)  # w - 1 needs more bits than w has
    named = ("pos_weight", "weight") if weights == "both" else (weights,)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits
    want = theirs(tx, ty, reduction=reduction, **dict.fromkeys(named, tw)).numpy()

    def loss(a: weft.Tensor, b: weft.Tensor, c: weft.Tensor) -> weft.Tensor:
        given = dict.fromkeys(named, c)
        return F.binary_cross_entropy_with_logits(a, b, reduction=reduction, **given)

    got = (weft.compile(loss, device="cpu") if compiled else loss)(x, y, w)
    assert got.dtype == weft.float32
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TORCH)
def test_weights_and_smoothing_of_cross_entropy_are_not_rounded(dtype: str) -> None:
    x, tx = pair(dtype, 8, 6, scale=4)
    w, tw = pair(dtype, 6, scale=2, low=0.1)
    at = RNG.integers(0, 6, 8)
    theirs = torch.nn.functional.cross_entropy
    want = theirs(tx, torch.tensor(at), tw, label_smoothing=0.3).item()
    ids = weft.tensor(at.astype(np.int32))
    with weft.autocast(dtype):  # losses are float32 there too
        inside = F.cross_entropy(x, ids, w, label_smoothing=0.3)
    for got in (inside, F.cross_entropy(x, ids, w, label_smoothing=0.3)):
        np.testing.assert_allclose(got.item(), want, rtol=2e-6)


def rounded_once(got: weft.Tensor, want: torch.Tensor, dtype: str) -> None:
    assert got.dtype.name == dtype
    limit = 2.0 ** -BITS[dtype] * want.abs().numpy() * 1.01 + 1e-5
    assert (np.abs(got.cast("float64").numpy() - want.numpy()) <= limit).all()


@pytest.mark.parametrize("hides", ["bool", "float", "padding"])
@pytest.mark.parametrize("dtype", TORCH)
def test_scores_of_multihead_attention_are_not_rounded(dtype: str, hides: str) -> None:
    """With identity projections the result is the attention of what goes in."""
    ours = nn.MultiheadAttention(32, 2, bias=False, batch_first=True)
    eye = np.eye(32, dtype=np.float32)
    ours.load_state_dict({"in_proj_weight": np.tile(eye, (3, 1)), "out_proj.weight": eye})
    ours.to(weft.core.dtypes.as_dtype(dtype))
    q, tq = pair(dtype, 2, 9, 32, scale=3)
    k, tk = pair(dtype, 2, 11, 32, scale=3)
    mask, options = RNG.random((9, 11)) > 0.7, {}
    mask[:, 0] = False
    if hides == "padding":
        mask = np.arange(11) >= np.array([[7], [11]])
        options["key_padding_mask"] = mask
        bias = torch.tensor(mask).reshape(2, 1, 1, 11).double() * -1e9
    elif hides == "bool":
        options["attn_mask"] = mask
        bias = torch.tensor(mask).double() * -1e9
    else:
        options["attn_mask"], bias = pair(dtype, 9, 11, scale=2)
    given = {n: m if isinstance(m, weft.Tensor) else weft.tensor(m) for n, m in options.items()}
    got, weights = ours(q, k, k, need_weights=True, **given)
    heads = [x.reshape(2, -1, 2, 16).transpose(1, 2) for x in (tq, tk, tk)]
    want = torch.nn.functional.scaled_dot_product_attention(*heads, bias)
    rounded_once(got, want.transpose(1, 2).reshape(2, 9, 32), dtype)
    assert weights.dtype.name == dtype


AVERAGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], float]] = {
    "std": (lambda x: x.std(1), lambda x: x.std(1, correction=0), 3e4),
    "tiny std": (lambda x: x.std(1), lambda x: x.std(1, correction=0), 2e-4),
    "normalize": (F.normalize, torch.nn.functional.normalize, 3e3),
    "tiny normalize": (F.normalize, torch.nn.functional.normalize, 1e-4),
}


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("dtype", TORCH)
def test_averages_and_lengths_do_not_overflow_or_round_on_the_way(dtype: str, name: str) -> None:
    ours, theirs, scale = AVERAGES[name]
    x, tx = pair(dtype, 5, 64, scale=scale)
    x, tx = (x.clip(-6e4, 6e4), tx.clip(-6e4, 6e4))
    rounded_once(ours(x), theirs(tx), dtype)
