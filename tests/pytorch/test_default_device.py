"""Where tensors are made, the names of types, the watch for NaN, and what torch.cuda counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import DeviceError, DTypeError, GradientError, UsageError
from weft.program.device import DeviceInfo

MADE = """torch.zeros(2); torch.ones(2, 3); torch.empty(2); torch.full((2,), 1); torch.arange(3)
torch.arange(3.0); torch.linspace(0, 1, 3); torch.eye(2); torch.rand(2); torch.randn(2, 2)
torch.randint(5, (3,)); torch.randperm(4); torch.tensor([1, 2]); torch.tensor(0.5)
torch.as_tensor([1.0]); torch.scalar_tensor(2.0); torch.tril_indices(3, 3)
torch.zeros(2, dtype=torch.long); torch.normal(0.0, 1.0, (2,)); torch.logspace(0, 1, 3)"""
LINES = [line.strip() for line in MADE.replace("\n", ";").split(";")]


@pytest.mark.parametrize("line", LINES)
def test_a_device_for_calls_that_name_none(line: str) -> None:
    with torch.device("vulkan"):
        made = eval(line, {"torch": torch})
        assert made.device.type == "vulkan" and torch.get_default_device() == "vulkan"
    plain = eval(line, {"torch": torch})
    assert plain.device == "cpu" and made.shape == plain.shape
    width = {"int64": "int32"}.get(plain.dtype.name, plain.dtype.name)  # as everywhere on devices
    assert made.dtype.name == width
    if "rand" not in line and "normal" not in line:
        np.testing.assert_allclose(made.cpu().numpy(), plain.numpy(), rtol=1e-6)


def test_the_default_device() -> None:
    try:
        torch.set_default_device("vulkan")
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        x = torch.ones(4, 2, requires_grad=True)
        assert x.requires_grad and x.is_leaf and x.device.type == "vulkan"
        assert {t.device.type for t in (*net.parameters(), *net.buffers())} == {"vulkan"}
        assert torch.zeros(2, device="cpu").device == "cpu"
        assert torch.zeros_like(torch.zeros(2, device="cpu")).device == "cpu"
        with torch.device("cpu"):
            assert torch.zeros(2).device == "cpu"
        net(x).sum().backward()
        assert x.grad.device.type == "vulkan"
        for wrong in ("nowhere", "meta"):
            with pytest.raises(DeviceError):
                torch.set_default_device(wrong)
        assert torch.get_default_device() == "vulkan"
    finally:
        torch.set_default_device(None)
    assert torch.get_default_device() == "cpu" and torch.zeros(2).device == "cpu"
    assert torch.arange(3, device="vulkan").dtype == torch.int32


KINDS = ["Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"]


@pytest.mark.parametrize("name", [f"{kind}Tensor" for kind in KINDS])
def test_first_names_of_dtypes(name: str) -> None:
    for m in (torch, theirs):
        kind = getattr(m, name)
        x = m.ones(2, 3).type(kind)
        assert x.type() == f"torch.{name}" and x.type(f"torch.{name}").dtype == x.dtype
        assert isinstance(x, kind) and not isinstance(x, m.cuda.FloatTensor)
        assert kind(2, 3).shape == (2, 3) and kind([1, 0]).dtype == x.dtype
        assert kind().shape == (0,)


def test_names_that_are_none() -> None:
    with pytest.raises(DTypeError, match="WideTensor'; expected a dtype or one of Float"):
        torch.ones(2).type("torch.WideTensor")
    with pytest.raises(DeviceError):
        torch.cuda.FloatTensor(2, 3)


@pytest.mark.parametrize("m", [torch, theirs])
def test_variables(m: Any) -> None:
    kind = m.autograd.Variable
    x = m.tensor([1.0, 2.0], requires_grad=True)
    y = kind(x * 2)
    assert not y.requires_grad and y.is_leaf and isinstance(y, kind)
    z = kind(m.FloatTensor(2).fill_(3.0), requires_grad=True)
    (z * z).sum().backward()
    assert z.grad.tolist() == [6.0, 6.0]
    with pytest.raises((UsageError, TypeError)):
        kind([1.0])


def test_a_nan_names_its_op() -> None:
    def run() -> None:
        x = torch.tensor([0.0, 4.0], requires_grad=True)
        (x.sqrt() * 0).sum().backward()

    for _ in range(3):
        run()  # recorded calls are watched too
    with torch.autograd.detect_anomaly():
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        with pytest.raises(GradientError, match=r"through sqrt: .* operand 0 \[2\] has 1 NaN"):
            run()
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            run()
    torch.autograd.set_detect_anomaly(True)
    with pytest.raises(GradientError, match="sqrt"):
        run()
    torch.autograd.set_detect_anomaly(False)
    assert not torch.is_anomaly_enabled()
    run()


def test_counts_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device PyTorch says 0 of what is in use; with one the driver is asked."""
    cuda = torch.cuda
    if not cuda.is_available():
        assert cuda.memory_allocated() == cuda.max_memory_allocated() == 0
        assert theirs.cuda.is_available() or theirs.cuda.memory_allocated() == 0
        with pytest.raises(DeviceError):
            cuda.mem_get_info()

    class Card:
        info = DeviceInfo("cuda", 0, "card", True, memory=1000)
        free_memory = staticmethod(lambda: 400)

    monkeypatch.setattr(cuda.memory, "get", lambda name: Card)
    monkeypatch.setattr(cuda.memory, "opened", lambda name: Card)
    assert cuda.mem_get_info() == (400, 1000) and cuda.memory_allocated(0) == 600
    assert "600 bytes" in cuda.memory_summary()
    cuda.reset_peak_memory_stats()
    with pytest.raises(UsageError, match="counts no peak"):
        cuda.max_memory_allocated()
    with pytest.raises(UsageError, match='device="cuda:1"'):
        cuda.set_device(1)
    cuda.set_device(0)
