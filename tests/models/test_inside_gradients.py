"""Gradients of values inside a decoder, against PyTorch's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from rows import few

from weft.core.errors import UsageError

IDS = [5, 6, 7, 8, 200, 3, 9, 40, 41, 1, 2, 3]
GRADIENTS = ["llama3", "gpt2", "gemma2", "lfm2", "gemma4", "qwen3_moe"]


@pytest.mark.parametrize(
    ("name", "device"),
    few(
        itertools.product(GRADIENTS, ["oracle", "cpu"]),
        *((name, "oracle") for name in GRADIENTS),
        ("llama3", "cpu"),
        ("qwen3_moe", "cpu"),
    ),
)
def test_gradients_are_pytorchs(pairs, name, device) -> None:
    """Of a difference of two logits, at the embeddings and after each layer."""
    import torch

    ours, theirs = pairs(name, device)
    out = theirs(torch.tensor([IDS]), output_hidden_states=True)
    for x in out.hidden_states:
        x.retain_grad()
    goal = out.logits[0, -1, 7] - out.logits[0, -2, 9]
    goal.backward()
    value, found = ours.gradients(
        IDS, lambda x: x[-1, 7] - x[-2, 9], ["embed", "layers.*.out", "norm"]
    )
    assert abs(value - float(goal)) < 1e-4
    names = ["embed", *(f"layers.{i}.out" for i in range(ours.config.layers - 1)), "norm"]
    for place, x in zip(names, out.hidden_states, strict=True):
        expected = x.grad[0].numpy()
        assert np.allclose(
            found[place], expected, rtol=1e-3, atol=1e-5 * abs(expected).max() + 1e-6
        )


def test_gradients_that_do_not_exist(pairs) -> None:
    with pytest.raises(UsageError, match="attention sinks"):
        pairs("gpt_oss")[0].gradients(IDS, lambda x: x.sum())
    with pytest.raises(UsageError, match="can be read only"):
        pairs("llama3")[0].gradients(IDS, lambda x: x.sum(), "layers.*.attn.weights")
