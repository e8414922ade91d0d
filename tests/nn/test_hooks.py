"""Forward hooks see and change what PyTorch's see and change, eager and compiled."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import nn

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def nets() -> tuple[Any, Any]:
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))
    )
    mine = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return mine, theirs


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_hooks_are_pytorchs(way: str) -> None:
    mine, theirs = nets()
    seen: dict[Any, list[str]] = {}
    removed = []
    for net in (mine, theirs):
        log = seen[net] = []

        def after(module: Any, args: Any, result: Any, log: list[str] = log) -> None:
            log.append(f"after {type(module).__name__} {tuple(args[0].shape)}")

        def before(module: Any, args: Any, log: list[str] = log) -> Any:
            log.append(f"before {type(module).__name__}")
            return (args[0] + 1,)

        net[0].register_forward_hook(after)
        net[0].register_forward_pre_hook(before)
        net[1].register_forward_hook(lambda module, args, result: result * 2)
        net[1].register_forward_hook(after)
        removed.append(net.register_forward_hook(lambda module, args, result: result - 3))
    run = weft.compile(lambda x: mine(x), device="cpu") if way == "compiled" else mine
    for _ in range(2):
        want = theirs(torch.tensor(X)).detach().numpy()
        np.testing.assert_allclose(run(weft.tensor(X)).numpy(), want, rtol=1e-5, atol=1e-5)
        assert seen[mine][:4] == seen[theirs][:4]
        for hook in removed:
            hook.remove()
            hook.remove()


def test_a_compiled_function_meets_a_later_hook() -> None:
    mine, _ = nets()
    run = weft.compile(lambda x: mine(x), device="cpu")
    plain = run(weft.tensor(X)).numpy()
    hook = mine[0].register_forward_hook(lambda module, args, result: result * 0)
    assert not np.array_equal(run(weft.tensor(X)).numpy(), plain)
    hook.remove()
    np.testing.assert_array_equal(run(weft.tensor(X)).numpy(), plain)


def test_hooks_are_no_state() -> None:
    mine, _ = nets()
    names = list(mine.state_dict())
    mine[0].register_forward_hook(lambda module, args, result: None)
    assert list(mine.state_dict()) == names
    assert copy.deepcopy(mine)(weft.tensor(X)).shape == (2, 2)
