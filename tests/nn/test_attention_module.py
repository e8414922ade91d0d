"""nn.MultiheadAttention against PyTorch's: masks, biases, layouts, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from nnkit import check, close, random, twin

import weft
from weft import nn

T = torch.nn


class Wrapped(nn.Module):
    """The first result of our attention, of one input or three."""

    def __init__(self, inner: nn.Module, **options: Any):
        self.inner, self.options = inner, options

    def forward(self, *x: Any) -> Any:
        return self.inner(*(x if len(x) == 3 else x * 3), **self.options)[0]


class TorchWrapped(T.Module):
    """The same of PyTorch's."""

    def __init__(self, inner: T.Module, **options: Any):
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, *x: Any) -> Any:
        return self.inner(*(x if len(x) == 3 else x * 3), **self.options)[0]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("crossed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_pytorchs(first: bool, crossed: bool, bias: bool) -> None:
    torch.manual_seed(0)
    made = [m.MultiheadAttention(12, 3, bias=bias, batch_first=first) for m in (nn, T)]
    if bias:
        torch.nn.init.normal_(made[1].in_proj_bias)
    inputs = [random(2, 5, 12)]
    if crossed:
        inputs += [random(*((2, 7) if first else (7, 5)), 12, seed=s) for s in (1, 2)]
    check(Wrapped(made[0]), TorchWrapped(made[1]), *inputs)


@pytest.mark.parametrize("mask", ["causal", "padding", "floats", "heads"])
def test_masked_attention_is_pytorchs(mask: str) -> None:
    torch.manual_seed(0)
    hidden = np.triu(np.ones((5, 5), bool), 1)
    padding = np.array([[False] * 5, [False, False, False, True, True]])
    floats = random(5, 5, seed=7)
    heads = np.repeat(floats[None] > 1, 6, 0)
    given: dict[str, Any] = {
        "causal": {"attn_mask": hidden, "is_causal": True},
        "padding": {"key_padding_mask": padding},
        "floats": {"attn_mask": floats},
        "heads": {"attn_mask": heads},
    }[mask]
    made = [m.MultiheadAttention(12, 3, batch_first=True) for m in (nn, T)]
    ours = {k: v if isinstance(v, bool) else weft.tensor(v) for k, v in given.items()}
    theirs = {k: v if isinstance(v, bool) else torch.tensor(v) for k, v in given.items()}
    check(Wrapped(made[0], **ours), TorchWrapped(made[1], **theirs), random(2, 5, 12))
    if mask == "causal":
        check(Wrapped(made[0], is_causal=True), TorchWrapped(made[1], **theirs), random(2, 5, 12))


def test_attention_weights_are_pytorchs() -> None:
    ours, theirs = (m.MultiheadAttention(12, 3, batch_first=True) for m in (nn, T))
    twin(ours, theirs)
    x = random(2, 5, 12)
    got = ours(*[weft.tensor(x)] * 3, need_weights=True)[1]
    close(got, theirs(*[torch.tensor(x)] * 3)[1])
