"""Adaptive softmax, pools at random places, SyncBatchNorm and buffers, against PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from nnkit import check, close, random, twin
from torch import nn as T

import weft
from weft import nn
from weft.core.errors import ShapeError, UsageError
from weft.tensor import functional as F

IMAGE, VOLUME = random(2, 3, 9, 7), random(2, 3, 9, 7, 6)
PLACES = np.random.default_rng(1).random((2, 3, 3), np.float32)


@pytest.mark.parametrize(
    "rank,kernel,how",
    [
        (2, (3, 2), {"output_size": (4, 3)}),
        (2, 2, {"output_ratio": (0.5, 0.4)}),
        (2, 3, {"output_size": 1}),
        (3, (3, 2, 1), {"output_size": (4, 3, 5)}),
        (3, 2, {"output_ratio": 0.5}),
    ],
)
def test_fractional_pools_are_pytorchs(rank: int, kernel: Any, how: dict[str, Any]) -> None:
    """The windows lie where PyTorch has them for the same numbers; gradients too."""
    x, samples = (IMAGE, VOLUME)[rank - 2], PLACES[..., :rank]
    name = f"FractionalMaxPool{rank}d"
    if isinstance(how.get("output_ratio"), float):
        theirs_how = {"output_ratio": (how["output_ratio"],) * rank}
    else:
        theirs_how = how
    theirs = getattr(T, name)(kernel, **theirs_how, _random_samples=torch.tensor(samples))
    check(getattr(nn, name)(kernel, **how, _random_samples=weft.tensor(samples)), theirs, x)
    theirs.return_indices = True
    pool = getattr(F, f"fractional_max_pool{rank}d")
    _, at = pool(weft.tensor(x), kernel, **how, return_indices=True, samples=weft.tensor(samples))
    close(at, theirs(torch.tensor(x))[1])


def test_fractional_pools_draw_their_places() -> None:
    x = weft.tensor(IMAGE)
    weft.manual_seed(3)
    drawn = [F.fractional_max_pool2d(x, 2, output_size=4).numpy() for _ in range(2)]
    weft.manual_seed(3)
    assert (F.fractional_max_pool2d(x, 2, output_size=4).numpy() == drawn[0]).all()
    assert (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("wrong", [
    {}, {"output_size": 2, "output_ratio": 0.5}, {"output_ratio": 1.5}, {"output_ratio": (0.5,)},
])  # fmt: skip
def test_sizes_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="output_"):
        nn.FractionalMaxPool2d(2, **wrong)
    with pytest.raises(UsageError, match="output_"):
        F.fractional_max_pool2d(weft.tensor(IMAGE), 2, **wrong)
    with pytest.raises(ShapeError, match="windows"):
        F.fractional_max_pool2d(weft.tensor(IMAGE), 2, output_size=9)


CUTS: list[tuple[list[int], float, bool]] = [([4, 10], 2.0, True), ([1], 4.0, False)]


@pytest.mark.parametrize("cutoffs,div,bias", CUTS)
def test_adaptive_softmax_is_pytorchs(cutoffs: list[int], div: float, bias: bool) -> None:
    theirs = T.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs, div, bias)
    ours = nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs, div, bias)
    twin(ours, theirs)
    x, at = random(7, 8), np.array([0, 4, 19, 3, 9, 10, 1])
    given = torch.tensor(x, requires_grad=True)
    want = theirs(given, torch.tensor(at))
    (want.loss + want.output[2]).backward()

    def run(x: Any, at: Any) -> Any:
        x = x.detach().requires_grad_()
        output, loss = ours(x, at)
        (loss + output[2]).backward()
        return output.detach(), loss.detach(), x.grad, [p.grad for p in ours.parameters()]

    for fn in (run, weft.compile(run, "cpu")):
        ours.zero_grad()
        output, loss, grad, grads = fn(weft.tensor(x), weft.tensor(at))
        close(output, want.output)
        close(loss, want.loss)
        close(grad, given.grad)
        for a, p in zip(grads, theirs.parameters(), strict=True):
            close(a, p.grad)
    close(ours.log_prob(weft.tensor(x)), theirs.log_prob(torch.tensor(x)))
    close(ours.predict(weft.tensor(x)), theirs.predict(torch.tensor(x)))
    one = ours(weft.tensor(x[0]), weft.tensor(at[0]))
    close(one.output, want.output[0])


def test_an_adaptive_softmax_that_does_not_fit() -> None:
    for cutoffs in ([], [0, 3], [3, 3], [5, 4], [20]):
        with pytest.raises(UsageError, match="rising numbers within"):
            nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs)
    net = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4])
    with pytest.raises(ShapeError, match=r"expected \[N, 8\] and \[N\]"):
        net(weft.ones((3, 8)), weft.tensor([1, 2]))
    far = net(weft.ones((2, 8)), weft.tensor([-1, 20])).output.numpy()
    assert np.isnan(far).all()


def test_sync_batch_norm_is_batch_norm() -> None:
    """PyTorch's own runs on GPUs alone."""
    theirs = T.BatchNorm2d(3, momentum=0.2)
    check(nn.SyncBatchNorm(3, momentum=0.2), theirs, IMAGE)
    net = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), nn.BatchNorm2d(3).eval())
    before = net.state_dict()
    made = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert made is net and [type(m).__name__ for m in net.modules()].count("SyncBatchNorm") == 2
    assert list(net.state_dict()) == list(before) and not net[1].training
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2)), nn.SyncBatchNorm)
    with pytest.raises(UsageError, match="process_group"):
        nn.SyncBatchNorm(3, process_group="all")
    with pytest.raises(ShapeError, match="SyncBatchNorm: x"):
        nn.SyncBatchNorm(3)(weft.ones((3,)))


def test_buffers() -> None:
    """A Buffer is registered where it is set, and its name stays a buffer's."""
    for m, zeros in ((nn, weft.zeros), (T, torch.zeros)):
        module: Any = m.Module() if m is nn else T.Module()
        module.kept = m.Buffer(zeros((2,)))
        module.passing = m.Buffer(zeros((3,)), persistent=False)
        assert list(module.state_dict()) == ["kept"] and not list(module.parameters())
        assert [n for n, _ in module.named_buffers()] == ["kept", "passing"]
        module.kept = zeros((4,))
        assert module.state_dict()["kept"].shape == (4,)
        assert list(copy.deepcopy(module).state_dict()) == ["kept"]
    assert type(nn.Buffer([1.0]) * 2) is weft.Tensor and not nn.Buffer([1.0]).requires_grad
