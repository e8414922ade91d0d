"""Values that PyTorch refuses are refused by weft.torch, where they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft.torch
import weft.torch.utils.data
from weft.core.errors import WeftError

# Lines that PyTorch refuses, in its names.
LINES = """
F.max_unpool1d(t.ones(1, 1, 2), t.tensor([[[0, 99]]]), 2)
F.max_unpool2d(t.ones(1, 1, 2, 2), t.full((1, 1, 2, 2), -1), 2)
F.max_unpool2d(t.ones(1, 1, 2, 2), t.zeros(1, 1, 2, 2), 2)
t.nn.MaxUnpool1d(2)(t.ones(1, 1, 2), t.tensor([[[0, 99]]]))
t.bucketize(t.ones(2), t.ones(2, 2))
t.searchsorted(t.ones(2), t.ones(2), side="x")
t.searchsorted(t.ones(2), t.ones(2), right=True, side="left")
t.searchsorted(t.ones(2), t.ones(2), sorter=t.tensor([0]))
t.tril_indices(-1, 2)
t.triu_indices(2, -3)
F.instance_norm(t.ones(1, 3, 1))
t.nn.InstanceNorm2d(3)(t.ones(1, 3, 1, 1))
t.tensor([3]) // 0
t.tensor([3]) // t.tensor([0])
t.tensor([3]) % 0
3 % t.tensor([0])
t.tensor([3]).fmod(0)
t.div(t.tensor([3]), t.tensor([0]), rounding_mode="trunc")
t.tensor([3]).floor_divide_(0)
t.tensor([2]).pow(-1)
1 - t.ones(2, dtype=t.bool)
t.ones(2, dtype=t.int64).add(1, alpha=1.5)
t.addcdiv(t.tensor([1]), t.tensor([1]), t.tensor([2]))
t.lerp(t.ones(2), t.ones(2, dtype=t.float64), 0.5)
t.gcd(t.ones(2), t.ones(2))
t.linalg.norm(t.ones(2, 2, 2), ord="fro")
t.diag(t.ones(2, 2, 2))
t.outer(t.ones(2, 2), t.ones(2))
t.tensordot(t.ones(2, 3), t.ones(2, 3), dims=-1)
t.cov(t.ones(2, 2, 2))
t.ones(3).renorm(2, 0, 1.0)
t.vander(t.ones(2, 2))
t.hsplit(t.ones(3), 2)
t.vsplit(t.ones(3), 3)
t.cartesian_prod(t.ones(2, 2))
t.ones(2, 3).flatten(1, 0)
t.ones(3).as_strided((2,), (-1,))
t.diag_embed(t.ones(2), 0, 5, 6)
t.slice_scatter(t.ones(3), t.ones(2), 0, 0, 3)
t.scatter(t.ones(2), 0, t.tensor([0]), t.ones(1, dtype=t.float64))
t.scatter_reduce(t.ones(2), 0, t.tensor([0]), t.ones(1), reduce="x")
t.index_add(t.ones(2), 0, t.tensor([0]), t.ones(1, dtype=t.float64))
t.index_select(t.ones(2, 2), 0, t.zeros(1, 1, dtype=t.int64))
t.index_fill(t.ones(2), 0, t.tensor([0]), t.ones(2))
t.bincount(t.tensor([1]), minlength=-1)
t.histc(t.ones(2), min=2, max=1)
t.histogram(t.ones(2), bins=-1)
t.ones(3).quantile(0.5, interpolation="x")
t.ones(3, dtype=t.int64).quantile(0.5)
t.cumulative_trapezoid(t.ones(2), t.ones(3))
t.mvlgamma(t.ones(2), 0)
t.multinomial(t.ones(2), 0)
t.multinomial(t.ones(2, 2, 2), 1)
t.ones(2).uniform_(2, 1)
t.ones(2).normal_(0, -1)
t.ones(2).exponential_(-1)
t.ones(2).geometric_(0)
t.allclose(t.ones(2), t.ones(2), rtol=-1.0)
F.pad(t.ones(1, 2, 2), (1, 1), mode="reflect", value=3)
F.embedding(t.tensor([0]), t.ones(3))
t.nn.Flatten()(t.tensor(1.0))
t.full((2,), None)
t.full((2,), 300, dtype=t.uint8)
t.full((2,), -4.5, dtype=t.uint8)
t.full((2,), 1e5, dtype=t.float16)
t.zeros(2, dtype=t.uint8).new_full((2,), 256)
t.zeros(2, dtype=t.uint8).fill_(256)
t.ones(2).fill_(t.ones(2))
t.tensor([1]).masked_fill(t.tensor([True]), float("inf"))
t.where(t.tensor([True]), t.tensor([1], dtype=t.uint8), 300)
t.where(t.tensor([True]), t.ones(1))
t.from_numpy([1])
t.add(t.ones(2), None)
t.exp(1)
t.sqrt(-1.0)
t.abs(1)
t.ones(2).softmax()
t.ones(2).flip()
t.prod(t.ones(2, 2), (0, 1))
t.max(t.ones(2), t.ones(2), t.ones(2))
t.ones(2).masked_select(t.tensor([1, 0], dtype=t.uint8))
t.ones(2).index_select(0, t.tensor([0], dtype=t.uint8))
t.arange(3, dtype=t.bool)
t.triu_indices(2, 2, dtype=t.float32)
t.randint(0, 300, (2,), dtype=t.uint8)
t.matrix_power(t.ones(2, 2, dtype=t.int64), -1)
t.round(t.tensor([1]), decimals=1)
t.nn.Conv2d(3, 4, 3, padding="x")
t.nn.Conv2d(3, 4, 3, padding="same", stride=2)
F.dropout(t.tensor([1]))
F.dropout2d(t.ones(1, 2, 3, dtype=t.int64))
t.nn.Dropout()(t.tensor([1]))
F.pad(t.ones(1, 2, dtype=t.bool), (1, 1), mode="reflect")
F.embedding(t.tensor([0]), t.ones(2, 2, dtype=t.int64), max_norm=1.0)
F.l1_loss(t.tensor([1]), t.tensor([1]))
F.binary_cross_entropy_with_logits(t.ones(2), t.tensor([0, 1]))
F.one_hot(t.tensor([1], dtype=t.uint8))
F.interpolate(t.ones(1, 1, 2, 2, dtype=t.int64), size=(2, 2))
f"{t.ones(2):.3f}"
F.one_hot(t.tensor([1]), -5)
F.pdist(t.ones(3))
F.affine_grid(t.ones(1, 2, 3), (2, 1, 4, 4))
F.margin_ranking_loss(t.ones(2), t.ones(2, 1, 1), t.ones(2))
F.gaussian_nll_loss(t.ones(2), t.ones(2), -t.ones(2))
F.ctc_loss(t.zeros(5, 1, 3), t.tensor([[1]]), t.tensor([9]), t.tensor([1]))
t.nn.RNN(3, 4, nonlinearity="x")
t.nn.Module().register_parameter("a", 3)
t.nn.Module().register_buffer("a.b", t.ones(1))
t.nn.Module().get_submodule("a")
t.nn.Module().get_parameter("a")
t.distributions.Normal(0.0, -1.0)
t.distributions.Uniform(2.0, 1.0)
t.distributions.Bernoulli(2.0)
t.distributions.Gamma(-1.0, 1.0)
t.distributions.Beta(0.0, 1.0)
t.distributions.Dirichlet(t.tensor([-1.0, 1.0]))
t.distributions.Poisson(-1.0)
t.distributions.Categorical(t.tensor([-1.0, 1.0]))
t.optim.NAdam([leaf], momentum_decay=-1.0)
t.optim.ASGD([leaf], weight_decay=-1.0)
rates.LambdaLR(t.optim.SGD([leaf], lr=1.0), [lambda e: 1, lambda e: 1])
rates.ConstantLR(t.optim.SGD([leaf], lr=1.0), factor=2.0)
rates.LinearLR(t.optim.SGD([leaf], lr=1.0), start_factor=0.0)
rates.OneCycleLR(t.optim.SGD([leaf], lr=1.0), 0.1, total_steps=5, pct_start=2.0)
t.utils.data.DataLoader([1, 2], timeout=-1)
list(t.utils.data.DataLoader(3))
list(t.utils.data.DataLoader([1, 2], collate_fn=3))
""".strip().splitlines()
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
    "nanmedian": lambda t: t.ones(0).nanmedian().isnan(),
    "floats by 0": lambda t: t.tensor([3.0]) // 0,
    "whole numbers": lambda t: t.tensor([-7]) // t.tensor([2]) + t.tensor([-7]).fmod(2),
    "integers to negative powers": lambda t: t.tensor([2]) ** t.tensor([-1]),
    "unpooled": lambda t: t.nn.functional.max_unpool1d(t.ones(1, 1, 2), t.tensor([[[0, 3]]]), 2),
    "unchecked": lambda t: t.distributions.Normal(t.zeros(1), -t.ones(1), validate_args=False).mean,
    "median": lambda t: t.ones(0).median().isnan(),
    "wrapped": lambda t: t.full((2,), -1, dtype=t.uint8),
    "arrays": lambda t: t.ones(2) + np.ones(2),
    "members": lambda t: t.tensor([1.0 in t.ones(2), 3.0 in t.ones(2)]),
    "reversed": lambda t: reversed(t.arange(6).reshape(2, 3)),
    "asleep": lambda t: t.nn.functional.alpha_dropout(t.ones(3)),
    "no module": lambda t: t.tensor(len(t.nn.ModuleList([None, t.nn.ReLU()]))),
    "a group's own entries": lambda t: t.tensor(
        t.optim.SGD([{"params": [t.nn.Parameter(t.ones(1))], "lr_scale": 0.5}], lr=1.0)
        .param_groups[0]["lr_scale"]
    ),
    "half norms": lambda t: t.nn.functional.group_norm(
        t.ones(1, 2, 3, dtype=t.float16), 1, t.ones(2), t.ones(2)
    ),
    "0-d": lambda t: t.inner(t.tensor(2.0), t.ones(2, dtype=t.int64)),
    "powers of bools": lambda t: t.vander(t.tensor([True, False])),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_refused(name: str) -> None:
    with pytest.raises((IndexError, RuntimeError, ValueError, TypeError)):
        CASES[name](torch)
    with pytest.raises(WeftError):
        CASES[name](weft.torch)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_refused_lines() -> None:
    taken = []
    for line in LINES:
        for t, errors in ((torch, Exception), (weft.torch, WeftError)):
            names = {"t": t, "F": t.nn.functional, "rates": t.optim.lr_scheduler,
                     "leaf": t.ones(2, requires_grad=True)}  # fmt: skip
            try:
                eval(line, names)
                taken.append(f"{t.__name__}: {line}")
            except errors:
                pass
    assert not taken, "\n".join(taken)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    theirs, ours = ALLOWED[name](torch), ALLOWED[name](weft.torch)
    assert ours.tolist() == theirs.tolist() and f"torch.{ours.dtype.name}" == str(theirs.dtype)


def test_errors_of_some_calls() -> None:
    with pytest.raises(WeftError, match="int is not a function"):  # PyTorch's call turns checks off
        weft.torch.compile(3)
    with pytest.raises(IndexError, match="target 5 is none of 3 classes"):
        weft.torch.nn.CrossEntropyLoss()(weft.torch.ones(1, 3), weft.torch.tensor([5]))
