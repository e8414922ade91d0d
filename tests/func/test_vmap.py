"""vmap: axes, nests, random numbers, chunks, modules, devices, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import func, nn
from weft.core.errors import GradientError, ShapeError, TraceError, UsageError, WeftError

RNG = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return weft.tensor(RNG.standard_normal(shape).astype(np.float32))


def in_torch(x: Any) -> Any:
    return torch.tensor(x.numpy())


@pytest.mark.parametrize(
    "in_dims, out_dims", [(0, 0), (1, 1), ((0, None), -1), ((-1, 1), 2), ((None, 0), 0)]
)
def test_axes_as_pytorch(in_dims: Any, out_dims: Any) -> None:
    x, y = normal(3, 3, 3), normal(3, 3, 3)

    def fn(x: Any, y: Any) -> Any:
        return x @ y.T + x.sum(0)

    ours = func.vmap(fn, in_dims, out_dims)(x, y)
    theirs = torch.func.vmap(fn, in_dims, out_dims)(in_torch(x), in_torch(y))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_nested_arguments_results_and_chunks() -> None:
    x, w, s = normal(7, 4), normal(4, 2), normal(7)

    def fn(p: Any, scale: Any, *, shift: Any) -> Any:
        return {"y": p["x"] @ p["w"] * scale, "z": (shift + 1, weft.ones(2))}

    dims = ({"x": 0, "w": None}, 0)
    for chunk in (None, 3, 7, 100):
        got = func.vmap(fn, dims, chunk_size=chunk)({"x": x, "w": w}, s, shift=s)
        np.testing.assert_allclose(got["y"].numpy(), (x @ w * s[:, None]).numpy(), rtol=1e-5)
        assert got["z"][0].shape == (7,) and got["z"][1].shape == (7, 2)
    moved = func.vmap(lambda x: {"a": x, "b": x}, 0, {"a": 0, "b": 1})(x)
    assert moved["a"].shape == (7, 4) and moved["b"].shape == (4, 7)


def test_random_numbers() -> None:
    x = weft.zeros((5, 8))

    def noisy(x: Any) -> Any:
        return x + weft.randn(8)

    with pytest.raises(UsageError, match='randomness="different"'):
        func.vmap(noisy)(x)
    same = func.vmap(noisy, randomness="same")(x).numpy()
    assert (same == same[0]).all()
    weft.manual_seed(1)
    first = func.vmap(noisy, randomness="different")(x).numpy()
    assert len(np.unique(first)) == first.size
    weft.manual_seed(1)
    np.testing.assert_array_equal(func.vmap(noisy, randomness="different")(x).numpy(), first)
    nested = func.vmap(func.vmap(noisy, randomness="different"), randomness="different")
    assert len(np.unique(nested(weft.zeros((3, 4, 8))).numpy())) == 96
    by_key = func.vmap(lambda k: weft.randn(8, key=k))
    keys = weft.tensor(np.arange(6, dtype=np.uint32).reshape(3, 2))
    for i, row in enumerate(by_key(keys)):
        np.testing.assert_array_equal(row.numpy(), weft.randn(8, key=keys[i]).numpy())
    drop = nn.Dropout(0.5)
    with pytest.raises(UsageError, match="randomness"):
        func.vmap(drop)(x + 1)
    kept = func.vmap(drop, randomness="different")(weft.ones((5, 64))).numpy()
    assert len({row.tobytes() for row in kept}) == 5


def test_an_ensemble_of_modules() -> None:
    nets = [nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
            for _ in range(4)]  # fmt: skip
    params, buffers = func.stack_module_state(nets)
    x = normal(6, 3)

    def call(p: Any, b: Any, x: Any) -> Any:
        return func.functional_call(nets[0], (p, b), (x,))

    for run in (func.vmap(call, (0, 0, None)), weft.compile(func.vmap(call, (0, 0, None)), "cpu")):
        got = run(params, buffers, x)
        for g, net in zip(got, nets):
            np.testing.assert_allclose(g.numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
    func.vmap(call, (0, 0, None))(params, buffers, x).sum().backward()
    assert params["0.weight"].grad is not None
    with pytest.raises(WeftError, match="has no nothing"):
        func.functional_call(nets[0], {"nothing": x}, x)


def test_functional_call_leaves_the_module_alone() -> None:
    net = nn.Linear(3, 3)
    before = net.weight
    tied = nn.Sequential(net, net)
    new = {"0.weight": weft.eye(3), "0.bias": weft.zeros(3)}
    x = normal(2, 3)
    assert func.functional_call(tied, new, x).numpy().tolist() == x.numpy().tolist()
    assert net.weight is before
    with pytest.raises(WeftError, match="ZeroDivisionError"):
        func.functional_call(net, {"weight": weft.eye(3)}, _Boom())
    assert net.weight is before
    calls = []

    def fn(p: Any, x: Any) -> Any:
        calls.append(1)
        return func.functional_call(net, p, x)

    run = weft.compile(fn, "cpu")
    for scale in (1.0, 2.0, 3.0):
        got = run({"weight": weft.eye(3) * scale}, x)
        np.testing.assert_allclose(got.numpy(), x.numpy() * scale + net.bias.numpy(), rtol=1e-5)
    assert len(calls) == 1, "a call that replaces parameters is traced once"


class _Boom:
    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError


def test_the_size_of_the_work_is_that_of_a_batch_by_hand() -> None:
    """A mapped function gives the graph of the batch by hand, but for reshapes."""
    x, w = normal(16, 8), normal(8, 4)

    def row(x: Any, w: Any) -> Any:
        return (x @ w).tanh().softmax(-1).sum()

    def hand(x: Any, w: Any) -> Any:
        return (x @ w).tanh().softmax(-1).sum(-1)

    mapped = weft.compile(func.vmap(row, (0, None)), "cpu")
    by_hand = weft.compile(hand, "cpu")
    np.testing.assert_array_equal(mapped(x, w).numpy(), by_hand(x, w).numpy())
    assert len(mapped.programs()[0].steps) == len(by_hand.programs()[0].steps)


def test_refusals() -> None:
    x = normal(4, 3)
    for bad, match in (
        (lambda: func.vmap(lambda x: x, 5)(x), "it has 2 axes"),
        (lambda: func.vmap(lambda x: x, None)(x), "no argument has a batch"),
        (lambda: func.vmap(lambda x: x, (0, 0))(x), "2 in_dims for 1"),
        (lambda: func.vmap(lambda x: x, ({"a": 0},))(x), "does not nest"),
        (lambda: func.vmap(lambda x: x, out_dims=7)(x), "out_dims 7"),
        (lambda: func.vmap(lambda x: x, randomness="some"), "randomness"),
        (lambda: func.vmap(lambda x: x, chunk_size=0), "chunk_size"),
    ):
        with pytest.raises(UsageError, match=match):
            bad()
    with pytest.raises(ShapeError, match="equally long"):
        func.vmap(lambda x, y: x)(x, normal(5))
    with pytest.raises(TraceError, match="differs between the examples"):
        func.vmap(lambda x: x if x.sum() > 0 else -x)(x)
    with pytest.raises(ShapeError, match=r"\(3\)"):  # an example's shape, not the batch's
        func.vmap(lambda x: x @ normal(5, 2))(x)
    kept = []
    func.vmap(lambda x: kept.append(x) or x)(x)
    with pytest.raises(GradientError, match="after the function ended"):
        kept[0] + 1
    leaf = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(GradientError, match="vmap"):
        func.vmap(lambda x: (x * leaf).sum().backward() or x)(x)
    with pytest.raises(GradientError, match="from outside of the mapped function"):
        func.vmap(lambda x: weft.grad((x.requires_grad_() * leaf).sum(), [leaf])[0])(x)


def test_writes_inside() -> None:
    x = normal(4, 3)

    def fn(x: Any) -> Any:
        y = weft.zeros(3)
        y[0] = x[1] * 2
        y += x
        return y

    want = x.numpy().copy()
    want[:, 0] += x.numpy()[:, 1] * 2
    np.testing.assert_allclose(func.vmap(fn)(x).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(weft.compile(func.vmap(fn), "cpu")(x).numpy(), want, rtol=1e-6)
    norm = nn.BatchNorm1d(3)
    before = norm.running_mean.numpy()
    with pytest.raises(WeftError, match="outside"):
        func.vmap(norm)(normal(4, 5, 3))
    np.testing.assert_array_equal(norm.running_mean.numpy(), before)
    with pytest.raises(WeftError, match="outside"):
        weft.compile(func.vmap(norm), "cpu")(normal(4, 5, 3))
    np.testing.assert_array_equal(norm.running_mean.numpy(), before)
