"""Modules of weft.torch on one example without a batch, and their arguments by place, beside
PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import CallError, ShapeError, UsageError

IMAGES: list[tuple[str, tuple[Any, ...], tuple[int, ...]]] = [
    ("Conv1d", (3, 4, 3), (3, 9)), ("Conv2d", (3, 4, 3, 1, 1, 1, 1, True, "circular"), (3, 9, 8)),
    ("Conv3d", (3, 4, 2), (3, 4, 5, 6)), ("ConvTranspose2d", (3, 4, 3, 2), (3, 5, 4)),
    ("MaxPool1d", (2,), (3, 8)), ("MaxPool2d", (2,), (3, 8, 6)), ("AvgPool3d", (2,), (3, 4, 4, 6)),
    ("LPPool2d", (2, 2), (3, 8, 8)), ("AdaptiveAvgPool2d", (2,), (3, 8, 8)),
    ("AdaptiveMaxPool1d", (2,), (3, 8)), ("InstanceNorm1d", (3,), (3, 8)),
    ("InstanceNorm2d", (3,), (3, 8, 8)), ("Fold", ((4, 4), 2), (12, 9)),
    ("Unfold", (2,), (3, 4, 5)), ("TransformerEncoderLayer", (4, 2, 8, 0.0), (5, 4)),
]  # fmt: skip


def pair(name: str, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """A module of weft.torch and PyTorch's, with the same parameters."""
    mine, other = getattr(torch.nn, name)(*args), getattr(theirs.nn, name)(*args)
    mine.load_state_dict({k: torch.tensor(v.numpy()) for k, v in other.state_dict().items()})
    return mine, other


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("name", "args", "shape"), IMAGES, ids=lambda x: str(x))
def test_one_example(name: str, args: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    mine, other = pair(name, args)
    x = numbers(*shape)
    got, want = mine(torch.tensor(x)), other(theirs.tensor(x))
    assert tuple(got.shape) == tuple(want.shape)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), atol=2e-5)
    with pytest.raises(ShapeError):
        mine(torch.tensor(x[0, 0]))


def test_places_of_one_example_find_their_way_back() -> None:
    x = numbers(3, 8, 6)
    found = []
    for m in (torch, theirs):
        made, places = m.nn.MaxPool2d(2, return_indices=True)(m.tensor(x))
        found.append((places.numpy(), m.nn.MaxUnpool2d(2)(made, places).numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("first", [True, False])
def test_sequences_without_a_batch(first: bool) -> None:
    mine, other = pair("Transformer", (4, 2, 1, 1, 8, 0.0, "relu", None, None, 1e-5, first))
    given = (numbers(5, 4), numbers(3, 4))
    padding = np.array([0, 0, 0, 1, 1], bool)
    got = mine(*map(torch.tensor, given), src_key_padding_mask=torch.tensor(padding))
    want = other(*map(theirs.tensor, given), src_key_padding_mask=theirs.tensor(padding))
    assert tuple(got.shape) == (3, 4)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), atol=2e-5)


@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 4)])
def test_attention_weights_of_each_head(shape: tuple[int, ...]) -> None:
    mine, other = pair("MultiheadAttention", (4, 2))
    x = numbers(*shape)
    for average in (True, False):
        _, got = mine(*[torch.tensor(x)] * 3, average_attn_weights=average)
        _, want = other(*[theirs.tensor(x)] * 3, average_attn_weights=average)
        assert tuple(got.shape) == tuple(want.shape)
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), atol=1e-6)


SHAPES = [(6, 7), (6, 7, 4), (2, 3, 4, 5), (2, 3, 2, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.filterwarnings("ignore")
def test_dropouts_of_channels_share_the_axes_that_pytorchs_do(
    rank: int, shape: tuple[int, ...]
) -> None:
    """Over 40 draws, the axes along which all that is dropped is dropped together."""

    def shared(m: Any, drop: Any) -> set[int] | None:
        axes = set(range(len(shape)))
        for _ in range(40):
            try:
                y = drop(m.ones(*shape)).numpy()
            except RuntimeError:
                return None
            axes &= {i for i in axes if (y == y.take([0], i)).all()}
        return axes

    name = f"{rank}d"
    want = shared(theirs, getattr(theirs.nn, f"Dropout{name}")(0.5))
    assert shared(torch, getattr(torch.nn, f"Dropout{name}")(0.5)) == want
    function = getattr(torch.nn.functional, f"dropout{name}")
    assert shared(torch, lambda x: function(x, 0.5, True)) == want


PLACED = [
    ("Linear", (3, 4, True)), ("Bilinear", (2, 3, 4, True)), ("PReLU", (2, 0.1)),
    ("BatchNorm2d", (4, 1e-5, 0.1, True, True)), ("InstanceNorm1d", (4, 1e-5, 0.1, True, False)),
    ("GroupNorm", (2, 4, 1e-5, True)), ("LayerNorm", (4, 1e-5, True, True)),
    ("RMSNorm", (4, 1e-5, True)), ("Conv2d", (3, 4, 3, 1, 1, 1, 1, True, "zeros")),
    ("ConvTranspose1d", (3, 4, 3, 1, 0, 0, 1, True, 1, "zeros")),
    ("Embedding", (3, 4, None, None, 2.0, False, False, None, False)),
    ("EmbeddingBag", (3, 4, None, 2.0, False, "sum", False, None, False, None)),
    ("LSTM", (3, 4, 1, True, True, 0.0, False, 0)), ("GRUCell", (3, 4, True)),
    ("RNNCell", (3, 4, True, "relu")),
    ("MultiheadAttention", (4, 2, 0.0, True, False, False, None, None, True)),
    ("TransformerEncoderLayer", (4, 2, 8, 0.0, "relu", 1e-5, True, False, True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), PLACED, ids=lambda x: str(x))
def test_a_device_and_a_dtype_by_place(name: str, args: tuple[Any, ...]) -> None:
    mine = getattr(torch.nn, name)(*args, "cpu", torch.float64)
    other = getattr(theirs.nn, name)(*args, "cpu", theirs.float64)
    assert {k: tuple(v.shape) for k, v in mine.state_dict().items()} == {
        k: tuple(v.shape) for k, v in other.state_dict().items()
    }
    assert {v.dtype for v in mine.parameters()} == {torch.float64}
    assert repr(mine) == repr(other).replace("NonDynamicallyQuantizable", "")
    with pytest.raises(CallError):
        getattr(torch.nn, name)(*args, "cpu", torch.float64, None)
    with pytest.raises(UsageError, match="device is given by place and by name"):
        getattr(torch.nn, name)(*args, "cpu", device="cpu")


def test_arguments_that_a_module_lacks() -> None:
    for wrong in (
        lambda: torch.nn.ReLU(device="cpu"),
        lambda: torch.nn.L1Loss(None, None, "mean", 5),
        lambda: torch.nn.Embedding(2, 2, _weight=torch.ones(2, 2)),
    ):
        with pytest.raises(UsageError):
            wrong()


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_rows_from_elsewhere(kind: str) -> None:
    rows = numbers(4, 3)
    made = []
    for m in (torch, theirs):
        table = getattr(m.nn, kind).from_pretrained(m.tensor(rows), padding_idx=1)
        assert not table.weight.requires_grad and isinstance(table.weight, m.nn.Parameter)
        free = getattr(m.nn, kind).from_pretrained(m.tensor(rows), False)
        assert free.weight.requires_grad
        made.append((repr(table), table(m.tensor([[0, 1], [3, 2]])).numpy()))
    assert made[0][0] == made[1][0]
    np.testing.assert_allclose(made[0][1], made[1][1], atol=1e-6)
    with pytest.raises(ShapeError):
        getattr(torch.nn, kind).from_pretrained(torch.ones(3))
