"""The tape behind tensors: backward, .grad, no_grad, detach, grad, value_and_grad, eagerly and on
devices (inside weft.compile: test_autograd_compiled.py). Truth: PyTorch or the definition."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from autograd_kit import B, W, X, close, leaf, mlp

import weft
from weft.core.errors import DeviceError, DTypeError, GradientError, ShapeError
from weft.tensor import Tensor, functional as F

# -- backward and .grad ---------------------------------------------------------------------------


def test_backward_as_pytorch(device: str) -> None:
    ours = [leaf(a, device) for a in (X, W, B)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (X, W, B)]
    mlp(*ours).backward()
    mlp(*theirs).backward()
    for t, u in zip(ours, theirs):
        assert t.grad is not None and t.grad.device == t.device
        close(t.grad, u.grad)


TRICKY: dict[str, Callable[[Any, Any], Any]] = {
    "broadcast": lambda x, w: (x[:, :1] * x + x.mean(0)).sum(),
    "slice": lambda x, w: (x[::2, 1:] * x[1::2, :-1]).sum(),
    "steps": lambda x, w: (x[:, ::3] * 2).sum() + x[-1, -2],
    "reduce": lambda x, w: x.var() + x.max(1)[0].sum() if _torch(x) else x.var() + x.max(1).sum(),
    "gather": lambda x, w: (x[[1, 3, 1]] @ w).square().sum(),
    "softmax": lambda x, w: (x @ w).softmax(-1)[:, 0].log().sum(),
    "shared": lambda x, w: _shared(x @ w),
    "sigmoid": lambda x, w: (x.sigmoid() * x.relu()).sum(),
    "sort": lambda x, w: (x.sort(1)[0] if _torch(x) else x.sort(1))[:, :2].sum(),
    "expand": lambda x, w: (x.reshape(1, 4, 5).expand(3, 4, 5) ** 2).sum(),
}


def _torch(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _shared(y: Any) -> Any:
    for _ in range(6):  # 2**6 paths through 6 values
        y = y.sin() + y
    return y.sum()


@pytest.mark.parametrize("name", TRICKY)
def test_functions_as_pytorch(name: str) -> None:
    fn = TRICKY[name]
    ours, theirs = leaf(X), torch.tensor(X, requires_grad=True)
    w = leaf(W)
    out, want = fn(ours, w), None
    if name == "reduce":
        want = theirs.var(correction=0) + theirs.max(1)[0].sum()
    else:
        want = fn(theirs, torch.tensor(W))
    close(out, want, 1e-4)
    out.backward()
    want.backward()
    close(ours.grad, theirs.grad, 1e-4)


def test_gradients_accumulate_until_they_are_dropped() -> None:
    x = leaf([1.0, 2.0])
    (x * 3).sum().backward()
    (x * 4).sum().backward()
    close(x.grad, [7.0, 7.0])
    before = x.grad
    (x * x).sum().backward()
    close(x.grad, [9.0, 11.0])
    close(before, [7.0, 7.0])
    x.grad = None
    x.sum().backward()
    close(x.grad, [1.0, 1.0])


def test_a_leaf_used_twice_and_a_leaf_itself() -> None:
    x = leaf([2.0])
    (x * x + x).sum().backward()
    close(x.grad, [5.0])
    y = leaf(3.0)
    y.backward()
    close(y.grad, 1.0)


def test_a_graph_may_be_walked_twice() -> None:
    x = leaf([2.0])
    y = (x**3).sum()
    y.backward()
    y.backward()
    close(x.grad, [24.0])


def test_gradient_argument() -> None:
    x = leaf([1.0, 2.0, 3.0])
    weights = np.array([1.0, 0.0, -2.0], np.float32)
    (x * x).backward(weights)
    close(x.grad, [2.0, 0.0, -12.0])
    (x + 0).backward(weft.tensor(weights))
    kept = x.grad.numpy().copy()
    weights[:] = 99.0
    close(x.grad, kept)
    x.grad = None
    (x + 0).backward(weights)
    weights[:] = 5.0
    close(x.grad, [99.0, 99.0, 99.0])
    with pytest.raises(ShapeError, match="gradient"):
        (x * 2).backward(np.ones(2, np.float32))
    with pytest.raises(ShapeError, match="3 elements; reduce it to one, or pass gradient="):
        (x * 2).backward()


def test_errors_say_what_to_do() -> None:
    x = leaf([1.0])
    with pytest.raises(GradientError, match="not computed from a tensor with requires_grad"):
        weft.tensor([1.0]).backward()
    with weft.no_grad():
        y = x * 2
    assert not y.requires_grad
    with pytest.raises(GradientError, match="computed under no_grad"):
        y.backward()
    with pytest.raises(GradientError, match="no_grad"):
        x.assign(weft.tensor([2.0]))
    with pytest.raises(GradientError, match="detach"):
        (x * 2).requires_grad_()
    with pytest.raises(ShapeError, match="grad"):
        x.grad = weft.tensor([1.0, 2.0])
    for bad in (np.zeros(2, np.int32), np.zeros(2, bool), np.zeros(2, np.uint8)):
        with pytest.raises(DTypeError, match="not of floats"):
            weft.tensor(bad, requires_grad=True)


def test_no_grad_and_enable_grad_nest() -> None:
    x = leaf([1.0])

    @weft.no_grad()
    def quiet() -> Tensor:
        assert not weft.is_grad_enabled()
        with weft.enable_grad():
            y = x * 2
        assert not (y * 2).requires_grad
        return y

    y = quiet()
    assert y.requires_grad and weft.is_grad_enabled()
    y.sum().backward()
    close(x.grad, [2.0])
    with pytest.raises(ZeroDivisionError), weft.no_grad():
        1 / 0  # noqa: B018
    assert weft.is_grad_enabled()


def test_detach_and_casts() -> None:
    x = leaf([3.0])
    (x * x.detach()).sum().backward()
    close(x.grad, [3.0])
    y = leaf([1.5, -2.5])
    (y.cast("f16").cast("f32") * 2 + y.cast("int32").cast("f32")).sum().backward()
    close(y.grad, [2.0, 2.0])
    assert not y.argmax().requires_grad and not (y > 0).requires_grad


def test_second_derivatives() -> None:
    x = leaf([2.0, -1.0])
    (g,) = weft.grad((x**3).sum(), [x], create_graph=True)
    close(g, [12.0, 3.0])
    (h,) = weft.grad(g.sum(), [x])
    close(h, [12.0, -6.0])
    (x**3).sum().backward(create_graph=True)
    (x.grad * x.grad).sum().backward()  # penalty on the gradient: 2 g g'
    assert x.requires_grad
    close(x.grad, [12.0 + 2 * 12 * 12, 3.0 + 2 * 3 * -6])


# -- grad and value_and_grad ----------------------------------------------------------------------


def test_grad_leaves_dot_grad_alone() -> None:
    x, y, z = leaf([2.0]), leaf([5.0]), leaf([1.0])
    gx, gy, gz = weft.grad((x * y).sum(), [x, y, z])
    for got, want in ((gx, [5.0]), (gy, [2.0]), (gz, [0.0])):
        close(got, want)
    assert x.grad is None and not gx.requires_grad


def test_grad_of_intermediates_and_what_lies_before_them() -> None:
    x = leaf([2.0])
    y = x * x
    z = y * y + x
    gy, gx = weft.grad(z.sum(), [y, x])
    close(gy, [8.0])
    close(gx, [33.0])
    (same,) = weft.grad(z.sum(), [x])
    close(same, [33.0])


def test_value_and_grad() -> None:
    fn = weft.value_and_grad(mlp, argnums=(1, 2))
    value, (gw, gb) = fn(weft.tensor(X), weft.tensor(W), weft.tensor(B))
    theirs = [torch.tensor(a, requires_grad=True) for a in (X, W, B)]
    want = mlp(*theirs)
    want.backward()
    close(value, want)
    close(gw, theirs[1].grad)
    close(gb, theirs[2].grad)
    assert not value.requires_grad
    value, g = weft.value_and_grad(lambda x: (x * x).sum())(weft.tensor([3.0]))
    close(g, [6.0])
    with weft.no_grad():
        close(weft.value_and_grad(lambda x: (x * x).sum())(weft.tensor([3.0]))[1], [6.0])
    with pytest.raises(GradientError, match="argument 0 is not a Tensor"):
        weft.value_and_grad(lambda x: x)(3.0)


def test_value_and_grad_compiles(device: str) -> None:
    fn = weft.value_and_grad(mlp, argnums=(0, 1, 2))
    want, grads = fn(*map(weft.tensor, (X, W, B)))
    got, found = weft.compile(fn, device=device)(X, W, B)
    close(got, want.numpy())
    for g, w in zip(found, grads):
        close(g, w.numpy())


# -- writing under the tape -----------------------------------------------------------------------


def test_in_place_writes_are_recorded() -> None:
    x, v, t = leaf(X), leaf([10.0, 20.0]), torch.tensor(X, requires_grad=True)
    u = torch.tensor([10.0, 20.0], requires_grad=True)
    y, z = x * 2, t * 2
    y[1, 1:3] = v
    z[1, 1:3] = u
    y[[0, 2]] = y[[2, 0]] * 3
    z[[0, 2]] = z[[2, 0]] * 3
    (y * y).sum().backward()
    (z * z).sum().backward()
    close(x.grad, t.grad, 1e-4)
    close(v.grad, u.grad, 1e-4)


def test_writing_into_a_plain_tensor_joins_the_tape() -> None:
    y, v = weft.zeros((3,)), leaf([2.0])
    y[1:2] = v * 3
    (y * y).sum().backward()
    close(v.grad, [36.0])


def test_writing_into_a_leaf_is_refused_and_allowed_under_no_grad() -> None:
    x = leaf([1.0, 2.0])
    with pytest.raises(GradientError, match="no_grad"):
        x[0] = 5.0
    with weft.no_grad():
        x[0] = 5.0
        x.assign(x * 2)
    close(x, [10.0, 4.0])
    assert x.requires_grad
    (x * x).sum().backward()
    close(x.grad, [20.0, 8.0])


# -- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["interp", "vulkan"], indirect=True)
def test_devices_are_not_mixed(device: str) -> None:
    x, w = leaf(X, device), leaf(W)
    with pytest.raises(DeviceError, match="on cpu"):
        x @ w
    y = (x * 2).sum()
    with pytest.raises(DeviceError):
        y.backward(weft.tensor(1.0))
    with pytest.raises(GradientError, match="requires_grad"):
        x.to("cpu").sum().backward()


def test_eager_on_a_device_as_on_the_cpu(device: str) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.layer_norm(x @ w, b, b)
        return (F.gelu(y, approximate="tanh")[[0, 2, 2]] - y[:3]).square().mean()

    ours, want = [leaf(a, device) for a in (X, W, B)], [leaf(a) for a in (X, W, B)]
    loss(*ours).backward()
    loss(*want).backward()
    for t, u in zip(ours, want):
        close(t.grad, u.grad.numpy(), 1e-4)


# -- memory ---------------------------------------------------------------------------------------


def test_four_hundred_backward_passes_keep_nothing() -> None:
    x, w, b = leaf(np.tile(X, (100, 1))), leaf(W), leaf(B)

    def once() -> None:
        mlp(x, w, b).backward()
        x.grad = w.grad = b.grad = None

    for _ in range(4):  # calls are recorded, and then their derivatives
        once()
    gc.collect()
    gc.disable()  # nothing may wait for the cycle collector
    try:
        tracemalloc.start()
        once()
        size, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        for _ in range(400):
            once()
        grown = tracemalloc.get_traced_memory()[0] - size
        more = len(gc.get_objects()) - objects
    finally:
        tracemalloc.stop()
        gc.enable()
    assert more < 10 and grown < 300_000, f"{more} objects, {grown} bytes more"


def test_grad_takes_an_output_or_a_function():
    x, y = weft.tensor([1.0, 2.0], requires_grad=True), weft.tensor([3.0, 4.0])
    assert weft.grad((x * x).sum(), x)[0].tolist() == [2.0, 4.0]
    assert weft.grad(lambda x: (x * x).sum())(y).tolist() == [6.0, 8.0]
    assert weft.grad(lambda x, y: (x * y).sum(), 1)(x.detach(), y).tolist() == [1.0, 2.0]
    assert weft.grad(lambda x: ((x * x).sum(), x), has_aux=True)(y)[1].tolist() == y.tolist()
    for given in ((3.0, [x]), ((x * x).sum(),), ((x * x).sum(), [1.0]), ((x * x).sum(), 3)):
        with pytest.raises(weft.errors.CallError, match="grad"):
            weft.grad(*given)
