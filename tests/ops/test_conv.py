"""conv and max_pool, their first and second derivatives, against PyTorch in float64; then the
compiled forms on every device against the eager float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradkit import check
from present import opened

import weft
from weft import functional as F, ops
from weft.core.errors import ShapeError

rng = np.random.default_rng(3)
X = rng.standard_normal((2, 4, 7, 6))

CONVS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((3, 4, 3, 3), {}),
    "stride": ((3, 4, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilation": ((3, 4, 2, 3), {"dilation": (3, 2), "padding": 2}),
    "groups": ((6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    "multiplied": ((8, 1, 3, 3), {"groups": 4, "padding": 1}),
    "pointwise": ((5, 4, 1, 1), {}),
    "whole": ((5, 4, 7, 6), {}),
}
POOLS: dict[str, dict[str, Any]] = {
    "halves": {"kernel_size": 2},
    "overlap": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilation": {"kernel_size": 2, "stride": 1, "dilation": (2, 3)},
}


@pytest.mark.parametrize("name", CONVS)
def test_conv2d_is_pytorchs_twice_differentiated(name: str) -> None:
    shape, options = CONVS[name]
    kernel = rng.standard_normal(shape)

    def theirs() -> tuple[Any, ...]:
        x, w = (torch.tensor(v, requires_grad=True) for v in (X, kernel))
        y = torch.nn.functional.conv2d(x, w, **options)
        dx, dw = torch.autograd.grad((y * y).sum(), (x, w), create_graph=True)
        return y, dx, dw, *torch.autograd.grad((dx * dw.sum()).sum(), (x, w))

    x, w = (weft.tensor(v, requires_grad=True) for v in (X, kernel))
    y = F.conv2d(x, w, **options)
    dx, dw = weft.grad((y * y).sum(), [x, w], create_graph=True)
    got = (y, dx, dw, *weft.grad((dx * dw.sum()).sum(), [x, w]))
    for a, b in zip(got, theirs(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["stride", "groups", "depthwise", "pool"])
def test_against_differences(name: str) -> None:
    x = X[:1, :, :5, :4]
    if name == "pool":
        at = {"kernel": (2, 2), "stride": (1, 2), "padding": ((0, 0),) * 2, "dilation": (1, 1)}
        check(lambda x: ops.call("max_pool", x, **at), x)
        return
    plain = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    params = {
        "stride": plain | {"stride": (2, 1), "padding": ((1, 1), (0, 1))},
        "groups": plain | {"groups": 2},
    }
    w = rng.standard_normal((4, 1 if name == "depthwise" else 4 // (1 + (name == "groups")), 2, 2))
    check(lambda *v: ops.call("conv", *v, **params.get(name, plain | {"groups": 4})), x, w)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_max_pool2d_is_pytorchs(name: str, ties: bool) -> None:
    data = np.round(X) if ties else X
    weight = None
    results = []
    for tensor, pool in (
        (torch.tensor, torch.nn.functional.max_pool2d),
        (weft.tensor, F.max_pool2d),
    ):
        x = tensor(data, requires_grad=True)
        y = pool(x, **POOLS[name])
        weight = rng.standard_normal(y.shape) if weight is None else weight
        (y * tensor(weight)).sum().backward()
        results.append((y.detach().numpy(), x.grad.numpy()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_max_pool2d_of_nan_and_infinity() -> None:
    x = np.full((1, 1, 2, 4), -np.inf, np.float32)
    x[0, 0, 0, 3] = np.nan
    y = F.max_pool2d(weft.tensor(x), 2).numpy()
    assert y[0, 0, 0, 0] == -np.inf and np.isnan(y[0, 0, 0, 1])


@pytest.mark.parametrize("device", ["cpu", "interp", "vulkan"])
@pytest.mark.parametrize("name", ["stride", "groups", "depthwise", "pool", "average"])
def test_devices_agree(name: str, device: str) -> None:
    kernel = rng.standard_normal(CONVS.get(name, ((1,), {}))[0])

    def run(x: weft.Tensor, w: weft.Tensor) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        if name in CONVS:
            y = F.conv2d(x, w, **CONVS[name][1])
        elif name == "pool":
            y = F.max_pool2d(x, **POOLS["overlap"]) * w
        else:
            y = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) * w
        (y * y).sum().backward()
        return y, x.grad, w.grad

    given = [weft.tensor(v.astype(np.float32)) for v in (X, kernel)]
    want = run(*given)
    got = weft.compile(run, opened(device))(*given)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=2e-4)


def test_wrong_shapes_are_named() -> None:
    x = weft.tensor(X.astype(np.float32))
    with pytest.raises(ShapeError, match="expected \\[N, C, H, W\\]"):
        F.conv2d(x, weft.zeros((3, 3, 3, 3)))
    with pytest.raises(ShapeError, match="a window of 13 does not fit 7"):
        F.conv2d(x, weft.zeros((3, 4, 3, 3)), dilation=6)
    with pytest.raises(ShapeError, match="half the kernel"):
        F.max_pool2d(x, 2, padding=2)
    with pytest.raises(ShapeError, match="to \\[0, 2\\] windows"):
        F.adaptive_avg_pool2d(x, (0, 2))
    with pytest.raises(weft.errors.UsageError, match="one integer or two"):
        F.max_pool2d(x, (2, 2, 2))
