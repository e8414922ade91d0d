"""BatchNorm of narrow floats: it trains, and its statistics stay float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft import nn

F = weft.functional
RNG = np.random.default_rng(5)
DTYPES = {"float16": (weft.float16, torch.float16), "bfloat16": (weft.bfloat16, torch.bfloat16)}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(16, 3), (8, 3, 5), (4, 3, 5, 6)])
@pytest.mark.parametrize("name", DTYPES)
def test_trains(name: str, shape: tuple[int, ...], compiled: bool) -> None:
    """Statistics are those of PyTorch's float32 module that is shown the same narrow numbers."""
    dtype, narrow = DTYPES[name]
    kind = "BatchNorm2d" if len(shape) == 4 else "BatchNorm1d"
    layer, reference = getattr(nn, kind)(3).to(dtype), getattr(torch.nn, kind)(3)
    assert layer.weight.dtype == dtype and layer.running_var.dtype == weft.float32
    opt = weft.optim.SGD(layer.parameters(), lr=0.1)

    def step(x: weft.Tensor) -> weft.Tensor:
        out = layer(x)
        (out * out * out).mean().backward()
        opt.step()
        opt.zero_grad()
        return out

    run = weft.compile(step, device="cpu") if compiled else step
    for i in range(4):
        x = torch.tensor(RNG.normal(size=shape) * 3 + i).to(narrow)
        with torch.no_grad():  # parameters are compared by the layer's own tests
            reference.weight.copy_(torch.tensor(layer.weight.cast("float32").numpy()))
            reference.bias.copy_(torch.tensor(layer.bias.cast("float32").numpy()))
            want = reference(x.float())
        before = layer.bias.cast("float32").numpy()
        got = run(weft.tensor(x))
        assert got.dtype == dtype
        bits = 8 if name == "bfloat16" else 11
        far = np.abs(got.cast("float32").numpy() - want.numpy())
        assert (far <= 2.0**-bits * np.abs(want.numpy()) * 1.05 + 1e-5).all()
        assert (layer.bias.cast("float32").numpy() != before).all()
    mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
    np.testing.assert_allclose(mean, reference.running_mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, reference.running_var.numpy(), rtol=1e-5)
    layer.eval(), reference.eval()
    x = torch.tensor(RNG.normal(size=shape)).to(narrow)
    with torch.no_grad():
        reference.weight.copy_(torch.tensor(layer.weight.cast("float32").numpy()))
        reference.bias.copy_(torch.tensor(layer.bias.cast("float32").numpy()))
        want = reference(x.float()).numpy()
    got = layer(weft.tensor(x)).cast("float32").numpy()
    np.testing.assert_allclose(got, want, rtol=2.0 ** -(bits - 1), atol=1e-2)


def test_statistics_of_narrow_dtypes_are_taken_too() -> None:
    """Buffers that somebody holds in 16 bits are moved and read, computed in float32."""
    mean, var = weft.zeros(3, "bf16"), weft.ones(3, "bf16")
    x = weft.tensor(RNG.normal(size=(8, 3)), dtype="bf16")
    F.batch_norm(x, mean, var, training=True)
    wide = x.cast("float32").numpy()
    np.testing.assert_allclose(mean.cast("float32").numpy(), wide.mean(0) * 0.1, rtol=1e-2)
    got = F.batch_norm(x, mean, var, eps=1e-5)
    m, v = (t.cast("float32").numpy() for t in (mean, var))
    np.testing.assert_allclose(
        got.cast("float32").numpy(), (wide - m) / np.sqrt(v + 1e-5), rtol=2.0**-8, atol=1e-6
    )


def test_small_moves_are_not_lost() -> None:
    """A mean of 1 approached from 0.99 in steps of a tenth: bfloat16 would stand still."""
    layer = nn.BatchNorm1d(1).to(weft.bfloat16)
    layer.running_mean.assign(weft.full((1,), 0.99))
    x = weft.ones((4, 1), "bf16")
    for _ in range(40):
        layer(x)
    assert abs(layer.running_mean.item() - 1.0) < 2e-4


def test_state_dicts_and_devices() -> None:
    layer = nn.BatchNorm1d(3).to(weft.bfloat16)
    state = torch.nn.BatchNorm1d(3).bfloat16().state_dict()
    layer.load_state_dict(state)
    assert layer.running_mean.dtype == weft.float32
    assert layer.state_dict()["running_var"].dtype == np.float32
    assert layer.to(weft.float32).weight.dtype == weft.float32
