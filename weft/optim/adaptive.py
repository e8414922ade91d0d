"""RMSprop, Adagrad and Adadelta, with PyTorch's formulas: steps over a root of squared gradients
without Adam's correction of their mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.tensor.core import Tensor


class _Decayed(Optimizer):
    """An optimiser with `weight_decay` added to the gradient and `maximize`."""

    def __init__(self, params: Iterable[Any], lr: float | Schedule, options: dict[str, Any]):
        super().__init__(params, lr, options)
        for group in self.groups:
            for name, value in group._options.items():
                if isinstance(value, float) and not value >= 0:
                    raise UsageError(f"{type(self).__name__}: {name}={value}; expected >= 0")
            for name in ("alpha", "rho"):
                if name in group._options and not group[name] < 1:
                    raise UsageError(f"{type(self).__name__}: {name}={group[name]}; expected < 1")

    def _decayed(self, group: Group) -> Iterable[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        for p, g, state in self._gradients(group):
            g = -g if group["maximize"] else g
            yield p, g + p * group["weight_decay"] if group["weight_decay"] else g, state


class RMSprop(_Decayed):
    """Steps of lr times gradient over root mean square gradient (Tieleman and Hinton 2012); with
    `centered` over the deviation. Raises UsageError for options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.RMSprop([w], lr=0.01)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> [round(x, 3) for x in w.tolist()]
    [0.9, -0.9]
    """

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-2, alpha: float = 0.99,
        eps: float = 1e-8, weight_decay: float = 0.0, momentum: float = 0.0,
        centered: bool = False, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "alpha": float(alpha), "eps": float(eps), "weight_decay": float(weight_decay),
            "momentum": float(momentum), "centered": bool(centered), "maximize": bool(maximize),
        })  # fmt: skip

    def _slots(self, group: Group) -> tuple[str, ...]:
        more = ("momentum_buffer",) if group["momentum"] else ()
        return ("square_avg", *more, *(("grad_avg",) if group["centered"] else ()))

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        alpha, momentum = group["alpha"], group["momentum"]
        for p, g, state in self._decayed(group):
            square = write(state["square_avg"], state["square_avg"] * alpha + g * g * (1.0 - alpha))
            if group["centered"]:
                mean = state["grad_avg"] + (g - state["grad_avg"]) * (1.0 - alpha)
                mean = write(state["grad_avg"], mean)
                square = square - mean * mean
            step = g / (square.sqrt() + group["eps"])
            if momentum:
                step = write(state["momentum_buffer"], state["momentum_buffer"] * momentum + step)
            write(state["param"], p - step * lr)


class Adagrad(_Decayed):
    """Steps of lr times gradient over the root of all squared gradients so far (Duchi, Hazan and
    Singer 2011). Raises UsageError for options out of their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.Adagrad([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, -0.5]
    """

    SLOTS = ("sum",)

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-2, lr_decay: float = 0.0,
        weight_decay: float = 0.0, initial_accumulator_value: float = 0.0, eps: float = 1e-10,
        maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "lr_decay": float(lr_decay), "weight_decay": float(weight_decay),
            "initial_accumulator_value": float(initial_accumulator_value), "eps": float(eps),
            "maximize": bool(maximize),
        })  # fmt: skip

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        rate = lr / (self.count.cast(dt.float32) * group["lr_decay"] + 1.0)
        for p, g, state in self._decayed(group):
            total = write(state["sum"], state["sum"] + g * g)
            root = (total + group["initial_accumulator_value"]).sqrt() + group["eps"]
            write(state["param"], p - g / root * rate)


class Adadelta(_Decayed):
    """Steps whose size follows earlier steps' over gradients' (Zeiler, arXiv:1212.5701). Raises
    UsageError for options out of their range.

    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> opt = optim.Adadelta([w])
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> round(w.item(), 4)
    0.9968
    """

    SLOTS = ("square_avg", "acc_delta")

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1.0, rho: float = 0.9,
        eps: float = 1e-6, weight_decay: float = 0.0, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "rho": float(rho), "eps": float(eps), "weight_decay": float(weight_decay),
            "maximize": bool(maximize),
        })  # fmt: skip

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        rho, eps = group["rho"], group["eps"]
        for p, g, state in self._decayed(group):
            square = state["square_avg"] * rho + g * g * (1.0 - rho)
            square = write(state["square_avg"], square)
            delta = (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * g
            write(state["acc_delta"], state["acc_delta"] * rho + delta * delta * (1.0 - rho))
            write(state["param"], p - delta * lr)
