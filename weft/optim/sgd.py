"""Stochastic gradient descent with momentum (Sutskever et al. 2013), with PyTorch's formulas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.tensor.core import Tensor


class SGD(Optimizer):
    """p - lr g, where g may be a running sum: buffer = momentum buffer + (1 - dampening) g (the
    first time g itself). `weight_decay` is added to the gradient (L2). Raises UsageError for
    options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.SGD([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, -0.5]
    """

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-3, momentum: float = 0.0,
        dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
        maximize: bool = False,
    ):  # fmt: skip
        options = {
            "momentum": float(momentum), "dampening": float(dampening),
            "weight_decay": float(weight_decay), "nesterov": bool(nesterov),
            "maximize": bool(maximize),
        }  # fmt: skip
        super().__init__(params, lr, options)
        for group in self.groups:
            if not (group["momentum"] >= 0 and group["weight_decay"] >= 0):
                raise UsageError(
                    f"SGD: momentum {group['momentum']}, weight_decay {group['weight_decay']}; "
                    "both are at least 0"
                )
            if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"]):
                raise UsageError("SGD: nesterov needs a momentum and no dampening")

    def _slots(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        momentum, decay = group["momentum"], group["weight_decay"]
        share: Any = 1.0 - group["dampening"]
        if momentum and share != 1.0:
            share = (self.count == 0).where(1.0, self.count.cast(dt.float32) * 0.0 + share)
        beside = (lr,) if isinstance(share, float) else (lr, share)

        def update(p: Tensor, g: Tensor, lr: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            g = -g if group["maximize"] else g
            g = g + p * decay if decay else g
            if not momentum:
                return (p - g * lr,)
            *shares, before = others
            buffer = before * momentum + (g * shares[0] if shares else g)
            g = g + buffer * momentum if group["nesterov"] else buffer
            return p - g * lr, buffer

        self._each(group, update, beside, write)
