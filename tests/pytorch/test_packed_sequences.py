"""Packed sequences: the same rows, results and states as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import ShapeError, UsageError

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)


@pytest.mark.parametrize("lengths, sort", [([5, 3, 1], True), ([2, 5, 3], False)])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str, first: bool, lengths: list[int], sort: bool) -> None:
    options = {"batch_first": first, "bidirectional": kind != "RNN"}
    other = getattr(theirs.nn, kind)(4, 3, 2, **options)
    layer = getattr(torch.nn, kind)(4, 3, 2, **options)
    layer.load_state_dict(other.state_dict())

    def run(m: Any, net: Any) -> list[Any]:
        rnn = m.nn.utils.rnn
        x = m.tensor(X if first else X.transpose(1, 0, 2))
        x.requires_grad_()
        packed = rnn.pack_padded_sequence(x, m.tensor(lengths), first, enforce_sorted=sort)
        out, state = net(packed)
        padded, sizes = rnn.pad_packed_sequence(out, first, -1.0)
        (padded * padded).sum().backward()
        states = state if isinstance(state, tuple) else (state,)
        made = [padded.detach(), sizes, out.data.detach(), out.batch_sizes, x.grad]
        return [*made, *(s.detach() for s in states)]

    for a, b in zip(run(torch, layer), run(theirs, other)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
        assert str(b.dtype).endswith(str(a.dtype))


def test_sequences_and_refusals() -> None:
    rnn, lines = torch.nn.utils.rnn, [[1.0], [2.0, 3.0, 4.0], [5.0, 6.0]]
    packed = rnn.pack_sequence([torch.tensor(x) for x in lines], enforce_sorted=False)
    want = theirs.nn.utils.rnn.pack_sequence([theirs.tensor(x) for x in lines], False)
    assert [p.tolist() for p in packed] == [p.tolist() for p in want]
    assert [x.tolist() for x in rnn.unpack_sequence(packed)] == lines
    assert packed.to(torch.float64).data.dtype == torch.float64
    with pytest.raises(UsageError, match="enforce_sorted=False"):
        rnn.pack_sequence([torch.tensor(x) for x in lines])
    for lengths in ([0, 1, 1], [6, 1, 1], [1, 1]):
        with pytest.raises(ShapeError, match="lengths"):
            rnn.pack_padded_sequence(torch.tensor(X), lengths, True)
    with pytest.raises(ShapeError, match="total_length"):
        rnn.pad_packed_sequence(packed, total_length=2)
