"""Values that PyTorch refuses are refused by weft.torch, where they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft.torch
from weft.core.errors import WeftError

CASES: dict[str, Callable[[Any], Any]] = {
    "F.embedding": lambda t: t.nn.functional.embedding(t.tensor([3]), t.ones(3, 4)),
    "F.embedding, below 0": lambda t: t.nn.functional.embedding(t.tensor([-1]), t.ones(3, 4)),
    "Embedding": lambda t: t.nn.Embedding(3, 4)(t.tensor([7])),
    "F.embedding_bag": lambda t: t.nn.functional.embedding_bag(t.tensor([[7]]), t.ones(3, 4)),
    "EmbeddingBag": lambda t: t.nn.EmbeddingBag(3, 4)(t.tensor([[7]])),
    "F.cross_entropy": lambda t: t.nn.functional.cross_entropy(t.ones(2, 3), t.tensor([0, 3])),
    "F.cross_entropy, below 0": lambda t: t.nn.functional.cross_entropy(
        t.ones(2, 3), t.tensor([0, -1])
    ),
    "CrossEntropyLoss": lambda t: t.nn.CrossEntropyLoss()(t.ones(2, 3), t.tensor([0, 3])),
    "F.nll_loss of images": lambda t: t.nn.functional.nll_loss(
        t.ones(1, 3, 2, 2), t.full((1, 2, 2), 9)
    ),
    "NLLLoss": lambda t: t.nn.NLLLoss()(t.ones(2, 3), t.tensor([0, 3])),
    "F.multi_margin_loss": lambda t: t.nn.functional.multi_margin_loss(
        t.ones(2, 3), t.tensor([0, 3])
    ),
    "MultiLabelMarginLoss": lambda t: t.nn.MultiLabelMarginLoss()(
        t.ones(1, 3), t.tensor([[9, 0, 0]])
    ),
    "F.binary_cross_entropy": lambda t: t.nn.functional.binary_cross_entropy(
        t.tensor([2.0]), t.tensor([1.0])
    ),
    "BCELoss": lambda t: t.nn.BCELoss()(t.tensor([0.5]), t.tensor([-1.0])),
    "one_hot": lambda t: t.nn.functional.one_hot(t.tensor([-1]), 3),
    "gather, below 0": lambda t: t.gather(t.ones(3, 4), 1, t.tensor([[-1]])),
    "index_select, below 0": lambda t: t.ones(3, 4).index_select(0, t.tensor([-1])),
    "scatter, below 0": lambda t: t.ones(3, 4).scatter(1, t.tensor([[-1]]), 1.0),
    "index_put": lambda t: t.ones(3, 4).index_put((t.tensor([3]),), t.ones(1, 4)),
    "index_put_": lambda t: t.ones(3, 4).index_put_((None, t.tensor([4])), t.ones(3, 1)),
    "setitem": lambda t: t.ones(3, 4).__setitem__(t.tensor([3]), 1.0),
    "index_reduce": lambda t: t.ones(3, 4).index_reduce(0, t.tensor([3]), t.ones(1, 4), "prod"),
    "masked_scatter": lambda t: t.ones(3).masked_scatter(t.ones(3) > 0, t.ones(2)),
    "select_scatter": lambda t: t.select_scatter(t.ones(3, 4), t.ones(4), 0, 3),
    "bincount": lambda t: t.bincount(t.tensor([-1])),
    "quantile": lambda t: t.quantile(t.ones(3), 1.5),
    "bernoulli": lambda t: t.bernoulli(t.tensor([2.0])),
    "normal": lambda t: t.normal(0.0, t.tensor([-1.0])),
    "arange": lambda t: t.arange(0, 5, -1),
    "unfold": lambda t: t.ones(3, 4).unfold(1, 9, 1),
    "rot90": lambda t: t.rot90(t.ones(3, 4), 1, [0, 0]),
    "where": lambda t: t.where(t.ones(2), t.ones(2), t.ones(2)),
    "cat": lambda t: t.cat(t.ones(2, 2)),
}
ALLOWED: dict[str, Callable[[Any], Any]] = {
    "getitem": lambda t: t.arange(3)[t.tensor([-1])],
    "index_put": lambda t: t.arange(3).index_put((t.tensor([-3]),), t.tensor([9])),
    "index_fill": lambda t: t.arange(3).index_fill(0, t.tensor([-1]), 9),
    "take": lambda t: t.take(t.arange(3), t.tensor([-1])),
    "put": lambda t: t.arange(3).put_(t.tensor([-1]), t.tensor([9])),
    "ignore_index": lambda t: t.nn.CrossEntropyLoss(ignore_index=7)(
        t.ones(2, 3), t.tensor([7, 1])
    ),
    "nothing to take": lambda t: t.nn.functional.embedding(t.tensor([], dtype=t.int64),
                                                           t.ones(3, 4)),
    "median": lambda t: t.ones(0).median().isnan(),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_refused(name: str) -> None:
    with pytest.raises((IndexError, RuntimeError, ValueError, TypeError)):
        CASES[name](torch)
    with pytest.raises(WeftError):
        CASES[name](weft.torch)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    assert ALLOWED[name](weft.torch).tolist() == ALLOWED[name](torch).tolist()


def test_a_wrong_target_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="target 5 is none of 3 classes"):
        weft.torch.nn.CrossEntropyLoss()(weft.torch.ones(1, 3), weft.torch.tensor([5]))
