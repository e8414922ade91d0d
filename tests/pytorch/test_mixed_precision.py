"""Mixed precision and devices by the names that scripts import."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch

X = np.random.default_rng(2).normal(size=(8, 5)).astype(np.float32)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaled_step(enabled: bool) -> None:
    def run(m: Any, amp: Any) -> list[Any]:
        layer = m.nn.Linear(5, 2)
        layer.load_state_dict({"weight": m.ones(2, 5) / 4, "bias": m.zeros(2)})
        optimizer = m.optim.SGD(layer.parameters(), lr=0.1)
        scaler = amp.GradScaler("cpu", enabled=enabled, init_scale=128.0, growth_interval=1)
        assert scaler.is_enabled() == enabled
        for _ in range(2):
            with amp.autocast("cpu", dtype=m.bfloat16):
                out = layer(m.tensor(X))
                assert out.dtype == m.bfloat16
                loss = out.float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            m.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [layer.weight.detach().numpy(), scaler.get_scale()]

    mine, want = (run(m, importlib.import_module(f"{m.__name__}.amp")) for m in (torch, theirs))
    np.testing.assert_allclose(mine[0], want[0], atol=2e-3)
    assert mine[1:] == want[1:]


def test_an_overflow_skips_the_step() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([p], lr=1.0), torch.cuda.amp.GradScaler(growth_interval=9)
    scaler.scale((p * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [1.0, 1.0] and scaler.get_scale() == 2.0**15
    kept = scaler.state_dict()
    scaler.load_state_dict({**kept, "scale": 4.0})
    assert scaler.get_scale() == 4.0


def test_names_of_devices_and_switches() -> None:
    import weft.torch.backends.cudnn as cudnn
    from weft.torch.cuda.amp import autocast

    cudnn.benchmark = True
    assert torch.backends.cudnn.benchmark and not torch.backends.mps.is_available()
    cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    with autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16
    with autocast(enabled=False):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert torch.cuda.is_available() == (torch.cuda.device_count() > 0)
    torch.cuda.empty_cache(), torch.cuda.synchronize(), torch.cuda.manual_seed_all(3)
    assert torch.initial_seed() == 3 and torch.__version__.split(".") >= ["2"]
    for name in ("float16", "bfloat16", "float32", "int8", "uint8", "int64", "bool"):
        mine, want = getattr(torch, name), getattr(theirs, name)
        for fact in ("is_floating_point", "is_signed", "is_complex", "itemsize"):
            assert getattr(mine, fact) == getattr(want, fact), (name, fact)
