"""Lazy modules of weft.torch do what PyTorch's do: parameters come with the first call."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import weft.torch
from weft.core.errors import ShapeError, UsageError

# name -> arguments, options, the input's shape
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "LazyLinear": ((3,), {}, (2, 5)),
    "LazyConv1d": ((4, 3), {"groups": 2}, (2, 6, 7)),
    "LazyConv2d": ((4, 3), {"padding": 1}, (2, 6, 5, 5)),
    "LazyConv3d": ((2, 2), {"bias": False}, (1, 3, 4, 4, 4)),
    "LazyConvTranspose1d": ((4, 3), {}, (2, 6, 7)),
    "LazyConvTranspose2d": ((4, 3), {"stride": 2}, (2, 3, 4, 4)),
    "LazyConvTranspose3d": ((2, 2), {}, (1, 3, 3, 3, 3)),
    "LazyBatchNorm1d": ((), {}, (4, 3)),
    "LazyBatchNorm2d": ((), {"affine": False}, (2, 3, 4, 4)),
    "LazyBatchNorm3d": ((), {"momentum": None}, (2, 3, 2, 2, 2)),
    "LazyInstanceNorm1d": ((), {"track_running_stats": False}, (2, 3, 5)),
    "LazyInstanceNorm2d": ((1e-3,), {"track_running_stats": False}, (2, 3, 4, 4)),
    "LazyInstanceNorm3d": ((1e-4, 0.1, True, False), {}, (2, 3, 2, 2, 2)),
}


def numpy(state: Any) -> dict[str, np.ndarray]:
    return {k: v.detach().numpy() for k, v in state.items()}


@pytest.mark.parametrize("name", CASES)
def test_each(name: str) -> None:
    args, options, shape = CASES[name]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mine, theirs = (getattr(lib.nn, name)(*args, **options) for lib in (weft.torch, torch))
    assert repr(mine) == repr(theirs)
    assert [repr(p) for p in mine.parameters()] == [repr(p) for p in theirs.parameters()]
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert mine.has_uninitialized_params() == theirs.has_uninitialized_params()
    early, held = copy.deepcopy(mine), list(mine.parameters())
    mine(weft.torch.tensor(x))
    theirs(torch.tensor(x))
    assert type(mine) is getattr(weft.torch.nn, name.removeprefix("Lazy"))
    assert repr(mine) == repr(theirs)
    assert all(a is b for a, b in zip(held, mine.parameters(), strict=True))
    state = numpy(theirs.state_dict())
    assert {k: v.shape for k, v in mine.state_dict().items()} == {
        k: v.shape for k, v in state.items()
    }
    mine.load_state_dict(state)
    early.load_state_dict(state)  # into one that was never called
    assert not early.has_uninitialized_params()
    theirs.load_state_dict({k: torch.tensor(v) for k, v in numpy(mine.state_dict()).items()})
    leaf, expected = weft.torch.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    for module in (mine, early):
        leaf.grad = None
        (module(leaf) ** 2).sum().backward()
        expected.grad = None
        theirs.zero_grad()
        theirs.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
        (theirs(expected) ** 2).sum().backward()
        np.testing.assert_allclose(leaf.grad.numpy(), expected.grad.numpy(), rtol=1e-4, atol=1e-4)
        for p, q in zip(module.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_values_are_those_of_the_plain_module() -> None:
    nn = weft.torch.nn
    weft.torch.manual_seed(3)
    plain = nn.Linear(5, 2)
    weft.torch.manual_seed(3)
    lazy = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()).double()
    lazy(weft.torch.ones(4, 5, dtype=weft.torch.float64))
    assert lazy[0].weight.dtype == weft.torch.float64
    np.testing.assert_array_equal(lazy[0].weight.detach().numpy(), plain.weight.detach().numpy())


def test_an_optimiser_made_before_the_first_call() -> None:
    m = weft.torch.nn.LazyLinear(2)
    opt = weft.torch.optim.SGD(m.parameters(), 0.5)
    m(weft.torch.ones(1, 3)).sum().backward()
    before = m.weight.detach().clone()
    opt.step()
    assert (before - m.weight).tolist() == [[0.5] * 3] * 2
    with pytest.raises(UsageError, match="call the module once"):
        weft.torch.optim.Adam(weft.torch.nn.LazyLinear(2).parameters())


def test_refusals() -> None:
    m = weft.torch.nn.LazyLinear(2)
    with pytest.raises(UsageError, match="no shape yet"):
        m.weight.numel()
    with pytest.raises(UsageError, match="no shape yet"):
        m.weight + 1
    with pytest.raises(UsageError, match="no shape yet"):
        weft.torch.nn.Linear(3, 2).load_state_dict(m.state_dict())
    with pytest.raises(UsageError, match="before it is compiled"):
        weft.compile(m)(weft.ones((1, 3)))
    with pytest.raises(UsageError, match="track_running_stats"):
        weft.torch.nn.LazyInstanceNorm1d()
    with pytest.raises(ShapeError, match="has no axis"):
        weft.torch.nn.LazyConv2d(2, 3)(weft.torch.ones(4, 4))
    assert m(weft.torch.ones(1, 3)).shape == (1, 2)
