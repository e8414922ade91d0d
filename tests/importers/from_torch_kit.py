"""Modules of PyTorch beside what from_torch makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import export

from weft.core.tolerance import compare
from weft.importers import from_torch
from weft.importers.imported import Imported


def agree(got: Any, want: torch.Tensor | np.ndarray, kind: str = "model") -> None:
    array = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    found = compare(got.numpy().astype(array.dtype), array, kind)
    assert found.ok, found.message


def imported(module: nn.Module, *args: Any, **options: Any) -> Imported:
    return from_torch(export(module, args, **options))


DEVICES = ("eager", "cpu", "vulkan")


# -- gradients off, dtypes, what is not supported


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = x * self.a
        with torch.autocast("cpu", enabled=False):
            return fixed * self.b
