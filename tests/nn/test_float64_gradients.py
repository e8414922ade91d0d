"""Gradients of small nets beside PyTorch's float64: no further from it than PyTorch's float32 is.

Nets with batch norm over few numbers amplify rounding, so the yardstick is PyTorch's own error. A
ReLU at zero or a maximum of two equal numbers has another derivative on each side: there two right
kernels differ in a thousandth of a whole gradient. The test asks float64 that none is near one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
import weft.torch as ours

SIZE, BATCH = 16, 4


def _net(t: Any, smooth: bool) -> Any:
    """A stem, an inverted bottleneck with squeeze and excite, grouped and shuffled channels."""
    nn, act = t.nn, t.nn.SiLU if smooth else t.nn.ReLU

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Sequential(nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), act())
            self.deep = nn.Sequential(
                nn.Conv2d(24, 24, 3, 1, 1, groups=24, bias=False), nn.BatchNorm2d(24), act()
            )
            self.squeeze = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 6, 1), act(), nn.Conv2d(6, 24, 1),
                nn.Sigmoid(),
            )  # fmt: skip
            self.back = nn.Sequential(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8))

        def forward(self, x: Any) -> Any:
            y = self.deep(self.wide(x))
            return x + self.back(y * self.squeeze(y))

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), act(), Block(),
        nn.AvgPool2d(2) if smooth else nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, 2, 1, groups=4),
        nn.ChannelShuffle(4), nn.BatchNorm2d(16), act(), nn.Flatten(), nn.Linear(256, 5),
    )  # fmt: skip


def _gradients(t: Any, net: Any, x: np.ndarray, y: np.ndarray, dtype: Any) -> list[Any]:
    t.nn.functional.cross_entropy(net(t.tensor(x, dtype=dtype)), t.tensor(y)).backward()
    return [p.grad for p in net.parameters()]


def _margin(net: Any, x: np.ndarray) -> float:
    """The distance of the net's nearest choice from a tie."""
    margins: list[float] = []

    def look(layer: Any, given: Any, made: Any) -> None:
        a = given[0].detach()
        if isinstance(layer, torch.nn.ReLU):
            margins.append(a.abs().min().item())
        else:
            n, c, h, w = a.shape
            cells = a.reshape(n, c, h // 2, 2, w // 2, 2).transpose(3, 4).reshape(-1, 4)
            top = cells.topk(2).values
            margins.append((top[:, 0] - top[:, 1]).min().item())

    for layer in net.modules():
        if isinstance(layer, torch.nn.ReLU | torch.nn.MaxPool2d):
            layer.register_forward_hook(look)
    net(torch.tensor(x))
    return min(margins, default=1.0)


@pytest.mark.parametrize("smooth", [True, False])
def test_gradients_are_as_near_float64_as_pytorchs(smooth: bool) -> None:
    seeds = (seed for seed in range(200) if smooth or _margin(*_case(seed, smooth)) > 3e-6)
    seed = next(seeds)
    exact, x = _case(seed, smooth)
    y = np.random.default_rng(seed).integers(0, 5, BATCH)
    weights = {k: v.numpy().copy() for k, v in exact.state_dict().items()}
    single = _net(torch, smooth)
    single.load_state_dict({k: torch.tensor(v).to(single.state_dict()[k].dtype)
                            for k, v in weights.items()})  # fmt: skip
    want = [g.numpy() for g in _gradients(torch, exact, x, y, torch.float64)]
    theirs = _gradients(torch, single, x, y, torch.float32)

    def mine(device: str | None) -> list[Any]:
        net = _net(ours, smooth)
        net.load_state_dict({k: ours.tensor(v.astype(np.float32 if v.dtype.kind == "f" else "i8"))
                             for k, v in weights.items()})  # fmt: skip
        if device is None:
            return _gradients(ours, net, x, y, ours.float32)

        @weft.compile(device=device)
        def step(x: Any, y: Any) -> Any:
            ours.nn.functional.cross_entropy(net(x), y).backward()
            return [p.grad for p in net.parameters()]

        return list(step(ours.tensor(x.astype(np.float32)), ours.tensor(y.astype(np.int32))))

    def far(found: list[Any]) -> float:
        """The relative distance of all gradients together."""
        apart = sum(((np.asarray(g.numpy(), float) - e) ** 2).sum() for g, e in zip(found, want))
        return float(np.sqrt(apart / sum((e**2).sum() for e in want)))

    limit = 4 * far(theirs)
    assert limit < 1e-5
    for device in (None, "cpu"):
        assert far(mine(device)) < limit, device


def _case(seed: int, smooth: bool) -> tuple[Any, np.ndarray]:
    """The net in float64, with weights that float32 holds, and its input."""
    torch.manual_seed(seed)
    net = _net(torch, smooth).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p.float())
    x = np.random.default_rng(seed).standard_normal((BATCH, 3, SIZE, SIZE)).astype(np.float32)
    return net, x.astype(np.float64)
