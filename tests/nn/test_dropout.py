"""Dropout: the right fraction, the same on every device, anew on every call."""

from __future__ import annotations

import numpy as np
import pytest
from present import opened

import weft
from weft import functional as F, nn
from weft.core.errors import TraceError

X = np.full((300, 100), 3.0, np.float32)


def seeded(p: float) -> nn.Dropout:
    weft.manual_seed(5)
    return nn.Dropout(p)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_fraction_and_the_scale(p: float) -> None:
    y = seeded(p)(weft.tensor(X)).numpy()
    assert (y == 0).mean() == pytest.approx(p, abs=0.01)
    np.testing.assert_allclose(y[y != 0], 3 / (1 - p), rtol=1e-6)
    assert y.mean() == pytest.approx(3, rel=0.03)
    rows = (y == 0).mean(1)  # no pattern along either axis
    assert rows.std() == pytest.approx((p * (1 - p) / 100) ** 0.5, rel=0.2)


def test_edges() -> None:
    x = weft.tensor(X)
    assert nn.Dropout(0.5).eval()(x) is x
    np.testing.assert_array_equal(nn.Dropout(0.0)(x).numpy(), X)
    assert not nn.Dropout(1.0)(x).numpy().any()
    with pytest.raises(TraceError, match="pass key="):
        weft.compile(lambda x: F.dropout(x), "cpu")(x)


def test_calls_differ_and_seeds_repeat() -> None:
    a, b = seeded(0.5), seeded(0.5)
    first, second = a(weft.tensor(X)).numpy(), a(weft.tensor(X)).numpy()
    assert 0.4 < (first == second).mean() < 0.6
    np.testing.assert_array_equal(b(weft.tensor(X)).numpy(), first)
    saved = b.key.numpy().copy()
    np.testing.assert_array_equal(b(weft.tensor(X)).numpy(), second)
    b.key.assign(saved)  # repeats from the middle
    np.testing.assert_array_equal(b(weft.tensor(X)).numpy(), second)
    assert nn.Dropout(0.5).key.numpy()[0] != a.key.numpy()[0]


@pytest.mark.parametrize("device", ["cpu", "interp", "vulkan"])
def test_every_device_drops_the_same(device: str) -> None:
    x = X[:40]
    want = seeded(0.3)
    outs = [want(weft.tensor(x)).numpy() for _ in range(3)]
    net = seeded(0.3).to(opened(device))
    np.testing.assert_array_equal(net(weft.tensor(x).to(device)).numpy(), outs[0])
    run = weft.compile(lambda x: net(x), device)
    for out in outs[1:]:
        np.testing.assert_array_equal(run(x).numpy(), out)
    assert net.key.numpy()[1] == 3


def test_two_uses_in_one_program_differ_and_gradients_match_the_mask() -> None:
    net = seeded(0.5)

    def both(x: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor, weft.Tensor]:
        x = x.detach().requires_grad_()
        a, b = net(x), net(x)
        a.sum().backward()
        return a, b, x.grad

    a, b, grad = (t.numpy() for t in weft.compile(both, "cpu")(X))
    assert 0.4 < (a == b).mean() < 0.6
    np.testing.assert_array_equal(grad, a / 3)
    assert net.key.numpy()[1] == 2


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_checkpointing_draws_once(compiled: bool) -> None:
    net = nn.Sequential(nn.BatchNorm1d(100), seeded(0.5), nn.Sequential(nn.Dropout(0.2)))
    start = {k: v.numpy().copy() for k, v in net.named_buffers()}

    def run(x: weft.Tensor, how: int) -> tuple[weft.Tensor, weft.Tensor]:
        x = x.detach().requires_grad_()
        inner = lambda x: weft.checkpoint(net, x)  # noqa: E731
        y = [net, inner, lambda x: weft.checkpoint(inner, x)][how](x)
        (y * y).sum().backward()
        return y, x.grad

    fn = weft.compile(run, "cpu") if compiled else run
    found = []
    for how in range(3):
        for name, t in net.named_buffers():
            t.assign(start[name])
        y, grad = fn(weft.tensor(np.arange(3000, dtype=np.float32).reshape(30, 100) % 17), how)
        found.append((y.numpy().copy(), grad.numpy().copy()))
        assert net[1].key.numpy()[1] == 1 and net[0].num_batches_tracked.item() == 1
    for y, grad in found[1:]:
        np.testing.assert_array_equal(y, found[0][0])
        np.testing.assert_allclose(grad, found[0][1], atol=1e-5)
