"""A small least-squares problem, fitted by an optimizer of weft's or of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import weft
from weft import optim

rng = np.random.default_rng(5)
START = {
    "weight": rng.standard_normal((4, 3)).astype(np.float32),
    "bias": rng.standard_normal(4).astype(np.float32),
}
X = rng.standard_normal((20, 6, 3)).astype(np.float32)
Y = rng.standard_normal((20, 6, 4)).astype(np.float32)


def theirs(make: Callable[[list[Any]], Any], clip: float | None = None) -> list[dict[str, Any]]:
    """Parameters after each step of PyTorch."""
    params = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in START.items()}
    opt, out = make(list(params.values())), []
    for x, y in zip(X, Y):
        opt.zero_grad()
        pred = torch.tensor(x) @ params["weight"].T + params["bias"]
        (pred - torch.tensor(y)).square().mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
        opt.step()
        out.append({k: p.detach().numpy().copy() for k, p in params.items()})
    return out


class Ours:
    """The same problem in weft, on a device, compiled or not."""

    def __init__(
        self, make: Callable[[list[Any]], optim.Optimizer], device: str = "cpu",
        compiled: bool = True, clip: float | None = None,
    ):  # fmt: skip
        self.params = {
            k: weft.tensor(v, name=k, device=device, requires_grad=True) for k, v in START.items()
        }
        self.opt, self.clip, self.device = make(list(self.params.values())), clip, device
        self.run = weft.compile(self.step, device) if compiled else self.step

    def step(self, x: Any, y: Any) -> Any:
        pred = x @ self.params["weight"].T + self.params["bias"]
        loss = (pred - y).square().mean()
        loss.backward()
        if self.clip is not None:
            optim.clip_grad_norm(self.params.values(), self.clip)
        self.opt.step()
        self.opt.zero_grad()
        return loss

    def steps(self, first: int = 0, last: int = 20) -> list[dict[str, np.ndarray]]:
        out = []
        for x, y in zip(X[first:last], Y[first:last]):
            self.run(*(weft.tensor(v, device=self.device) for v in (x, y)))
            out.append({k: p.numpy().copy() for k, p in self.params.items()})
        return out


def same(ours: list[dict[str, Any]], want: list[dict[str, Any]], tol: float = 2e-5) -> None:
    for step, (a, b) in enumerate(zip(ours, want, strict=True)):
        for name in START:
            np.testing.assert_allclose(a[name], b[name], atol=tol, rtol=tol, err_msg=f"step {step}")
