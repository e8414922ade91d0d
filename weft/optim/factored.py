"""Adafactor, which keeps a row and a column in the place of a matrix, and two older methods:
averaged and resilient gradient descent. The formulas are PyTorch's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.tensor.core import Tensor

_EPS = {dt.float16: 2.0**-10, dt.bfloat16: 2.0**-7, dt.float32: 2.0**-23, dt.float64: 2.0**-52}


class Adafactor(Optimizer):
    """Adam's second moments as the product of a row and a column (Shazeer and Stern,
    arXiv:1804.04235): for a matrix [M, N] it keeps M + N numbers. The step is relative to the size
    of the parameter, at least eps[1], and clipped to `d`. Raises UsageError for options out of
    their range.

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.Adafactor([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.75, -0.75]
    """

    SLOTS = ("row_var", "col_var")

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
        maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "beta2_decay": float(beta2_decay), "eps": tuple(eps), "d": float(d),
            "weight_decay": float(weight_decay), "maximize": bool(maximize),
        })  # fmt: skip
        for group in self.groups:
            decay = group["weight_decay"]
            if not (group["beta2_decay"] <= 0 and group["d"] >= 1 and decay >= 0):
                raise UsageError(
                    f"Adafactor: beta2_decay {group['beta2_decay']} (<= 0), d {group['d']} (>= 1), "
                    f"weight_decay {decay} (>= 0)"
                )

    def _shape(self, slot: str, p: Tensor) -> tuple[int, ...]:
        if p.ndim < 2:  # the moments themselves
            return p.shape if slot == "row_var" else (0,)
        return (*p.shape[:-1], 1) if slot == "row_var" else (*p.shape[:-2], 1, p.shape[-1])

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        step = self.count.cast(dt.float32) + 1.0
        share = step ** group["beta2_decay"]
        rate = lr.minimum(step**-0.5)
        for p, g, state in self._gradients(group):
            g = -g if group["maximize"] else g
            least = group["eps"][0]
            least = _EPS[state["param"].dtype] if least is None else least
            alpha = _rms(p).maximum(group["eps"][1]) * rate
            kept = p * (1.0 - lr * group["weight_decay"]) if group["weight_decay"] else p
            moments = self._moments(g, state, share, least, write)
            way = g / moments.maximum(least * least).sqrt()
            way = way / (_rms(way) / group["d"]).maximum(1.0)
            write(state["param"], kept - way * alpha)

    def _moments(
        self, g: Tensor, state: dict[str, Tensor], share: Tensor, least: float, write: Write
    ) -> Tensor:
        row, square = state["row_var"], g * g
        if g.ndim < 2:
            return write(row, row + (square - row) * share)
        column = state["col_var"]
        row = write(row, row + (square.mean(-1, keepdims=True) - row) * share)
        column = write(column, column + (square.mean(-2, keepdims=True) - column) * share)
        return row * column / row.mean(-2, keepdims=True).maximum(least)


def _rms(x: Tensor) -> Tensor:
    return (x * x).mean().sqrt()


class ASGD(Optimizer):
    """Gradient descent whose steps shrink, and the average of the parameters from step t0 on in
    the state "ax" (Polyak and Juditsky 1992).

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.ASGD([w], lr=0.25, lambd=0.0)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.5, -0.5]
    """

    SLOTS = ("ax",)

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-2, lambd: float = 1e-4,
        alpha: float = 0.75, t0: float = 1e6, weight_decay: float = 0.0, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "lambd": float(lambd), "alpha": float(alpha), "t0": float(t0),
            "weight_decay": float(weight_decay), "maximize": bool(maximize),
        })  # fmt: skip
        for group in self.groups:
            if not group["weight_decay"] >= 0:
                raise UsageError(f"ASGD: weight_decay {group['weight_decay']}; give >= 0")

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        done = self.count.cast(dt.float32)
        eta = lr / (lr * group["lambd"] * done + 1.0) ** group["alpha"]
        share = 1.0 / (done - group["t0"]).maximum(1.0)
        for p, g, state in self._gradients(group):
            g = -g if group["maximize"] else g
            g = g + p * group["weight_decay"] if group["weight_decay"] else g
            new = write(state["param"], p * (1.0 - eta * group["lambd"]) - g * eta)
            average = state["ax"]
            write(average, average + (new - average) * share)


class Rprop(Optimizer):
    """Steps whose size of each element grows while the gradient keeps its sign, and shrinks when it
    turns (Riedmiller and Braun 1993).

    >>> w = weft.tensor([1.0, -1.0], requires_grad=True)
    >>> opt = optim.Rprop([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.75, -0.75]
    """

    SLOTS = ("prev", "step_size")

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2), step_sizes: tuple[float, float] = (1e-6, 50.0),
        maximize: bool = False,
    ):  # fmt: skip
        options = {"etas": tuple(etas), "step_sizes": tuple(step_sizes), "maximize": bool(maximize)}
        super().__init__(params, lr, options)
        for group in self.groups:
            if not 0 < group["etas"][0] < 1 < group["etas"][1]:
                raise UsageError(f"Rprop: etas {group['etas']}; expected 0 < first < 1 < second")

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        (less, more), (least, most) = group["etas"], group["step_sizes"]
        first = self.count == 0
        for p, g, state in self._gradients(group):
            g = -g if group["maximize"] else g
            way = (g * state["prev"]).sign()
            factor = (way > 0).where(more, (way < 0).where(less, way * 0.0 + 1.0))
            size = first.where(lr, state["step_size"]) * factor
            size = write(state["step_size"], size.clip(least, most))
            kept = write(state["prev"], (way < 0).where(0.0, g))
            write(state["param"], p - kept.sign() * size)
