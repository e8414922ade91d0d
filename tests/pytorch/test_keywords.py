"""Arguments by PyTorch's keywords, also those that its functions take in any number by place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import CallError, UsageError

CALLS: dict[str, Callable[..., Any]] = {
    **{n: lambda m, n=n: getattr(m, n)(size=(2, 3))
       for n in ("empty", "zeros", "ones", "rand", "randn")},
    "full": lambda m: m.full(size=(2, 3), fill_value=1.0),
    "randint": lambda m: m.randint(low=0, high=4, size=(2, 3)),
    "normal": lambda m: m.normal(mean=0.0, std=1.0, size=(2, 3)),
    "arange": lambda m: m.arange(end=4),
    "arange, start": lambda m: m.arange(start=1, end=4),
    "view": lambda m: m.ones(2, 3).view(size=(3, 2)),
    "reshape": lambda m: m.ones(2, 3).reshape(shape=(3, 2)),
    "expand": lambda m: m.ones(2, 3).expand(size=(2, 2, 3)),
    "repeat": lambda m: m.ones(2, 3).repeat(repeats=(2, 1)),
    "new_zeros": lambda m: m.ones(2, 3).new_zeros(size=(2,)),
    "new_full": lambda m: m.ones(2, 3).new_full(size=(2,), fill_value=1.0),
    "permute": lambda m: m.ones(2, 3).permute(dims=(1, 0)),
    "resize_": lambda m: m.ones(2, 3).resize_(size=(2, 2)),
    "split": lambda m: m.ones(2, 3).split(split_size=1, dim=1)[0],
    "requires_grad_": lambda m: m.ones(2, 3).requires_grad_(requires_grad=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_keyword_of_pytorchs(name: str) -> None:
    assert tuple(CALLS[name](torch).shape) == tuple(CALLS[name](theirs).shape)


def test_what_is_no_keyword() -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: torch.zeros(sizes=(2, 3)),
        lambda: torch.arange(),
        lambda: torch.ones(2).view(shape=(2,)),
    ]
    for call in wrong:
        with pytest.raises((CallError, UsageError)):
            call()
