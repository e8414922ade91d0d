"""A compiled function keeps the Programs of the signatures used last, and nothing of others."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import weft
from weft.backends.cpu import link, loader
from weft.errors import UsageError


def shapes(fn) -> list[tuple[int, ...]]:
    return sorted(node.shape for graph in fn.graphs() for node in graph.inputs)


def test_the_least_recently_used_goes_first() -> None:
    traced = []

    def double(x):
        traced.append(x.shape)
        return x * 2.0

    fn = weft.compile(double, device="cpu", cache_size=3)

    def call(n: int) -> None:
        np.testing.assert_array_equal(fn(np.full(n, 3.0, np.float32)).numpy(), np.full(n, 6.0))

    for n in (1, 2, 3, 1, 4):
        call(n)
    assert shapes(fn) == [(1,), (3,), (4,)]  # 2 was used longest ago
    for n in (1, 3, 4):
        call(n)
    assert len(traced) == 4
    call(2)  # compiled again
    assert len(traced) == 5 and shapes(fn) == [(2,), (3,), (4,)]


def test_memory_of_what_is_forgotten_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions, and the machine code that nobody else uses."""
    monkeypatch.setattr(loader, "KEPT", 1)
    regions: list[weakref.ref] = []
    make = link.Region.__init__

    def counted(self, base: int, size: int) -> None:
        make(self, base, size)
        regions.append(weakref.ref(self))

    monkeypatch.setattr(link.Region, "__init__", counted)
    fn = weft.compile(lambda x: (x + 0.123).exp().sum(-1), device="cpu", cache_size=2)
    sessions = []
    for n in range(2, 30):
        fn(np.ones((2, n), np.float32))
        sessions.extend(weakref.ref(s) for s in fn.sessions())
    gc.collect()
    assert len({id(s()) for s in sessions if s() is not None}) == 2
    assert sum(r() is not None for r in regions) <= 4 < len(regions)
    want = np.exp(np.float32(1.123)) * np.arange(28, 30)
    got = [fn(np.ones((2, n), np.float32)).numpy()[0] for n in (28, 29)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_states_outlive_their_programs() -> None:
    """A Program that is compiled again finds the state that the first one left."""
    total = weft.zeros(())

    def add(x):
        total.assign(total + x.sum())
        return total * 1.0

    fn = weft.compile(add, device="cpu", cache_size=1)
    results = [float(fn(np.ones(n, np.float32)).numpy()) for n in (1, 2, 1, 2, 3)]
    assert results == [1.0, 3.0, 4.0, 6.0, 9.0]


def test_entries_of_changing_guards_are_bounded() -> None:
    layer = weft.nn.Dropout(0.5)
    fn = weft.compile(lambda x: layer(x), device="cpu", cache_size=1)
    x = np.ones(4, np.float32)
    for _ in range(3):
        layer.train()
        fn(x)
        layer.eval()
        np.testing.assert_array_equal(fn(x).numpy(), x)
    assert len(fn.programs()) == 1


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None, "8"])
def test_a_size_that_is_none(size) -> None:
    with pytest.raises(UsageError, match="cache_size"):
        weft.compile(lambda x: x, cache_size=size)


def test_a_decorator_with_options() -> None:
    @weft.compile(device="cpu", cache_size=2)
    def double(x: weft.Tensor) -> weft.Tensor:
        return x + x

    assert double(weft.ones(2)).tolist() == [2.0, 2.0]
    assert double.__name__ == "double" and "cpu" in repr(double)
    with pytest.raises(UsageError, match="cache_size"):
        weft.compile(cache_size=0)(lambda x: x)
