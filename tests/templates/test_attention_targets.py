"""Attention, its gradients and cached attention, a row per tier: the interpreter with the Caps of
every target (which reports races and out-of-bounds access), and Vulkan where there is a driver.
This CPU, and what each tier has of its own: the other files of attention."""

from __future__ import annotations

import pytest
from product_kit import TIERS, device
from test_attention import case as whole
from test_attention_backward import case as gradients
from test_attention_cached import case as cached

from weft.core import dtypes as dt


@pytest.mark.parametrize("tier", TIERS[1:])
def test_whole_attention(tier: str) -> None:
    d = device(tier)
    whole(d, 1, 2, 2, 9, 11, 10)
    whole(d, 2, 4, 2, 9, 21, 12, window=4, lengths=[3, 21], packed=True)
    whole(d, 1, 2, 1, 17, 17, 8, dt.float16, causal=False, softcap=2.0)


@pytest.mark.parametrize("tier", TIERS[1:])
def test_attention_gradients(tier: str) -> None:
    d = device(tier)
    gradients(d, 1, 2, 1, 9, 11, 10, parts=True, causal=True)
    case = {"window": 4, "lengths": [3, 21], "packed": True, "softcap": 2.0}
    gradients(d, 2, 2, 2, 9, 21, 12, dt.float16, parts=True, **case)


@pytest.mark.parametrize("tier", TIERS[1:])
def test_cached_attention(tier: str) -> None:
    d = device(tier)
    cached(d, [0, 1], [5, 17], length=20, d=10, flat=True)
    cached(d, [0] * 18, list(range(18)), length=20, d=8, dtype=dt.float16)
    cached(d, [1, 0, 0], [19, 3, 12], h=3, g=1, length=20, d=8, window=6)
