"""Activations, losses and recurrent layers that torch.export wrote, against PyTorch: values and
gradients at kinks, signed zeros, very large numbers, infinities and NaN. One export has many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_activations import CASES as CURVES, POINTS, by_weft as by_curve, check
from test_loss_functions import CASES as ALL, STEPS, Case, by_torch, grid

from weft.importers import from_torch
from weft.tensor.core import Tensor

# torch.export takes no gaussian_nll_loss.
LOSSES = {name: case for name, case in ALL.items() if case.aten}
DTYPES = ["float32", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float16", "bfloat16"))]


class Together(torch.nn.Module):
    """Functions side by side, each with operands of its own."""

    def __init__(self, functions: list[Callable[..., Any]], counts: list[int]):
        super().__init__()
        self.functions, self.counts = functions, counts

    def forward(self, *xs: torch.Tensor) -> tuple[Any, ...]:
        made, at = [], 0
        for function, count in zip(self.functions, self.counts):
            made.append(function(*xs[at : at + count]))
            at += count
        return tuple(made)


def exported(functions: list[Callable[..., Any]], operands: list[list[torch.Tensor]]) -> Any:
    module = Together(functions, [len(xs) for xs in operands])
    program = torch.export.export(module, tuple(x for xs in operands for x in xs))
    return from_torch(program).train()


class Curves(torch.nn.Module):
    """Every activation of one x."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(case.torch(x) for case in CURVES.values())


@pytest.fixture(scope="module")
def curves() -> Any:
    program = torch.export.export(Curves(), (torch.from_numpy(POINTS.copy()),))
    return from_torch(program).train()


@pytest.mark.parametrize("name", CURVES)
def test_activations(name: str, curves: Any) -> None:
    at = list(CURVES).index(name)
    check(name, CURVES[name], by_curve(lambda x: curves(x)[at]))


@pytest.fixture(scope="module", params=DTYPES)
def losses(request: Any) -> tuple[str, Any]:
    dtype = request.param
    narrow = getattr(torch, dtype)
    operands = [[torch.from_numpy(x).to(narrow) for x in grid(c.operands)] for c in LOSSES.values()]
    return dtype, exported([case.torch for case in LOSSES.values()], operands)


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, losses: tuple[str, Any]) -> None:
    dtype, run = losses
    case = LOSSES[name]
    given = {n: [Tensor(x).cast(dtype) for x in grid(c.operands)] for n, c in LOSSES.items()}
    for i, x in enumerate(given[name]):
        x.requires_grad_(i == 0 or case.aten is None)
    out = run(*(x for xs in given.values() for x in xs))[list(LOSSES).index(name)]
    out.backward(Tensor(np.ones(out.shape, np.float32)).cast(out.dtype))
    slopes = [x.grad for x in given[name] if x.grad is not None]
    compare(case, dtype, [t.cast("float32").numpy() for t in (out, *slopes)])


def compare(case: Case, dtype: str, found: list[np.ndarray]) -> None:
    wanted, step = by_torch(case, dtype), STEPS[dtype]
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        near = np.isclose(got, want, rtol=max(case.rtol, 2 * step), atol=3e-7 + 8 * step,
                          equal_nan=True)  # fmt: skip
        if case.limits or step:
            near |= ~np.isfinite(want)
        assert near.all(), (got[~near][:5], want[~near][:5])


LAYERS = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}
EXTREMES = [-1e30, -88.8, -1.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, 20.5, 1e30, np.inf, np.nan]


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("kind", LAYERS)
def test_recurrent_layers(kind: str) -> None:
    """Each number alone fills a sequence; the batch keeps them apart."""
    torch.manual_seed(0)
    layer = LAYERS[kind](1, 2, batch_first=True).eval()
    x = np.repeat(np.array(EXTREMES, np.float32), 3).reshape(-1, 3, 1)
    a = torch.from_numpy(x.copy()).requires_grad_()
    want = layer(a)[0]
    want.sum().backward()
    run = from_torch(torch.export.export(layer, (torch.from_numpy(x),))).train()
    b = Tensor(x.copy()).requires_grad_()
    got = run(b)[0]
    got.sum().backward()
    assert a.grad is not None and b.grad is not None
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-4, atol=2e-6)
