"""Copies of tensors, and results that share nothing with what they were computed from."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import GradientError, TraceError
from weft.tensor.resize import interpolate

START = np.arange(1, 13, dtype=np.float32).reshape(3, 4)

NOTHING_DROPPED = nn.Dropout(0.0)
FRESH: dict[str, Callable[[Any], Any]] = {
    "roll": lambda x: weft.roll(x, 0),
    "roll along an axis": lambda x: weft.roll(x, 4, 1),
    "tile": lambda x: weft.tile(x, (1, 1)),
    "tile with an axis": lambda x: weft.tile(x, (1, 1, 1)),
    "repeat": lambda x: weft.repeat(x, 1, axis=0),
    "repeat all": lambda x: weft.repeat(x, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0),
    "astype": lambda x: weft.astype(x, weft.float32),
    "contiguous": lambda x: x.T.contiguous(),
    "sum": lambda x: x.sum(()),
    "max": lambda x: x.max(()),
    "mean": lambda x: x.mean(()),
    "prod": lambda x: x.prod(()),
    "sum of one": lambda x: x[:1].sum(0),
    "sort": lambda x: x[0, 0].sort(),
    "diff": lambda x: weft.diff(x, n=0),
    "dropout": NOTHING_DROPPED,
    "interpolate": lambda x: interpolate(x[None], size=4, mode="linear", align_corners=True),
    "concat": lambda x: weft.concat([x]),
    "cumulative_sum": lambda x: weft.cumulative_sum(x[:1], axis=0),
    "pad": lambda x: x.pad([(0, 0), (0, 0)]),
    "flip": lambda x: x.flip(()),
    "tensor": lambda x: weft.tensor(x),
}


@pytest.mark.parametrize("name", FRESH)
def test_what_is_computed_is_not_shared(name: str) -> None:
    """Also where there was nothing to compute."""
    x = weft.tensor(START)
    y = FRESH[name](x)
    y[...] = 77
    assert np.array_equal(x.numpy(), START)
    p = weft.tensor(START, requires_grad=True)
    FRESH[name](p).sum().backward()
    assert p.grad is not None

    def traced(a: Any) -> Any:
        y = FRESH[name](b := a * 1.0)
        y[...] = 77
        return b

    assert np.array_equal(weft.compile(traced, device="cpu")(START).numpy(), START)


@pytest.mark.parametrize("method", ["ceil", "floor", "round"])
def test_rounded_integers_are_not_shared(method: str) -> None:
    x = weft.tensor([1, 2, 3])
    y = getattr(x, method)()
    y[0] = 9
    assert x.tolist() == [1, 2, 3]


def test_a_shallow_copy_shares_as_in_pytorch() -> None:
    x = weft.tensor(START)
    v = x[0]
    for part in (x, v):
        made = copy.copy(part)
        made[0] = 5
        assert np.array_equal(made.numpy(), part.numpy()) and (part[0].numpy() == 5).all()
        part[1] = 6
        assert np.array_equal(made.numpy(), part.numpy())
    held = copy.copy(x)[2]  # a view of a copy
    held[0] = 8
    assert x[2, 0].item() == 8
    x[2, 1] = 7
    assert held[1].item() == 7


def test_a_shallow_copy_of_a_parameter_is_one() -> None:
    p = nn.Parameter(START, name="w")
    (p * p).sum().backward()
    c = copy.copy(p)
    assert type(c) is nn.Parameter and c.requires_grad and c.grad is None and c.name == "w"
    with weft.no_grad():
        c[0] = 5
    assert (p[0].numpy() == 5).all()
    (c * c).sum().backward()
    assert c.grad is not None and c.grad[0].tolist() == [10] * 4
    y = p * 2.0
    copy.copy(y).sum().backward()
    with pytest.raises(TraceError, match="deepcopy"):
        weft.compile(lambda a: copy.deepcopy(a), device="cpu")(START)


def test_a_shallow_copy_in_a_traced_function() -> None:
    state = weft.tensor(START)

    def step(a: Any) -> Any:
        c, b = copy.copy(state), a * 1.0
        c[0] += 1
        copy.copy(b)[1] = 3
        return b

    got = weft.compile(step, device="cpu")(START)
    assert (state[0].numpy() == START[0] + 1).all() and (got[1].numpy() == 3).all()


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_pickled_by_content(device: str) -> None:
    """For processes of one's own: views take along what they show, not what they share."""
    x = weft.tensor(START, device=device)
    v, t = x[0], x.T
    again, w, u = pickle.loads(pickle.dumps((x, v, t)))
    assert again.device == x.device
    for a, b in ((again, x), (w, v), (u, t)):
        assert np.array_equal(a.numpy(), b.numpy())
    w[0] = 9
    assert again[0, 0].item() == 1 and v[0].item() == 1


def test_pickled_leaves() -> None:
    p = nn.Parameter(START, name="w")
    held = p[0]
    (p * p).sum().backward()
    q = pickle.loads(pickle.dumps(p))
    assert type(q) is nn.Parameter and q.requires_grad and q.name == "w"
    assert q.grad is not None and np.array_equal(q.grad.numpy(), 2 * START)
    net = pickle.loads(pickle.dumps(nn.Linear(2, 3)))
    assert net(weft.ones((1, 2))).shape == (1, 3)
    with pytest.raises(GradientError, match="history belongs"):
        pickle.dumps(held)
