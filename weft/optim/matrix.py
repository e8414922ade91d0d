"""Lion, whose steps are signs, and Muon, whose steps are orthogonal matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.tensor.core import Tensor


class Lion(Optimizer):
    """Steps of lr times the sign of a momentum (Chen et al., arXiv:2302.06675); `weight_decay`
    shrinks the parameters directly. Raises UsageError for options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.Lion([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.75, -0.75]
    """

    SLOTS = ("exp_avg",)

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0,
    ):  # fmt: skip
        options = {"betas": tuple(betas), "weight_decay": float(weight_decay)}
        super().__init__(params, lr, options)
        for group in self.groups:
            ok = all(0.0 <= b < 1.0 for b in group["betas"]) and len(group["betas"]) == 2
            if not ok or not group["weight_decay"] >= 0:
                raise UsageError(
                    f"Lion: betas {group['betas']} (two of 0 <= b < 1) and weight_decay "
                    f"{group['weight_decay']} (>= 0)"
                )

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        beta1, beta2 = group["betas"]
        for p, g, state in self._gradients(group):
            mean = state["exp_avg"]
            way = (mean * beta1 + g * (1.0 - beta1)).sign()
            write(mean, mean * beta2 + g * (1.0 - beta2))
            kept = p * (1.0 - lr * group["weight_decay"]) if group["weight_decay"] else p
            write(state["param"], kept - way * lr)


class Muon(Optimizer):
    """Steps of lr times the nearest orthogonal matrix to a momentum, found by Newton and Schulz's
    iteration (Jordan et al. 2024), for parameters that are matrices. `adjust_lr_fn`: "original"
    scales the step of [M, N] by sqrt(max(1, M / N)), "match_rms_adamw" by 0.2 sqrt(max(M, N)).
    PyTorch's formulas; it iterates in bfloat16, this in float32. Raises ShapeError for parameters
    that are not matrices, UsageError for options out of their range.

    >>> w = weft.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> opt = optim.Muon([w], lr=0.5, weight_decay=0.0)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> abs(w[0, 0].item() - 0.5) < 0.2
    True
    """

    SLOTS = ("momentum_buffer",)

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-3, weight_decay: float = 0.1,
        momentum: float = 0.95, nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "weight_decay": float(weight_decay), "momentum": float(momentum),
            "nesterov": bool(nesterov), "ns_coefficients": tuple(ns_coefficients),
            "eps": float(eps), "ns_steps": int(ns_steps), "adjust_lr_fn": adjust_lr_fn,
        })  # fmt: skip
        for group in self.groups:
            if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
                raise UsageError(
                    f'Muon: adjust_lr_fn {adjust_lr_fn!r}; "original" or "match_rms_adamw"'
                )
            if not (0 <= group["momentum"] < 1 and group["ns_steps"] >= 1):
                raise UsageError(
                    f"Muon: momentum {group['momentum']} (0 <= m < 1), ns_steps "
                    f"{group['ns_steps']} (>= 1)"
                )
            for name, p in group.params:
                if p.ndim != 2:
                    raise ShapeError(f"Muon: {name} is {list(p.shape)}; give matrices alone")

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        momentum = group["momentum"]
        for p, g, state in self._gradients(group):
            mean = state["momentum_buffer"]
            mean = write(mean, mean + (g - mean) * (1.0 - momentum))
            way = g + (mean - g) * momentum if group["nesterov"] else mean
            rows, columns = p.shape
            size = (max(1.0, rows / max(columns, 1))) ** 0.5
            if group["adjust_lr_fn"] == "match_rms_adamw":
                size = 0.2 * max(rows, columns) ** 0.5
            kept = p * (1.0 - lr * group["weight_decay"])
            write(state["param"], kept - _orthogonal(way, group) * (lr * size))


def _orthogonal(x: Tensor, group: Group) -> Tensor:
    """Returns a matrix with the singular vectors of x and values near 1."""
    a, b, c = group["ns_coefficients"]
    tall = x.shape[0] > x.shape[1]
    y = (x.mT if tall else x).cast(dt.float32)
    y = y / (y * y).sum().sqrt().maximum(group["eps"])
    for _ in range(group["ns_steps"]):
        gram = y @ y.mT
        y = y * a + (gram * b + gram @ gram * c) @ y
    return y.mT if tall else y
