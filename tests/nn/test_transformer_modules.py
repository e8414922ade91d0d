"""Attention's keys and Transformer layers beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nnkit import check, close, random, twin
from torch import nn as T

import weft
from weft import nn
from weft.core.errors import UsageError

OWN_KEYS: dict[str, dict[str, Any]] = {
    "kdim": {"kdim": 5, "vdim": 7},
    "vdim": {"vdim": 7, "bias": False},
    "bias": {"add_bias_kv": True},
    "zeros": {"add_zero_attn": True},
    "all": {"kdim": 5, "vdim": 7, "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OWN_KEYS)
def test_keys_of_attention_are_pytorchs(name: str, masked: bool) -> None:
    torch.manual_seed(0)
    options = OWN_KEYS[name]
    made = [m.MultiheadAttention(6, 3, batch_first=True, **options) for m in (nn, T)]
    masks: dict[str, Any] = {}
    if masked:
        masks = {"attn_mask": CAUSAL, "key_padding_mask": PADDING}
    pair = [
        Masked.of(m, inner, make, first=True, **masks)
        for m, inner, make in zip((nn, T), made, (weft.tensor, torch.tensor))
    ]
    key, value = options.get("kdim", 6), options.get("vdim", 6)
    check(pair[0], pair[1], random(3, 5, 6), random(3, 5, key, seed=1), random(3, 5, value, seed=2))
    xs = [random(3, 5, n, seed=n) for n in (6, key, value)]
    got = made[0](*map(weft.tensor, xs), need_weights=True)[1]
    close(got, made[1](*map(torch.tensor, xs))[1])


SHARED = {"dim_feedforward": 10, "dropout": 0.0}


LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "first": {"batch_first": True, "norm_first": True},
    "gelu": {"activation": "gelu", "bias": False, "layer_norm_eps": 1e-2},
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_layers_are_pytorchs(kind: str, name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = (getattr(m, kind)(6, 3, **SHARED, **LAYERS[name]) for m in (nn, T))
    inputs = [random(5, 3, 6)]
    if "Decoder" in kind:
        shape = (5, 7, 6) if name == "first" else (7, 3, 6)
        inputs.append(random(*shape, seed=1))
    check(ours, theirs, *inputs)


class Masked:
    """A module with masks that are constants; of several results the first."""

    @staticmethod
    def of(m: Any, inner: Any, make: Callable[[np.ndarray], Any], **masks: Any) -> Any:
        first = masks.pop("first", False)

        class Call(m.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, *xs: Any) -> Any:
                given = {k: make(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}
                made = self.inner(*xs, **given)
                return made[0] if first else made

        return Call()


CAUSAL = np.triu(np.ones((5, 5), bool), 1)


PADDING = np.array([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("masks", ["none", "padding", "causal"])
def test_stacks_are_pytorchs(masks: str) -> None:
    torch.manual_seed(0)
    kinds: dict[str, dict[str, Any]] = {
        "none": {},
        "padding": {"src_key_padding_mask": PADDING},
        "causal": {"mask": CAUSAL, "is_causal": True},
    }
    made = []
    for m, make in ((nn, weft.tensor), (T, torch.tensor)):
        layer = m.TransformerEncoderLayer(6, 2, **SHARED)
        inner = m.TransformerEncoder(layer, 3, m.LayerNorm(6))
        made.append(Masked.of(m, inner, make, **kinds[masks]))
    check(made[0], made[1], random(5, 3, 6))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [True, False])
def test_the_whole_is_pytorchs(first: bool) -> None:
    torch.manual_seed(0)
    made = [
        m.Transformer(6, 2, 2, 3, batch_first=first, norm_first=first, **SHARED) for m in (nn, T)
    ]
    masks: dict[str, Any] = {"tgt_mask": CAUSAL, "memory_key_padding_mask": PADDING[:, :4]}
    pair = [
        Masked.of(m, inner, make, **masks)
        for m, inner, make in zip((nn, T), made, (weft.tensor, torch.tensor))
    ]
    shapes = ((3, 4, 6), (3, 5, 6)) if first else ((4, 3, 6), (5, 3, 6))
    check(pair[0], pair[1], *(random(*s, seed=i) for i, s in enumerate(shapes)))


def test_masks_that_torch_makes() -> None:
    ours = nn.Transformer.generate_square_subsequent_mask(5)
    close(ours.exp(), T.Transformer.generate_square_subsequent_mask(5).exp())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_layers_drop_different_elements() -> None:
    """Copies of one layer have the same weights, and random numbers of their own."""
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 10, 0.5), 2)
    x = weft.ones((64, 4, 6))
    drops = [layer.dropout1 for layer in stack.layers]
    a, b = (drop(x).numpy() for drop in drops)
    assert (a != b).any()
    twin(stack, T.TransformerEncoder(T.TransformerEncoderLayer(6, 2, 10), 2))


def test_an_activation_that_is_unknown() -> None:
    with pytest.raises(UsageError, match="activation 'tanh'; expected relu, gelu or a function"):
        nn.TransformerEncoderLayer(6, 2, activation="tanh")
    layer = nn.TransformerEncoderLayer(6, 2, 10, activation=lambda x: x.missing)
    with pytest.raises(AttributeError):
        layer(weft.ones((3, 1, 6)))
