"""Draws the arguments of operators, and keeps a case for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Draw:
    """Random operands of a drawn shape."""

    def __init__(self, shape: tuple[int, ...], seed: int):
        self.shape, self.rng = shape, np.random.default_rng(seed)
        self.dim = int(self.rng.integers(-len(shape), len(shape)))
        self.n = shape[self.dim]

    def f(self, *shape: int, low: float = -3, high: float = 3) -> torch.Tensor:
        return torch.from_numpy(self.rng.uniform(low, high, shape or self.shape).astype("f"))

    def far(self) -> torch.Tensor:
        """Floats no two of which are equal, or near a half."""
        n = int(np.prod(self.shape))
        return torch.from_numpy((self.rng.permutation(n) * 0.37 - n * 0.2).astype("f")).reshape(
            self.shape
        )

    def i(self, *shape: int, low: int = -9, high: int = 9) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(low, high, shape or self.shape))

    def b(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(0, 2, shape or self.shape).astype(bool))

    def part(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def scalar(self) -> torch.Tensor:
        return torch.tensor(float(self.rng.uniform(-2, 2)))

    def any(self) -> torch.Tensor:
        return self.part(self.f(), self.i(), self.b())

    def image(self, axes: int = 2, channels: int = 4) -> torch.Tensor:
        return self.f(2, channels, *[int(self.rng.integers(5, 9)) for _ in range(axes)])


Case = Callable[[Draw], tuple[Any, ...]]
CASES: dict[str, Case] = {}


def case(names: str, *makers: Case) -> None:
    """Arguments for overloads: a tuple, whose last element may be a dict of keywords."""
    for name in names.split():
        full = (
            name
            if name.startswith(("_op", "math"))
            else "aten." + (name if "." in name else f"{name}.default")
        )
        CASES[full] = lambda d, m=makers: m[int(d.rng.integers(len(m)))](d)
