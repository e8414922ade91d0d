"""Adamax, NAdam and RAdam, with PyTorch's formulas: Adam with another size of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.optim.adam import check_options, correction
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.tensor.core import Tensor


class _AdamKind(Optimizer):
    """The options that they share, and the gradient with the decay of weights."""

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule, betas: tuple[float, float], eps: float,
        weight_decay: float, maximize: bool, **more: Any,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "betas": tuple(betas), "eps": float(eps), "weight_decay": float(weight_decay),
            "maximize": bool(maximize), **more,
        })  # fmt: skip
        check_options(self)

    def _decayed(
        self, group: Group, lr: Tensor
    ) -> Iterable[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        decay = group["weight_decay"]
        for p, g, state in self._gradients(group):
            g = -g if group["maximize"] else g
            if decay and group._options.get("decoupled_weight_decay"):
                p = p * (1.0 - lr * decay)
            elif decay:
                g = g + p * decay
            yield p, g, state

    def _mean(self, g: Tensor, state: dict[str, Tensor], beta: float, write: Write) -> Tensor:
        mean = state["exp_avg"]
        return write(mean, mean + (g - mean) * (1.0 - beta))

    def _square(self, g: Tensor, state: dict[str, Tensor], beta: float, write: Write) -> Tensor:
        square = state["exp_avg_sq"]
        return write(square, square * beta + g * g * (1.0 - beta))


class Adamax(_AdamKind):
    """Adam over the largest of the decayed gradients (Kingma and Ba 2015, section 7.1). Raises
    UsageError for options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.Adamax([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> [round(x, 3) for x in w.tolist()]
    [0.5, -0.5]
    """

    SLOTS = ("exp_avg", "exp_inf")

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, maximize)

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        beta1, beta2 = group["betas"]
        rate = lr / correction(beta1, (self.count + 1).cast(dt.float32))
        for p, g, state in self._decayed(group, lr):
            mean = self._mean(g, state, beta1, write)
            largest = (state["exp_inf"] * beta2).maximum(g.abs() + group["eps"])
            write(state["param"], p - mean / write(state["exp_inf"], largest) * rate)


class NAdam(_AdamKind):
    """Adam with Nesterov's momentum (Dozat 2016). Raises UsageError for options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.NAdam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> [round(x, 2) for x in w.tolist()]
    [0.45, -0.45]
    """

    SLOTS = ("exp_avg", "exp_avg_sq", "momentum_lost")  # the last is 1 - the product of momenta

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, maximize, momentum_decay=float(momentum_decay),
            decoupled_weight_decay=bool(decoupled_weight_decay),
        )  # fmt: skip
        for group in self.groups:
            if not group["momentum_decay"] >= 0:
                raise UsageError(f"NAdam: momentum_decay {group['momentum_decay']}; give >= 0")

    def _shape(self, slot: str, p: Tensor) -> tuple[int, ...]:
        return () if slot == "momentum_lost" else p.shape

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        beta1, beta2 = group["betas"]
        steps = (self.count + 1).cast(dt.float32)
        speed = group["momentum_decay"] * math.log(0.96)
        now, after = (
            (((steps + ahead) * speed).exp() * -0.5 + 1.0) * beta1 for ahead in (0.0, 1.0)
        )
        root = correction(beta2, steps).sqrt()
        for p, g, state in self._decayed(group, lr):
            mean = self._mean(g, state, beta1, write)
            below = self._square(g, state, beta2, write).sqrt() / root + group["eps"]
            kept = (1.0 - state["momentum_lost"]) * now
            lost = write(state["momentum_lost"], 1.0 - kept)
            p = p - g / below * (lr * (1.0 - now) / lost)
            write(state["param"], p - mean / below * (lr * after / (1.0 - kept * after)))


class RAdam(_AdamKind):
    """Adam whose first steps are those of momentum, until the variance of the squares is tractable
    (Liu et al., arXiv:1908.03265). Raises UsageError for options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.RAdam([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> [round(x, 3) for x in w.tolist()]
    [0.8, -0.8]
    """

    SLOTS = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, maximize,
            decoupled_weight_decay=bool(decoupled_weight_decay),
        )  # fmt: skip

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        beta1, beta2 = group["betas"]
        steps = (self.count + 1).cast(dt.float32)
        first, second = correction(beta1, steps), correction(beta2, steps)
        most = 2.0 / (1.0 - beta2) - 1.0
        length = most - steps * 2.0 * (1.0 - second) / second
        tractable = length > 5.0
        long = tractable.where(length, most)
        factor = (
            (long - 4.0) * (long - 2.0) * most / ((most - 4.0) * (most - 2.0) * long) * second
        ).sqrt()
        for p, g, state in self._decayed(group, lr):
            mean = self._mean(g, state, beta1, write) / first
            root = self._square(g, state, beta2, write).sqrt() + group["eps"]
            write(state["param"], p - tractable.where(mean * factor / root, mean) * lr)
