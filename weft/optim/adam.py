"""Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019), with PyTorch's formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.tensor.core import Tensor


def check_options(opt: Optimizer) -> None:
    """Raises UsageError for betas, eps or weight_decay out of their range."""
    for group in opt.groups:
        ok = all(0.0 <= b < 1.0 for b in group["betas"]) and len(group["betas"]) == 2
        if not ok or not group["eps"] >= 0 or not group["weight_decay"] >= 0:
            raise UsageError(
                f"{type(opt).__name__}: betas {group['betas']} (two of 0 <= b < 1), eps "
                f"{group['eps']} and weight_decay {group['weight_decay']} (>= 0)"
            )


def correction(beta: float, steps: Tensor) -> Tensor:
    """1 - beta^steps in float32, exact to the last bits also where beta^steps is close to 1:
    1 - exp(z) = -2 u / (1 - u) with u = tanh(z / 2)."""
    if beta == 0.0:
        return steps * 0.0 + 1.0
    u = (steps * (0.5 * math.log(beta))).tanh()
    return u * -2.0 / (1.0 - u)


class Adam(Optimizer):
    """Steps of lr times mean gradient over root mean square gradient, both bias-corrected;
    `weight_decay` is added to the gradient (L2). Defaults are PyTorch's. Raises UsageError for
    options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, -0.5]
    """

    SLOTS = ("exp_avg", "exp_avg_sq")
    DECOUPLED = False

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        amsgrad: bool = False, maximize: bool = False,
    ):  # fmt: skip
        options = {
            "betas": tuple(betas), "eps": float(eps), "weight_decay": float(weight_decay),
            "amsgrad": bool(amsgrad), "maximize": bool(maximize),
        }  # fmt: skip
        super().__init__(params, lr, options)
        check_options(self)

    def _slots(self, group: Group) -> tuple[str, ...]:
        return (*self.SLOTS, "max_exp_avg_sq") if group["amsgrad"] else self.SLOTS

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        beta1, beta2 = group["betas"]
        decay, eps = group["weight_decay"], group["eps"]
        steps = (self.count + 1).cast(dt.float32)
        size = lr / correction(beta1, steps)
        root = correction(beta2, steps).rsqrt()
        kept = 1.0 - lr * decay

        def update(
            p: Tensor, g: Tensor, size: Tensor, root: Tensor, kept: Tensor, *state: Tensor
        ) -> tuple[Tensor, ...]:
            g = -g if group["maximize"] else g
            if decay and not self.DECOUPLED:
                g = g + p * decay
            mean = state[0] + (g - state[0]) * (1.0 - beta1)
            square = state[1] * beta2 + g * g * (1.0 - beta2)
            new = [mean, square, *(x.maximum(square) for x in state[2:])]
            if decay and self.DECOUPLED:
                p = p * kept
            return (p - mean / (new[-1].sqrt() * root + eps) * size, *new)

        self._each(group, update, (size, root, kept), write)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly: p (1 - lr weight_decay).

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.AdamW([w], lr=0.5, weight_decay=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> [round(x, 3) for x in w.tolist()]
    [0.25, -0.25]
    """

    DECOUPLED = True

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
        amsgrad: bool = False, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize)
