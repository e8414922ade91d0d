"""WEFT_VERIFY, and state that compiled functions cannot watch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.errors import TraceError


def test_what_changes_at_each_call_is_said_once() -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * float(self.calls)

    fast, x = weft.compile(Counts(), device="cpu"), weft.ones(1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [fast(x).item() for _ in range(12)] == [float(i) for i in range(1, 13)]
    assert ["Counts.calls" in str(w.message) for w in said] == [True]


def test_state_in_an_attribute_is_refused() -> None:
    class Keeps(nn.Module):
        h: Any = None

        def forward(self, x: Any) -> Any:
            self.h = x if self.h is None else self.h + x
            return self.h

    with pytest.raises(TraceError, match=r"Keeps\.h.*register_buffer"):
        weft.compile(Keeps(), device="cpu")(weft.ones(1))


FACTOR = 2.0


@pytest.mark.parametrize("kind", ["global", "list", "array", "closure", "tensor", "result"])
def test_verify_catches_what_is_not_watched(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "1")
    numbers, array, extra = [1.0, 2.0], np.ones(2, np.float32), 1.0
    held = {"t": weft.ones(2)}

    def fn(x: Any) -> Any:
        if kind == "result":
            return x, len(numbers)
        if kind == "closure":
            return x + extra
        if kind == "tensor":
            return x + held["t"]
        return x * FACTOR + sum(numbers) + array

    fast, x = weft.compile(fn, device="cpu"), weft.ones(2)
    for _ in range(6):
        fast(x)
    if kind == "global":
        monkeypatch.setitem(globals(), "FACTOR", 3.0)
    numbers += [3.0] if kind in ("list", "result") else []
    array += 1.0 if kind == "array" else 0.0
    extra = 2.0 if kind == "closure" else extra
    if kind == "tensor":
        held["t"] = weft.zeros(2)
    with pytest.raises(TraceError, match="trace changed since it was compiled"):
        fast(x)


def test_verify_lets_pass_what_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "1")
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1))
    opt = optim.AdamW(net.named_parameters())

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    fast = weft.compile(step, device="cpu")
    for _ in range(4):
        fast(weft.randn(8, 4))
    list(net.named_parameters())
    net.eval()
    for _ in range(3):
        fast(weft.randn(8, 4))
    assert len(fast.programs()) == 2


@pytest.mark.parametrize("way", ["vars", "__dict__", "update", "replaced", "deleted"])
def test_attributes_written_past_the_module(way: str) -> None:
    """A module's own dict is watched as its attributes are."""
    net = nn.Linear(2, 2)
    net.k = 1.0

    def double(x: Any) -> Any:
        return net(x) * (net.k if hasattr(net, "k") else 5.0)

    fast, x = weft.compile(double, device="cpu"), np.ones((1, 2), np.float32)
    before = [fast(x) for _ in range(7)][-1].numpy()  # the shorter way, by now
    if way == "vars":
        vars(net)["k"] = 2.0
    elif way == "__dict__":
        net.__dict__["k"] = 2.0
    elif way == "update":
        net.__dict__.update(k=2.0)
    elif way == "replaced":
        net.__dict__ = {**net.__dict__, "k": 2.0}
    else:
        del net.__dict__["k"]
    factor = 5 if way == "deleted" else 2
    assert np.allclose(fast(x).numpy(), factor * before, rtol=1e-6)
