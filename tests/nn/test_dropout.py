"""Dropout: the right fraction, the same on every device, anew on every call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from present import opened

import weft
from weft import functional as F, nn
from weft.core.errors import ShapeError, TraceError, UsageError

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


CHANNELS = {"Dropout1d": 1, "Dropout2d": 2, "Dropout3d": 3, "FeatureAlphaDropout": 2}
NEW = [*CHANNELS, "AlphaDropout"]


@pytest.mark.parametrize("name", CHANNELS)
def test_whole_channels_are_dropped(name: str) -> None:
    """Each channel has one fate; the values are those that PyTorch's own module gives."""
    rank = CHANNELS[name]
    x = np.random.default_rng(0).standard_normal((60, 50, *[3] * rank)).astype(np.float32)
    net = getattr(nn, name)(0.3)
    a = weft.tensor(x, requires_grad=True)
    y = net(a)
    y.sum().backward()
    rest = tuple(range(2, rank + 2))
    kept = a.grad.numpy() != 0
    low = y.numpy()[~kept]
    assert np.ptp(low) == 0
    assert (kept.all(rest) | ~kept.any(rest)).all()
    assert (~kept).mean() == pytest.approx(0.3, abs=0.03)
    assert a.grad.numpy()[kept].std() == pytest.approx(0, abs=1e-5)
    theirs = getattr(torch.nn, name)(0.3)(torch.tensor(x)).numpy()
    dropped = np.isclose(theirs, low[0])
    assert dropped.all(rest).mean() == pytest.approx(0.3, abs=0.03)
    alike = kept.all(rest) & ~dropped.all(rest)
    np.testing.assert_allclose(y.numpy()[alike], theirs[alike], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_alpha_dropout_keeps_mean_and_variance(p: float) -> None:
    x = np.random.default_rng(1).standard_normal((400, 500)).astype(np.float32)
    a = weft.tensor(x, requires_grad=True)
    y = nn.AlphaDropout(p)(a)
    y.sum().backward()
    assert y.mean().item() == pytest.approx(0, abs=0.02)
    assert y.numpy().var() == pytest.approx(1, abs=0.03)
    kept = a.grad.numpy() != 0
    assert kept.mean() == pytest.approx(1 - p, abs=0.01)
    theirs = torch.nn.AlphaDropout(p)(torch.tensor(x)).numpy()
    low = y.numpy()[~kept]
    assert np.ptp(low) == 0 and np.isclose(theirs, low[0]).mean() == pytest.approx(p, abs=0.01)
    both = kept & ~np.isclose(theirs, low[0])
    np.testing.assert_allclose(y.numpy()[both], theirs[both], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NEW)
def test_every_dropout_at_its_edges(name: str) -> None:
    rank, kind = CHANNELS.get(name, 1), getattr(nn, name)
    x = weft.tensor(np.full((2, 3, *[2] * rank), 3.0, np.float32))
    assert kind(0.5).eval()(x) is x
    np.testing.assert_array_equal(kind(0.0)(x).numpy(), x.numpy())
    assert (
        not kind(1.0)(x).numpy().any()
        and not getattr(torch.nn, name)(1.0)(torch.tensor(x.numpy())).any()
    )
    with pytest.raises(UsageError, match=f"{name}: 1.5 is not a probability"):
        kind(1.5)
    if name in CHANNELS:
        with pytest.raises(ShapeError, match=r"\[N, C"):
            kind(0.5)(weft.ones((3,)))
    net = kind(0.5)
    run = weft.compile(lambda x: net(x), "cpu")
    first, key = run(x).numpy(), net.key.numpy()
    assert key[1] == 1
    net.key.assign(key - np.array([0, 1], np.uint32))
    np.testing.assert_array_equal(net(x).numpy(), first)


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
