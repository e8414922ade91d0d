"""Modules a thousand deep, and ten thousand side by side."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.errors import UsageError
from weft.importers import safetensors

DEPTH = 1000


class Wrapped(nn.Module):
    """A user's module, whose forward calls the next one's."""

    def __init__(self, inner: nn.Module):
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def deep(kind: Any = nn.Sequential, depth: int = DEPTH) -> nn.Module:
    net: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        net = kind(net)
    return net


@pytest.mark.parametrize("kind", [nn.Sequential, Wrapped])
def test_every_walk(kind: Any, tmp_path: Path) -> None:
    net = deep(kind)
    names = [name for name, _ in net.named_parameters()]
    assert len(names) == 2 and names[0].count(".") == DEPTH
    assert sum(1 for _ in net.modules()) == DEPTH + 1
    seen: list[str] = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[0] == "Linear" and len(seen) == DEPTH + 1
    net.eval().train().requires_grad_(False).requires_grad_().zero_grad()
    net.to(weft.float16).to(weft.float32).to("cpu")
    lines = repr(net).splitlines()
    assert len(lines) == 2 * DEPTH + 1 and lines[DEPTH].strip().endswith("bias=True)")

    safetensors.save_file(tmp_path / "net.safetensors", net.state_dict())
    other = copy.deepcopy(net)
    assert {id(p) for p in other.parameters()}.isdisjoint(map(id, net.parameters()))
    with weft.no_grad():
        for p in other.parameters():
            p.assign(p * 0)
    file = safetensors.open_checkpoint(tmp_path / "net.safetensors")
    other.load_state_dict({name: np.array(file[name]) for name in file})
    for a, b in zip(net.parameters(), other.parameters()):
        assert a.tolist() == b.tolist()


def test_sequentials_run_at_any_depth() -> None:
    net, x = deep(), weft.tensor([[1.0, 2.0]])
    leaf = next(m for m in net.modules() if isinstance(m, nn.Linear))
    assert net(x).tolist() == leaf(x).tolist() == weft.compile(net)(x).tolist()
    net(x).sum().backward()
    assert leaf.weight.grad is not None


def test_what_python_cannot_call_is_named() -> None:
    for run in (deep(Wrapped), weft.compile(deep(Wrapped))):
        with pytest.raises(UsageError, match="setrecursionlimit"):
            run(weft.tensor([[1.0, 2.0]]))


def test_a_module_that_holds_itself() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.inner = nn.Sequential(net)
    x = weft.tensor([[1.0, 2.0]])
    for call in (
        lambda: list(net.parameters()), net.state_dict, net.eval, lambda: repr(net),
        lambda: copy.deepcopy(net), lambda: net.apply(print), lambda: net(x),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="holds itself"):
            call()


def test_copies_keep_what_is_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(2, 2)
            self.b = nn.Sequential(self.a)
            self.extra = [self.a, {"again": self.a}]

    net = Tied()
    made = copy.deepcopy(net)
    assert made.a is made.b[0] is made.extra[0] is made.extra[1]["again"]
    assert made.a is not net.a and made.a.weight.tolist() == net.a.weight.tolist()
    both = copy.deepcopy({"net": net, "part": net.a})
    assert both["net"].a is both["part"]


def test_text_is_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), Wrapped(nn.Tanh())))
    assert repr(net) == (
        "Sequential(\n  (0): Linear(2, 3, bias=True)\n  (1): Sequential(\n    (0): ReLU()\n"
        "    (1): Wrapped(\n      (inner): Tanh()\n    )\n  )\n)"
    )


def test_many_modules_side_by_side() -> None:
    many = nn.ModuleList()
    start = time.process_time()
    for _ in range(10_000):
        many.append(nn.Identity())
    assert time.process_time() - start < 5 and len(many) == 10_000
    many.note = "not a module"
    assert many.append(nn.ReLU())[10_000].__class__ is nn.ReLU
