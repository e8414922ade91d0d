"""L-BFGS: a quasi-Newton method for smooth losses of a whole data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import ModelError, UsageError
from weft.optim.optimizer import Group, Optimizer, Schedule, Write
from weft.optim.wolfe import Point, strong_wolfe
from weft.tensor.autograd import enable_grad, no_grad
from weft.tensor.core import Tensor
from weft.tensor.shapes import cat

Closure = Callable[[], Any]
_CURVED = 1e-10  # the least curvature along a step that is remembered


class _Pair(NamedTuple):
    """A step and what the gradient changed along it, as vectors of all parameters."""

    step: Tensor
    change: Tensor
    curvature: float


class LBFGS(Optimizer):
    """Up to `max_iter` quasi-Newton steps for each `step(closure)` (Liu and Nocedal 1989), with
    PyTorch's formulas. The closure clears the gradients, computes them and returns the loss; it may
    be a compiled function. `line_search_fn`: None takes steps of lr, "strong_wolfe" searches along
    each direction. All parameters are one group. Raises UsageError for options out of their range.

    >>> w = weft.tensor([3.0, -4.0], requires_grad=True)
    >>> opt = optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = ((w - weft.tensor([1.0, 2.0])) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> first = opt.step(closure)
    >>> abs(w[0].item() - 1.0) < 1e-4
    True
    """

    def __init__(
        self, params: Iterable[Any], lr: float | Schedule = 1.0, max_iter: int = 20,
        max_eval: int | None = None, tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9,
        history_size: int = 100, line_search_fn: str | None = None,
    ):  # fmt: skip
        super().__init__(params, lr, {
            "max_iter": int(max_iter), "max_eval": max_eval or max_iter * 5 // 4,
            "tolerance_grad": float(tolerance_grad), "tolerance_change": float(tolerance_change),
            "history_size": int(history_size), "line_search_fn": line_search_fn,
        })  # fmt: skip
        if len(self.groups) != 1:
            raise UsageError(f"LBFGS: {len(self.groups)} groups of parameters; give one")
        if line_search_fn not in (None, "strong_wolfe"):
            raise UsageError(f'LBFGS: line_search_fn {line_search_fn!r}; None or "strong_wolfe"')
        if max_iter < 1 or history_size < 1:
            raise UsageError(f"LBFGS: max_iter {max_iter}, history_size {history_size}; at least 1")
        self._pairs: list[_Pair] = []
        self._last: tuple[Tensor, Tensor, float, float] | None = None

    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override]
        """Steps until a tolerance or a limit is met. Returns the loss before the first one."""
        if closure is None:
            raise UsageError("LBFGS: step(closure) needs a function that computes the loss")
        with no_grad():
            self._evaluations = 0
            first, point = self._evaluate(closure)
            group = self.groups[0]
            for i in range(group["max_iter"]):
                if point.gradient.abs().max().item() <= group["tolerance_grad"]:
                    break
                after = self._iterate(closure, group, point, i + 1 == group["max_iter"])
                if after is None:
                    break
                moved, point = after
                change = abs(point.loss - self._loss_before)
                still = max(moved, change) if moved <= group["tolerance_change"] else change
                if min(moved, still) <= group["tolerance_change"]:
                    break
                if self._evaluations >= group["max_eval"]:
                    break
        return first

    def _iterate(
        self, closure: Closure, group: Group, point: Point, last: bool
    ) -> tuple[float, Point] | None:
        """One step from a point. Returns how far it went and where to; None if the direction does
        not lead down."""
        way, scale = self._direction(point.gradient, group)
        rate = group.rate(self.count).item()
        size = point.gradient.abs().sum().item()
        length = rate if self._last else min(1.0, 1.0 / max(size, 1e-38)) * rate
        slope = _dot(point.gradient, way)
        self.count.assign(self.count + 1)
        if slope > -group["tolerance_change"]:
            return None
        self._loss_before, before = point.loss, point
        if group["line_search_fn"]:
            start = self._vector()

            def at(t: float) -> Point:
                self._write(start + way * t)
                found = self._evaluate(closure)[1]
                return found._replace(at=t, slope=_dot(found.gradient, way))

            first = point._replace(at=0.0, slope=slope)
            point = strong_wolfe(at, first, length, way.abs().max().item())
            length = point.at
            self._write(start + way * length)
        else:
            self._write(self._vector() + way * length)
            if not last:
                point = self._evaluate(closure)[1]
        self._last = (before.gradient, way, length, scale)
        return way.abs().max().item() * abs(length), point

    def _direction(self, gradient: Tensor, group: Group) -> tuple[Tensor, float]:
        """Minus the gradient times the inverse of the Hessian that the last steps show."""
        if self._last is None:
            return -gradient, 1.0
        before, way, length, scale = self._last
        step, change = way * length, gradient - before
        curvature = _dot(change, step)
        if curvature > _CURVED:
            self._pairs = [*self._pairs, _Pair(step, change, curvature)][-group["history_size"] :]
            scale = curvature / _dot(change, change)
        q, shares = -gradient, []
        for pair in reversed(self._pairs):
            shares.append(_dot(pair.step, q) / pair.curvature)
            q = q - pair.change * shares[-1]
        r = q * scale
        for pair, share in zip(self._pairs, reversed(shares)):
            r = r + pair.step * (share - _dot(pair.change, r) / pair.curvature)
        return r, scale

    def _evaluate(self, closure: Closure) -> tuple[Any, Point]:
        with enable_grad():
            loss = closure()
        self._evaluations += 1
        value = float(loss.item() if isinstance(loss, Tensor) else loss)
        return loss, Point(0.0, value, self._gradient(), math.nan)

    def _gradient(self) -> Tensor:
        grads: list[Any] = [p * 0.0 if p.grad is None else p.grad for p in self.parameters()]
        flat: list[Tensor] = [g.reshape(g.size) for g in grads]
        return cat(flat) if len(flat) > 1 else flat[0]

    def _vector(self) -> Tensor:
        flat: list[Tensor] = [p.detach().reshape(p.size) for p in self.parameters()]
        return cat(flat) if len(flat) > 1 else flat[0]._fresh()

    def _write(self, vector: Tensor) -> None:
        start = 0
        for p in self.parameters():
            p.assign(vector[start : start + p.size].reshape(p.shape))
            start += p.size

    def _step(self, group: Group, lr: Tensor, write: Write) -> None:
        raise UsageError("LBFGS: a step needs a closure")

    # -- saved state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the count, the learning rate and what it knows of the curvature."""
        found = super().state_dict()
        for i, pair in enumerate(self._pairs):
            found[f"step.{i}"], found[f"change.{i}"] = np.array(pair.step), np.array(pair.change)
        if self._last is not None:
            before, way, length, scale = self._last
            found |= {"gradient": np.array(before), "direction": np.array(way)}
            found["length"] = np.array([length, scale])
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave. Raises ModelError for a state of another size."""
        mine = super().state_dict().keys()
        super().load_state_dict({k: state[k] for k in state if k in mine})
        size = sum(p.size for p in self.parameters())
        vectors = {k: v for k, v in state.items() if k not in mine and k != "length"}
        if any(np.shape(v) != (size,) for v in vectors.values()):
            raise ModelError(f"LBFGS: the state is not that of {size} numbers")
        like = self.parameters()[0]

        def there(name: str) -> Tensor:
            return Tensor(np.asarray(state[name]).astype(like.dtype.numpy)).to(like.device)

        count = sum(k.startswith("step.") for k in vectors)
        steps = [(there(f"step.{i}"), there(f"change.{i}")) for i in range(count)]
        self._pairs = [_Pair(s, y, _dot(y, s)) for s, y in steps]
        self._last = None
        if "length" in state:
            length, scale = (float(x) for x in state["length"])
            self._last = (there("gradient"), there("direction"), length, scale)


def _dot(x: Tensor, y: Tensor) -> float:
    return float((x * y).sum().item())
