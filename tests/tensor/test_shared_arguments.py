"""A tensor that is an argument of a compiled function and also read, or written, by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import TraceError


class World:
    """A state and a trained tensor, with functions that take either as an argument."""

    def __init__(self) -> None:
        self.w = weft.tensor([[1.0, 2.0], [3.0, 4.0]], name="w")
        self.other = weft.tensor([[10.0, 20.0], [30.0, 40.0]])
        self.p = weft.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        self.row = self.w[1:2]
        self.turned = self.w.T

    def after(self, x: Any) -> Any:
        self.w.assign(self.w + 1.0)
        return x * 1.0

    def before(self, x: Any) -> Any:
        y = x * 1.0
        self.w.assign(self.w + 1.0)
        return y

    def around(self, x: Any) -> Any:
        y = x * 1.0
        self.w.assign(self.w + x.sum())
        self.row[0] = 5.0
        return y + x, x.T + self.turned

    def through_a_view(self, x: Any) -> Any:
        self.w[0][1] = 7.0
        return x * 2.0

    def two(self, x: Any, y: Any) -> Any:
        self.w.assign(x + y)
        return x - y * 0.5

    def trained(self, x: Any) -> Any:
        loss = (x * self.p).sum()
        loss.backward()
        return loss.detach()

    def alone(self, x: Any) -> Any:
        loss = (x * x * x).sum() + self.p.sum()
        loss.backward()
        return loss.detach()


ONE = ["after", "before", "around", "through_a_view", "trained", "alone"]
PICKS: dict[str, Callable[[World], Any]] = {
    "itself": lambda world: world.w,
    "row": lambda world: world.row,
    "turned": lambda world: world.turned,
    "detached": lambda world: world.w.detach(),
    "other": lambda world: world.other,
    "trained": lambda world: world.p,
    "array": lambda world: weft.ones((2, 2)),
}
ORDERS = [
    ["itself"] * 3, ["other", "itself", "other", "itself"], ["row", "itself", "row"],
    ["turned", "other", "turned"], ["detached", "detached"], ["trained", "other", "trained"],
    ["array", "itself", "trained", "row", "array", "trained"],
]  # fmt: skip


def values(world: World, made: Any) -> list[Any]:
    parts = made if isinstance(made, tuple) else (made,)
    grads = [t.grad for t in (world.p, world.w, world.other)]
    held = [world.w, world.other, world.row, world.turned, world.p]
    return [None if t is None else t.detach().numpy().copy() for t in (*parts, *held, *grads)]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("name", ONE)
def test_as_eager(name: str, order: list[str]) -> None:
    found = []
    for compiled in (False, True):
        world = World()
        fn = getattr(world, name)
        fn = weft.compile(fn, device="cpu") if compiled else fn
        found.append([values(world, fn(PICKS[pick](world))) for pick in order])
    for eager, fast in zip(*found):
        for a, b in zip(eager, fast, strict=True):
            assert (a is None) == (b is None)
            assert a is None or np.allclose(a, b)


@pytest.mark.parametrize("picks", [("itself", "itself"), ("turned", "other"), ("other", "itself")])
def test_two_arguments(picks: tuple[str, str]) -> None:
    found: list[list[Any]] = []
    for compiled in (False, True):
        world = World()
        fn = weft.compile(world.two, device="cpu") if compiled else world.two
        found.append([])
        for order in (picks, picks[::-1], picks):
            made = fn(*(PICKS[pick](world) for pick in order))
            found[-1].append(values(world, made))
    for eager, fast in zip(*found):
        assert all(a is None or np.allclose(a, b) for a, b in zip(eager, fast))


def test_an_argument_that_is_assigned_to_is_refused() -> None:
    def fn(x: Any, y: Any) -> Any:
        x.assign(y * 2.0)
        return y * 1.0

    w = weft.ones(2)
    with pytest.raises(TraceError, match="is assigned to"):
        weft.compile(fn, device="cpu")(w, w)


def test_programs_are_found_again() -> None:
    world = World()
    fast = weft.compile(world.after, device="cpu")
    for _ in range(3):
        for pick in ("itself", "other", "array", "row"):
            fast(PICKS[pick](world))
    assert len(fast.programs()) == 3  # with another, with itself, with its row of another shape
    read = weft.compile(lambda x: x + world.w, device="cpu")
    for pick in ("itself", "other", "itself"):
        read(PICKS[pick](world))
    assert len(read.programs()) == 1
