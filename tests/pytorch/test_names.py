"""The names of weft.torch are PyTorch's, and so are the parameters of its functions."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

import weft.torch

SPACES = ["", ".linalg", ".special", ".nn", ".nn.functional", ".nn.init", ".nn.utils",
          ".nn.utils.rnn", ".optim",
          ".optim.lr_scheduler", ".signal.windows", ".func", ".masked",
          ".utils.data"]  # fmt: skip
OURS = {"Mismatch"}


def spaces(space: str) -> tuple[Any, Any]:
    return importlib.import_module(f"weft.torch{space}"), importlib.import_module(f"torch{space}")


@pytest.mark.parametrize("space", SPACES)
def test_no_name_is_ours_alone(space: str) -> None:
    mine, theirs = spaces(space)
    if not hasattr(mine, "__dir__"):
        pytest.skip("this module lists nothing")
    names = [n for n in mine.__dir__() if n[0] != "_"]
    assert [n for n in names if not hasattr(theirs, n) and n not in OURS] == []


def parameters(function: Any) -> list[str]:
    left_out = ("self", "device", "dtype", "out", "weight")
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.name not in left_out and p.kind is not p.VAR_KEYWORD]


def test_functions_take_the_same_parameters() -> None:
    mine, theirs = spaces(".nn.functional")
    for name in dir(mine):
        if name.startswith("_") or not inspect.isfunction(getattr(theirs, name)):
            continue
        expected = parameters(getattr(theirs, name))
        if expected != ["args"]:  # a function that PyTorch wraps
            assert parameters(getattr(mine, name)) == expected, name


def test_methods_are_pytorchs() -> None:
    public = {n for n in vars(weft.torch.Tensor) if n[0] != "_"}
    assert [n for n in sorted(public) if not hasattr(torch.Tensor, n)] == []


def test_deprecated_flags_of_losses() -> None:
    x, y = weft.torch.tensor([1.0, 2.0]), weft.torch.tensor([0.0, 0.0])
    assert weft.torch.nn.functional.mse_loss(x, y, size_average=False).item() == 5
    assert weft.torch.nn.MSELoss(False)(x, y).item() == 5
    assert weft.torch.nn.L1Loss(reduce=False)(x, y).tolist() == [1, 2]
